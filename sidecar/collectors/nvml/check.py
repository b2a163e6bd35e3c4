"""`make device-check`: what NVML costs and permits on the GPU at hand, as JSON; notes in evidence.py what works."""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sidecar.collectors.gpu.catalogue import GROUPS, PREFIX
from sidecar.collectors.nvml import wire
from sidecar.collectors.nvml.collector import NvmlCollector, NvmlSettings
from sidecar.collectors.nvml.evidence import EVIDENCE
from sidecar.errors import CollectError
from sidecar.model import JSON, Availability, Evidence

HERE = Path(__file__).with_name("evidence.py")
NEEDS_AN_EVENT = "xid"  # cannot be provoked safely: that listening is allowed proves no event

_HEADER = '''"""What each group of NVML calls was checked against. Written by `make device-check`."""

from __future__ import annotations

from collections.abc import Mapping

from sidecar.model import Evidence

EVIDENCE: Mapping[str, Evidence] = {
'''


def check(library: Path | None, repeat: int, watch_s: float) -> JSON:
    """Everything found out on the first GPU, and the groups of metrics the collector read through `watch_s` seconds."""
    import pynvml

    if library is not None:
        ctypes.CDLL(str(library))
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        found: JSON = {
            "driver": pynvml.nvmlSystemGetDriverVersion(),
            "gpus": pynvml.nvmlDeviceGetCount(),
            "name": pynvml.nvmlDeviceGetName(handle),
            "calls": {name: _cost(call, repeat) for name, call in _calls(pynvml, handle)},
            "init_and_import_note": "costs are of calls after the first; microseconds, by this process's clock",
        }
    except pynvml.NVMLError as e:
        return {"failed": int(e.value), "text": str(e)}
    found.update(_watched(library, watch_s))
    return found


def _calls(nvml: Any, handle: Any) -> Iterator[tuple[str, Callable[[], object]]]:
    """Every call the child makes, by tier; GPM as it makes it, a pair more than 100 ms apart."""
    yield "nvmlDeviceGetUtilizationRates", lambda: nvml.nvmlDeviceGetUtilizationRates(handle)
    yield "nvmlDeviceGetMemoryInfo_v2", lambda: nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2)
    yield "nvmlDeviceGetCurrentClocksEventReasons", lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    for what, fields in (("tick", wire.TICK_FIELDS), ("rare", wire.RARE_FIELDS)):
        yield f"nvmlDeviceGetFieldValues ({what})", lambda f=fields: nvml.nvmlDeviceGetFieldValues(handle, f)  # type: ignore[misc]
        for field in fields:
            number = field[0] if isinstance(field, tuple) else field
            yield f"field {number}", lambda f=field: _one_field(nvml, handle, f)  # type: ignore[misc]
    yield "nvmlDeviceGetTemperatureV", lambda: nvml.nvmlDeviceGetTemperatureV(handle, 0)
    yield "nvmlDeviceGetClockInfo", lambda: nvml.nvmlDeviceGetClockInfo(handle, 1)
    yield "nvmlDeviceGetEnforcedPowerLimit", lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle)
    yield "nvmlDeviceGetComputeRunningProcesses_v3", lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    yield "nvmlDeviceGetMPSComputeRunningProcesses_v3", lambda: nvml.nvmlDeviceGetMPSComputeRunningProcesses(handle)
    yield "nvmlDeviceGetMigMode", lambda: nvml.nvmlDeviceGetMigMode(handle)
    yield "nvmlDeviceGetSupportedEventTypes", lambda: nvml.nvmlDeviceGetSupportedEventTypes(handle)
    yield "nvmlGpmQueryDeviceSupport", lambda: _gpm_supported(nvml, handle)
    samples: list[Any] = []

    def sample() -> object:
        if not samples:
            samples.extend(nvml.nvmlGpmSampleAlloc() for _ in range(2))
            nvml.nvmlGpmSampleGet(handle, samples[0])
            time.sleep(0.15)
        return nvml.nvmlGpmSampleGet(handle, samples[1])

    def metrics() -> object:
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version, request.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(wire.GPM)
        request.sample1, request.sample2 = samples
        for place, number in enumerate(wire.GPM):
            request.metrics[place].metricId = number
        return nvml.nvmlGpmMetricsGet(request)

    yield "nvmlGpmSampleGet", sample
    yield "nvmlGpmMetricsGet", metrics


