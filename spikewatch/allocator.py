"""Device memory as torch's CUDA caching allocator sees it: totals, largest free block, fragmentation.

A plain `1 - largest free block / free` calls a healthy cache of whole free segments fragmented. Those can be given
back to the driver and come again as one block, so here they count as one, together with what the driver has free.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from spikewatch.layout import MISSING

MIB = 1 << 20
PAGE = {"small": 2 * MIB, "large": 20 * MIB}  # what an expandable segment maps and gives back at a time
SHARED_POOL = (0, 0)  # other pools belong to CUDA graphs; nobody else can have what is free there

SNAPSHOT_EVERY = 10.0  # seconds
SNAPSHOT_SHARE = 1000  # a snapshot that took t seconds is not repeated before 1000·t: it holds the interpreter


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Bytes. `total` is what is free at all, `largest` the largest block that could be had now."""

    total: int
    largest: int
    graphs: bool  # whether there are private pools, as CUDA graphs make them

    @property
    def fragmentation(self) -> float:
        """0: all that is free could be had as one block; near 1: only crumbs. Missing where nothing is free."""
        return 1 - self.largest / self.total if self.total else MISSING


def free_memory(segments: Iterable[Mapping[str, Any]], device: int, device_free: int = 0) -> FreeMemory:
    """Of a snapshot as `torch.cuda.memory_snapshot()` gives it, and the bytes the driver has free on the device."""
    total, largest, releasable, graphs = 0, 0, 0, False
    for segment in segments:
        if segment["device"] != device:
            continue
        if tuple(segment.get("segment_pool_id", SHARED_POOL)) != SHARED_POOL:
            graphs = True
            continue
        inactive = [(start, size) for start, size, state in _blocks(segment) if state == "inactive"]
        total += sum(size for _, size in inactive)
        largest = max([largest, *(size for _, size in inactive)])
        releasable += _releasable(segment, inactive)
    return FreeMemory(total + device_free, max(largest, releasable + device_free), graphs)


def _blocks(segment: Mapping[str, Any]) -> Iterable[tuple[int, int, str]]:
    """(offset in the segment, size, state) of each block."""
    offset = 0
    for block in segment["blocks"]:
        yield offset, block["size"], block["state"]
        offset += block["size"]


def _releasable(segment: Mapping[str, Any], inactive: list[tuple[int, int]]) -> int:
    """Bytes the allocator could give back to the driver."""
    if not segment.get("is_expandable", False):
        whole = sum(size for _, size in inactive) == segment["total_size"]
        return int(segment["total_size"]) if whole else 0
    page = PAGE.get(segment.get("segment_type", "large"), PAGE["large"])
    # Only pages that lie wholly inside a free block can be unmapped.
    return sum(max(0, (start + size) // page - -(-start // page)) * page for start, size in inactive)


def totals(stats: Mapping[str, Any]) -> dict[str, float]:
    """The slow fields in `torch.cuda.memory_stats_as_nested_dict()`; empty on a build without CUDA."""
    found: dict[str, float] = {}
    for field, name in (("memory_reserved_bytes", "reserved_bytes"), ("memory_allocated_bytes", "allocated_bytes")):
        if name in stats:
            found[field] = float(stats[name]["all"]["current"])
    for field, name in (("alloc_retries_total", "num_alloc_retries"), ("ooms_total", "num_ooms")):
        if name in stats:
            found[field] = float(stats[name])
    return found


class DriverFree:
    """Bytes the driver has free, asked on the training thread between two steps: while another thread captures a CUDA
    graph, a driver call from here might break the capture.
    """

    EVERY = 10_000_000_000  # nanoseconds

    def __init__(self, cuda: Any, device: int) -> None:
        self._cuda, self._device = cuda, device
        self.due = 0
        self.bytes: int | None = None

    def look(self, now: int) -> None:
        """`now` in nanoseconds of the meter's clock."""
        self.due = now + self.EVERY
        if not self._cuda.is_current_stream_capturing():
            self.bytes = int(self._cuda.mem_get_info(self._device)[0])


class Allocator:
    """A telemetry source over `torch.cuda` for one device."""

    def __init__(self, cuda: Any, device: int, driver: DriverFree) -> None:
        self._cuda, self._device, self._driver = cuda, device, driver
        self._snapshot_at = 0.0
        self._free: FreeMemory | None = None

    @property
    def graphs(self) -> bool:
        """Whether CUDA graphs hold memory of their own, as of the newest snapshot."""
        return self._free is not None and self._free.graphs

    def __call__(self, now: float) -> dict[str, float]:
        values = totals(self._cuda.memory_stats_as_nested_dict(self._device))
        if values and now >= self._snapshot_at and self._driver.bytes is not None:
            began = time.perf_counter()
            snapshot = self._cuda.memory_snapshot()
            self._snapshot_at = now + max(SNAPSHOT_EVERY, SNAPSHOT_SHARE * (time.perf_counter() - began))
            self._free = free_memory(snapshot, self._device, self._driver.bytes)
        if values and self._free is not None:
            values["memory_largest_free_bytes"] = self._free.largest
            values["memory_fragmentation_ratio"] = self._free.fragmentation
        return values


def of_model(model: Any, torch: Any) -> tuple[Any, int] | None:
    """(torch.cuda, device index) of the module's first parameter; None where it is not on a CUDA device."""
    parameter = next(iter(model.parameters()), None) if hasattr(model, "parameters") else None
    if parameter is None or parameter.device.type != "cuda" or not torch.cuda.is_initialized():
        return None
    device = parameter.device
    return torch.cuda, device.index or 0
