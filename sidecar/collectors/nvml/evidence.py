"""What each group of NVML calls was checked against. Written by `make device-check`."""

from __future__ import annotations

from collections.abc import Mapping

from sidecar.model import Evidence

EVIDENCE: Mapping[str, Evidence] = {
    "clocks": Evidence("fake", "2026-11-29", "libnvidia-ml.so.1 of the tests"),
    "derived": Evidence("fake", "2026-11-29", "libnvidia-ml.so.1 of the tests"),
    "driver": Evidence("fake", "2026-11-29", "libnvidia-ml.so.1 of the tests"),
    "ecc": Evidence("fake", "2026-11-29", "libnvidia-ml.so.1 of the tests"),
    "gpm": Evidence("fake", "2026-11-29", "libnvidia-ml.so.1 of the tests"),
    "memory": Evidence("fake", "2026-11-29", "libnvidia-ml.so.1 of the tests"),
    "nvlink": Evidence("fake", "2026-11-29", "libnvidia-ml.so.1 of the tests"),
    "pcie": Evidence("fake", "2026-11-29", "libnvidia-ml.so.1 of the tests"),
    "power": Evidence("fake", "2026-11-29", "libnvidia-ml.so.1 of the tests"),
    "processes": Evidence("fake", "2026-11-29", "libnvidia-ml.so.1 of the tests"),
    "temperature": Evidence("fake", "2026-11-29", "libnvidia-ml.so.1 of the tests"),
    "utilization": Evidence("fake", "2026-11-29", "libnvidia-ml.so.1 of the tests"),
    "xid": Evidence("fake", "2026-11-29", "libnvidia-ml.so.1 of the tests"),
}
