"""Every metric about a GPU, named alike for all vendors, by the group of calls that a vendor reads it with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from sidecar.model import Evidence, MetricInfo

GPU = ("gpu", "index")
"""Labels of every series about a GPU: its UUID (of a MIG device the `MIG-…` one) and its number, like 0 or 0.1."""

PREFIX = "spikewatch_gpu_"
CLOCK_REASONS = (  # by bit
    *("idle", "app_clocks", "sw_power_cap", "hw_slowdown", "sync_boost"),
    *("sw_thermal", "hw_thermal", "hw_power_brake", "display"),
)

_Quality = Literal["exact", "averaged", "estimated"]
_Row = tuple[str, str, str, str, _Quality]  # name, unit, labels beside GPU, help, quality
_E: _Quality = "exact"
_A: _Quality = "averaged"
_G: _Quality = "estimated"

GROUPS: Mapping[str, tuple[_Row, ...]] = {
    "memory": (
        ("memory_total_bytes", "bytes", "", "Memory of the GPU.", _E),
        ("memory_used_bytes", "bytes", "", "Memory that processes hold, cached by frameworks or not.", _E),
        ("memory_free_bytes", "bytes", "", "Memory that can be allocated.", _E),
        ("memory_reserved_bytes", "bytes", "", "Memory the driver keeps for itself; absent with old drivers.", _E),
        ("memory_used_ratio", "ratio", "", "Used memory as a share of used and free.", _E),
    ),
    "utilization": (
        (
            "busy_ratio",
            "ratio",
            "",
            "Share of the driver's sample period (1/6 s to 1 s) in which any kernel ran, however few SMs it used: what"
            " nvidia-smi calls utilization. It is 1 also while a kernel only waits for a late peer.",
            _A,
        ),
        ("memory_busy_ratio", "ratio", "", "Share of the same period in which memory was read or written.", _A),
    ),
    "gpm": (
        ("sm_active_ratio", "ratio", "", "Share of SMs with a warp in flight, mean since the last sample.", _A),
        ("sm_occupancy_ratio", "ratio", "", "Warps in flight as a share of what the SMs can hold.", _A),
        ("tensor_active_ratio", "ratio", "", "Share of cycles in which a tensor core was at work.", _A),
        ("dram_active_ratio", "ratio", "", "Share of the memory bandwidth in use.", _A),
        ("pcie_transmit_bytes_per_second", "bytes_per_second", "", "Bytes sent over PCIe.", _A),
        ("pcie_receive_bytes_per_second", "bytes_per_second", "", "Bytes received over PCIe.", _A),
        ("nvlink_transmit_bytes_per_second", "bytes_per_second", "", "Bytes sent over all NVLinks.", _A),
        ("nvlink_receive_bytes_per_second", "bytes_per_second", "", "Bytes received over all NVLinks.", _A),
    ),
    "clocks": (
        ("clock_hertz", "hertz", "clock", "Clock of the SMs or of the memory.", _E),
        (
            "clocks_event",
            "",
            "reason",
            "1 while the reason holds the clocks down. sw_power_cap alone is normal at full load; hw_slowdown,"
            " hw_thermal, sw_thermal and hw_power_brake are not.",
            _E,
        ),
        ("clocks_event_seconds_total", "seconds", "reason", "How long the reason has held the clocks down.", _E),
    ),
    "power": (
        ("power_watts", "watts", "", "Power drawn now.", _E),
        ("power_limit_watts", "watts", "", "Power the GPU is held to.", _E),
        ("energy_joules_total", "joules", "", "Energy used since the driver was loaded.", _E),
    ),
    "pcie": (
        ("pcie_transmit_bytes_total", "bytes", "", "Bytes sent over PCIe.", _E),
        ("pcie_receive_bytes_total", "bytes", "", "Bytes received over PCIe.", _E),
        ("pcie_replays_total", "", "", "PCIe packets sent again: a bad slot, riser or cable.", _E),
    ),
    "nvlink": (
        ("nvlink_transmit_bytes_total", "bytes", "", "Bytes sent over all NVLinks, payload only.", _E),
        ("nvlink_receive_bytes_total", "bytes", "", "Bytes received over all NVLinks, payload only.", _E),
    ),
    "temperature": (("temperature_celsius", "celsius", "sensor", "Temperature of the die or of the memory.", _E),),
    "ecc": (
        ("ecc_errors_total", "", "kind", "Memory errors since the driver was loaded.", _E),
        ("remapped_rows", "", "kind", "Memory rows replaced by spare ones because of errors.", _E),
        ("row_remap_pending", "", "", "1 where a row will be replaced at the next reset of the GPU.", _E),
        ("row_remap_failed", "", "", "1 where a row could not be replaced: the GPU should be.", _E),
        ("retired_pages_pending", "", "", "1 where a page will be retired at the next reset of the GPU.", _E),
    ),
    "xid": (
        (
            "xid_errors_total",
            "",
            "xid kind",
            "Errors the driver reported by number since the sidecar listens; kind application is usually the program's"
            " own fault, device the hardware's or the driver's.",
            _E,
        ),
    ),
    "processes": (
        ("processes", "", "", "Processes that compute on the GPU, of other pods too.", _E),
        ("processes_memory_bytes", "bytes", "", "Memory those processes hold.", _E),
    ),
    "driver": (
        ("up", "", "", "1 where the GPU answers, 0 where it is lost, needs a reset or hangs.", _E),
        (
            "info",
            "",
            "name sharing parent",
            "Always 1. Sharing is none, mig, mps or processes: the figures of a GPU that several pods see are the whole"
            " GPU's in each of them, so take `max by (gpu)`, never a sum over pods.",
            _E,
        ),
        (
            "capability",
            "",
            "capability state reason",
            "Always 1: what of this GPU can be read, and why not more.",
            _E,
        ),
    ),
    "derived": (
        (
            "sm_dram_lag_seconds",
            "seconds",
            "",
            "How long SM activity follows memory activity, from the correlation of both over the last minute: compute"
            " that waits for data. Negative where it leads; absent where the two do not move together.",
            _G,
        ),
        (
            "busy_not_computing_ratio",
            "ratio",
            "",
            "Share of the last 10 s in which a kernel ran while few SMs, no tensor core and no link were at work: it"
            " most likely waited for a peer inside a collective. A heuristic, no measured wait.",
            _G,
        ),
    ),
}

DRIVER_CALLS: tuple[tuple[str, str, str], ...] = (
    ("driver_call_seconds_total", "seconds", "Time spent inside the driver, by call."),
    ("driver_calls_total", "", "Calls into the driver."),
)


def metrics(sources: Mapping[str, str], evidence: Mapping[str, Evidence]) -> tuple[MetricInfo, ...]:
    """The catalogue of one vendor's collector: `sources` names the calls behind each group it reads."""
    found = [
        MetricInfo(
            PREFIX + name,
            "counter" if name.endswith("_total") else "gauge",
            unit,
            text,
            (*GPU, *labels.split()),
            sources[group],
            "device",
            quality,
            evidence.get(group, Evidence()),
        )
        for group in sources
        for name, unit, labels, text, quality in GROUPS[group]
    ]
    for name, unit, text in DRIVER_CALLS:
        found.append(
            MetricInfo(
                PREFIX + name, "counter", unit, text, ("call",), "the collector", "container", "exact",
                evidence.get("driver", Evidence()),
            )
        )  # fmt: skip
    return tuple(found)
