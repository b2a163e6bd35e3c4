"""Our GPU metrics under the names and units of NVIDIA's dcgm-exporter, so that dashboards made for it work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from sidecar.collectors.gpu.catalogue import PREFIX
from sidecar.model import Labels, MetricInfo, Sample, labels_of

_MIB = 1 / (1 << 20)


@dataclass(frozen=True, slots=True)
class Name:
    """One metric of dcgm-exporter: what of ours it is, and what to multiply it by."""

    dcgm: str
    ours: str
    factor: float = 1.0
    only: tuple[str, str] | None = None  # (label, value) of ours that it is
    counter: bool = False


_NAMES: tuple[Name, ...] = (
    Name("DEV_GPU_UTIL", "busy_ratio", 100),
    Name("DEV_MEM_COPY_UTIL", "memory_busy_ratio", 100),
    Name("DEV_FB_USED", "memory_used_bytes", _MIB),
    Name("DEV_FB_FREE", "memory_free_bytes", _MIB),
    Name("DEV_FB_RESERVED", "memory_reserved_bytes", _MIB),
    Name("DEV_POWER_USAGE", "power_watts"),
    Name("DEV_TOTAL_ENERGY_CONSUMPTION", "energy_joules_total", 1000, counter=True),
    Name("DEV_GPU_TEMP", "temperature_celsius", only=("sensor", "gpu")),
    Name("DEV_MEMORY_TEMP", "temperature_celsius", only=("sensor", "memory")),
    Name("DEV_SM_CLOCK", "clock_hertz", 1e-6, only=("clock", "sm")),
    Name("DEV_MEM_CLOCK", "clock_hertz", 1e-6, only=("clock", "memory")),
    Name("DEV_PCIE_REPLAY_COUNTER", "pcie_replays_total", counter=True),
    Name("DEV_CORRECTABLE_REMAPPED_ROWS", "remapped_rows", only=("kind", "correctable"), counter=True),
    Name("DEV_UNCORRECTABLE_REMAPPED_ROWS", "remapped_rows", only=("kind", "uncorrectable"), counter=True),
    Name("DEV_ROW_REMAP_FAILURE", "row_remap_failed"),
    Name("PROF_SM_ACTIVE", "sm_active_ratio"),
    Name("PROF_SM_OCCUPANCY", "sm_occupancy_ratio"),
    Name("PROF_PIPE_TENSOR_ACTIVE", "tensor_active_ratio"),
    Name("PROF_DRAM_ACTIVE", "dram_active_ratio"),
    Name("PROF_PCIE_TX_BYTES", "pcie_transmit_bytes_per_second"),
    Name("PROF_PCIE_RX_BYTES", "pcie_receive_bytes_per_second"),
    Name("PROF_NVLINK_TX_BYTES", "nvlink_transmit_bytes_per_second"),
    Name("PROF_NVLINK_RX_BYTES", "nvlink_receive_bytes_per_second"),
)

INFO = PREFIX + "info"
READS: frozenset[str] = frozenset({PREFIX + name.ours for name in _NAMES} | {INFO})
"""Our metrics that these names are made of."""

METRICS: tuple[MetricInfo, ...] = tuple(
    MetricInfo(
        f"DCGM_FI_{name.dcgm}",
        "counter" if name.counter else "gauge",
        "",
        f"As dcgm-exporter has it; made of {PREFIX}{name.ours}.",
        ("gpu", "UUID", "device", "modelName"),
    )
    for name in _NAMES
)


def renamed(values: Iterable[tuple[str, Labels, float]]) -> Iterator[Sample]:
    """Samples under dcgm-exporter's names, of (metric, labels, value) of ours. Pure; what it does not know it skips."""
    by_metric: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    for metric, labels, value in values:
        if metric in READS:
            by_metric.setdefault(metric, []).append((dict(labels), value))
    models = {info["gpu"]: info.get("name", "") for info, _ in by_metric.get(INFO, ())}
    for name in _NAMES:
        for ours, number in by_metric.get(PREFIX + name.ours, ()):
            if name.only is None or ours.get(name.only[0]) == name.only[1]:
                yield Sample(f"DCGM_FI_{name.dcgm}", _labels(ours, models), number * name.factor)


def _labels(ours: Mapping[str, str], models: Mapping[str, str]) -> Labels:
    number, _, instance = ours["index"].partition(".")
    found = {"gpu": number, "UUID": ours["gpu"], "device": f"nvidia{number}", "modelName": models.get(ours["gpu"], "")}
    return labels_of({**found, "GPU_I_ID": instance})
