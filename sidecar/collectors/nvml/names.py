"""From the child's raw values to readings: names, base units, labels, what is shared with whom."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping

from sidecar.collectors.gpu.catalogue import CLOCK_REASONS
from sidecar.collectors.gpu.reading import Reading
from sidecar.collectors.gpu.waiting import Moment
from sidecar.collectors.nvml import faults, wire
from sidecar.model import JSON, Availability, Labels, Status

Key = tuple[str, Labels]

# Xid → whose fault it is as a rule. Errors of the application are what NVIDIA's device plugin does not mark a GPU
# unhealthy for. These are exported at 0 from the start, any other from its first occurrence.
APPLICATION_XIDS = (13, 31, 43, 45, 68, 109)
DEVICE_XIDS = (48, 63, 64, 69, 74, 79, 92, 94, 95, 119, 120)

RECENT = 6  # moments: more than a second at 200 ms

_MIB = float(1 << 20)


def _plain(name: str, factor: float = 1.0) -> tuple[Key, float]:
    return (name, ()), factor


def _with(name: str, label: str, value: str, factor: float = 1.0) -> tuple[Key, float]:
    return (name, ((label, value),)), factor


# Raw name → (metric, factor to the base unit). Of two sources of one metric the first that is there counts.
VALUES: Mapping[str, tuple[Key, float]] = {
    "mem.total": _plain("memory_total_bytes"),
    "mem.used": _plain("memory_used_bytes"),
    "mem.free": _plain("memory_free_bytes"),
    "mem.reserved": _plain("memory_reserved_bytes"),
    "util.gpu": _plain("busy_ratio", 0.01),
    "util.memory": _plain("memory_busy_ratio", 0.01),
    f"g{wire.SM}": _plain("sm_active_ratio", 0.01),
    f"g{wire.OCCUPANCY}": _plain("sm_occupancy_ratio", 0.01),
    f"g{wire.TENSOR}": _plain("tensor_active_ratio", 0.01),
    f"g{wire.DRAM}": _plain("dram_active_ratio", 0.01),
    f"g{wire.PCIE_TX}": _plain("pcie_transmit_bytes_per_second", _MIB),
    f"g{wire.PCIE_RX}": _plain("pcie_receive_bytes_per_second", _MIB),
    f"g{wire.NVLINK_TX}": _plain("nvlink_transmit_bytes_per_second", _MIB),
    f"g{wire.NVLINK_RX}": _plain("nvlink_receive_bytes_per_second", _MIB),
    "clk.sm": _with("clock_hertz", "clock", "sm", 1e6),
    "clk.mem": _with("clock_hertz", "clock", "memory", 1e6),
    "temp": _with("temperature_celsius", "sensor", "gpu"),
    "f82": _with("temperature_celsius", "sensor", "memory"),
    "f186": _plain("power_watts", 1e-3),  # mW, at this moment
    "limit": _plain("power_limit_watts", 1e-3),
    "f83": _plain("energy_joules_total", 1e-3),
    "f197": _plain("pcie_transmit_bytes_total"),
    "f198": _plain("pcie_receive_bytes_total"),
    "f94": _plain("pcie_replays_total"),
    "f138": _plain("nvlink_transmit_bytes_total", 1024.0),  # KiB of payload, up to NVLink 4
    "f139": _plain("nvlink_receive_bytes_total", 1024.0),
    "f202": _plain("nvlink_transmit_bytes_total"),  # bytes, from NVLink 5 on
    "f204": _plain("nvlink_receive_bytes_total"),
    "f3": _with("ecc_errors_total", "kind", "corrected"),
    "f4": _with("ecc_errors_total", "kind", "uncorrected"),
    "f142": _with("remapped_rows", "kind", "correctable"),
    "f143": _with("remapped_rows", "kind", "uncorrectable"),
    "f144": _plain("row_remap_pending"),
    "f145": _plain("row_remap_failed"),
    "f31": _plain("retired_pages_pending"),
    "f74": _with("clocks_event_seconds_total", "reason", "sw_power_cap", 1e-9),
    "f75": _with("clocks_event_seconds_total", "reason", "thermal", 1e-9),
    "f76": _with("clocks_event_seconds_total", "reason", "sync_boost", 1e-9),
    "f269": _with("clocks_event_seconds_total", "reason", "sw_thermal", 1e-9),
    "f270": _with("clocks_event_seconds_total", "reason", "hw_thermal", 1e-9),
    "f271": _with("clocks_event_seconds_total", "reason", "hw_power_brake", 1e-9),
    "procs": _plain("processes"),
    "procs.mem": _plain("processes_memory_bytes"),
}
_CLOCK_KEYS: tuple[Key, ...] = tuple(("clocks_event", (("reason", reason),)) for reason in CLOCK_REASONS)

# What a person asks about → the kinds of call behind it; a capability is as good as the first of them that works.
CAPABILITIES: Mapping[str, tuple[str, ...]] = {
    "memory": ("memory", "memory_v1"),
    "utilization": ("utilization",),
    "gpm": ("gpm",),
    "clocks": ("clocks.nvmlDeviceGetCurrentClocksEventReasons", "clocks"),
    "power": ("f186",),
    "energy": ("f83",),
    "pcie": ("f197",),
    "nvlink": ("f138", "f202"),
    "ecc": ("f4",),
    "xid": ("xid",),
    "processes": ("processes",),
}


class Past:
    """What is remembered of one GPU between reports, so that nothing is made twice that is still the same."""

    def __init__(self) -> None:
        self.slow: Mapping[str, float] = {}
        self.recent: deque[Moment] = deque(maxlen=RECENT)
        self._steady: Mapping[Key, float] = {}
        self._steady_of: object = None
        self._capabilities: Mapping[str, Status] = {}
        self._capabilities_of: object = None
        self._info: Mapping[str, str] = {}
        self._raw: list[str] = []
        self._plan: list[tuple[str, Key, float, bool]] = []

    def steady(
        self, slow: Mapping[str, float], reasons: float | None, xids: Mapping[int, int] | None
    ) -> Mapping[Key, float]:
        """The values that change seldom; the same object as long as nothing did."""
        made_of = (slow, reasons, None if xids is None else dict(xids))
        if made_of != self._steady_of:
            self._steady_of = made_of
            self._steady = {**dict(_values(slow, _plan(slow))), **dict(_reasons(reasons)), **dict(_xids(xids))}
        return self._steady

    def capabilities(self, gpu: JSON, lost: int, instance: bool) -> Mapping[str, Status]:
        """What can be had, see `_capabilities`; the same object as long as nothing changed."""
        made_of = (lost, instance, gpu["divided"], gpu["codes"])
        if made_of != self._capabilities_of:
            self._capabilities_of = made_of
            self._capabilities = {"device": faults.whole(lost)} if lost else dict(_capabilities(gpu, instance))
        return self._capabilities

    def info(self, **labels: str) -> Mapping[str, str]:
        """These; the same object as long as they are the same."""
        if labels != self._info:
            self._info = labels
        return self._info

    def values(self, raw: Mapping[str, float]) -> dict[Key, float]:
        """The metrics of raw values; what becomes of which name is looked up once, while the names are the same."""
        if list(raw) != self._raw:
            self._raw, self._plan = list(raw), _plan(raw)
        return dict(_values(raw, self._plan))


def reading(gpu: JSON, told: str, xids: Mapping[int, int] | None, past: Past) -> Reading:
    """One entry of a report. `told`: what the user says of sharing, or auto. `xids`: counts since the sidecar listens;
    None where nobody listens.
    """
    lost, instance = int(gpu["lost"]), bool(gpu["parent"])
    if gpu["slow"] is not None:
        past.slow = gpu["slow"]
    slow: Mapping[str, float] = {} if lost else past.slow
    raw: dict[str, float] = gpu["values"]
    moments = [Moment(*moment) for moment in gpu["moments"]]
    past.recent.extend(moments)
    capabilities = past.capabilities(gpu, lost, instance)
    if _counters_stand_still(past.recent):
        capabilities = {**capabilities, "gpm": faults.ZERO_WHILE_BUSY}
        raw = {name: value for name, value in raw.items() if not name.startswith("g")}
        moments = [Moment(m.t_s, m.busy) for m in moments]
    steady = past.steady(slow, raw.get("clk.reasons"), None if instance else xids)
    info = past.info(name=str(gpu["name"]), sharing=_sharing(gpu, slow, told), parent=str(gpu["parent"]))
    values = past.values(raw)
    return Reading(str(gpu["gpu"]), str(gpu["index"]), values, steady, moments, info, capabilities, up=not lost)


def _sharing(gpu: JSON, slow: Mapping[str, float], told: str) -> str:
    """Who else may use it: none, mig, mps or processes."""
    if gpu["parent"] or gpu["divided"]:
        return "mig"
    if told != "auto":
        return told
    if slow.get("mps"):
        return "mps"
    return "processes" if slow.get("procs", 0) > 1 else "none"


def _plan(raw: Iterable[str]) -> list[tuple[str, Key, float, bool]]:
    """For each raw name that becomes a metric: the name, the metric, the factor, and whether it is a ratio."""
    there = set(raw)
    found: dict[Key, tuple[str, Key, float, bool]] = {}
    for name, (key, factor) in VALUES.items():
        if name in there:
            found.setdefault(key, (name, key, factor, key[0].endswith("_ratio")))
    return list(found.values())


def _values(raw: Mapping[str, float], plan: Iterable[tuple[str, Key, float, bool]]) -> Iterator[tuple[Key, float]]:
    for name, key, factor, ratio in plan:
        value = raw[name] * factor
        yield key, 1.0 if ratio and value > 1.0 else value


def _reasons(reasons: float | None) -> Iterator[tuple[Key, float]]:
    if reasons is not None:
        for place, key in enumerate(_CLOCK_KEYS):
            yield key, float(int(reasons) >> place & 1)


def _xids(xids: Mapping[int, int] | None) -> Iterator[tuple[Key, float]]:
    if xids is not None:
        for xid in sorted({*APPLICATION_XIDS, *DEVICE_XIDS, *xids}):
            kind = "application" if xid in APPLICATION_XIDS else "device"
            yield ("xid_errors_total", (("kind", kind), ("xid", str(xid)))), float(xids.get(xid, 0))


def _counters_stand_still(recent: deque[Moment]) -> bool:
    """Activity counters at zero on a GPU that was busy all the time: they are broken, not the GPU idle.

    Several moments in a row, because utilization looks back for up to a second.
    """
    return len(recent) == recent.maxlen and all(
        m.busy is not None and m.busy >= 0.99 and m.sm == m.dram == 0 for m in recent
    )


def _capabilities(gpu: JSON, instance: bool) -> Iterator[tuple[str, Status]]:
    """Always for what an alert hangs on, for the rest only where it cannot be had."""
    codes: Mapping[str, int] = gpu["codes"]
    for capability, kinds in CAPABILITIES.items():
        if (instance and capability not in ("memory", "gpm")) or (
            gpu["divided"] and capability in ("memory", "utilization", "gpm", "processes")
        ):
            continue
        found = [codes.get(kind, codes.get("fields", 0) if kind.startswith("f") else 0) for kind in kinds]
        status = faults.part(capability, 0 if 0 in found else found[0])
        if capability in ("gpm", "xid") or status.state is not Availability.AVAILABLE:
            yield capability, status