def _one_field(nvml: Any, handle: Any, field: Any) -> None:
    (value,) = nvml.nvmlDeviceGetFieldValues(handle, [field])
    if value.nvmlReturn:
        raise nvml.NVMLError(value.nvmlReturn)


def _gpm_supported(nvml: Any, handle: Any) -> None:
    if not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
        raise nvml.NVMLError(wire.NOT_SUPPORTED)


def _cost(call: Callable[[], object], repeat: int) -> JSON:
    """Median, 99th percentile and maximum in microseconds, or the return code that stands for a refusal."""
    import pynvml

    took = []
    try:
        call()
        for _ in range(repeat):
            began = time.perf_counter_ns()
            call()
            took.append((time.perf_counter_ns() - began) / 1000)
    except pynvml.NVMLError as e:
        return {"refused": int(e.value), "text": str(e)}
    except (ValueError, IndexError):  # the pair of samples could not be had
        return {"refused": wire.NOT_SUPPORTED, "text": "needs GPM samples"}
    took.sort()
    at99 = took[math.ceil(len(took) * 0.99) - 1]
    return {"p50_us": round(statistics.median(took), 2), "p99_us": round(at99, 2), "max_us": round(took[-1], 2)}


def _watched(library: Path | None, watch_s: float) -> JSON:
    """What the collector itself reads: groups with a plausible value, its findings, and what its child costs."""
    collector = NvmlCollector(NvmlSettings(library_path=library))
    seen: dict[str, float] = {}
    status = None
    began = time.monotonic()
    try:
        while time.monotonic() - began < watch_s:
            try:
                status = collector.probe()
                seen |= {sample.metric: sample.value for sample in collector.sample(0)}
            except CollectError as e:
                print(f"{e}", file=sys.stderr)  # noqa: T201  a tool for the terminal
            time.sleep(min(1.0, watch_s / 4))
        findings = [f for f in collector.findings() if f.status.state is not Availability.AVAILABLE]
        return {
            "status": f"{status.state.value} {status.reason}".strip() if status else "",
            "missing": [{"what": f.what, "reason": f.status.reason, "fix": f.status.fix} for f in findings],
            "groups": [group for group in GROUPS if _plausible(group, seen)],
            "child_cpu_ratio": round(collector.cpu_seconds() / watch_s, 5),
        }
    finally:
        collector.close()


def _plausible(group: str, seen: Mapping[str, float]) -> bool:
    """Whether every value of a group that came is finite, not negative where it cannot be, and a ratio where it is."""
    values = {name: seen[PREFIX + name] for name, *_ in GROUPS[group] if PREFIX + name in seen}
    if not values:
        return False
    return all(
        math.isfinite(value)
        and (value >= 0 or name.endswith(("_lag_seconds", "_celsius")))
        and (value <= 1 or not name.endswith("_ratio"))
        for name, value in values.items()
    )


def evidence(found: JSON, against: str, before: Mapping[str, Evidence], today: str) -> dict[str, Evidence]:
    """What is known now: groups that were read are noted with this device, the others stay as they were. Pure."""
    after = dict(before)
    for group in found.get("groups", ()):
        if group != NEEDS_AN_EVENT:
            kind: Any = against
            after[group] = Evidence(kind, today, f"{found['name']}, driver {found['driver']}")
    return after


def source(known: Mapping[str, Evidence]) -> str:
    """The text of evidence.py."""
    lines = [
        f'    "{group}": Evidence("{e.against}", "{e.date}", {json.dumps(e.detail)}),'
        for group, e in sorted(known.items())
    ]
    return _HEADER + "\n".join(lines) + "\n}\n"


def main(arguments: list[str] | None = None) -> int:
    """Returns 1 where there is no GPU: nothing is written then."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", type=Path, help="another libnvidia-ml.so.1; what it shows counts as `fake`")
    parser.add_argument("--evidence", type=Path, default=HERE, help="the file to write")
    parser.add_argument("--no-write", action="store_true", help="only print")
    parser.add_argument("--repeat", type=int, default=200, help="calls of each kind")
    parser.add_argument("--watch", type=float, default=12.0, help="seconds to let the collector run")
    given = parser.parse_args(arguments)
    found = check(given.library, given.repeat, given.watch)
    print(json.dumps(found, indent=1))  # noqa: T201  a tool for the terminal
    if "failed" in found or not found.get("groups"):
        return 1
    if not given.no_write:
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        against = "device" if given.library is None else "fake"
        given.evidence.write_text(source(evidence(found, against, EVIDENCE, today)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
