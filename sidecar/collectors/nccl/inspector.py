"""NCCL Inspector: one JSON object a line, with the time each collective took. From NCCL 2.28.3, built by the user."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from sidecar.collectors.nccl.events import Body, Event

# Other sources (collective_cpu and its like) are what the enqueueing thread measured: not how long it took on the GPU.
# Before the source was told it was the kernel.
KERNEL_SOURCES = ("", "kernel_gpu", "kernel_cpu")


@dataclass(frozen=True, slots=True)
class CollectiveTiming(Body):
    """A finished collective of one rank. `rank` counts within the communicator `comm`.

    `sequence` counts per communicator and operation, so (comm, op, sequence) is the same collective on every rank.
    """

    kind: ClassVar[str] = "collective_timing"
    comm: str
    comm_name: str
    rank: int
    ranks: int
    nodes: int
    op: str
    sequence: int
    size_bytes: int
    seconds: float
    timing_source: str  # kernel_gpu, kernel_cpu, collective_cpu; "" before it was told
    bus_gbs: float | None
    host: str
    pid: int
    dumped_us: int


@dataclass(frozen=True, slots=True)
class PointToPointTiming(Body):
    """A finished send or receive of one rank."""

    kind: ClassVar[str] = "p2p_timing"
    comm: str
    comm_name: str
    rank: int
    ranks: int
    op: str
    peer: int | None
    sequence: int
    size_bytes: int
    seconds: float
    timing_source: str
    host: str
    pid: int
    dumped_us: int


def parse(text: str, first_line: int = 1) -> Iterator[Event]:
    """The events of whole lines; a line that is no record of the Inspector gives none. Raises nothing."""
    for number, line in enumerate(text.split("\n"), first_line):
        body = record(line)
        if body is not None:
            yield Event(number, None, body)


def record(line: str) -> CollectiveTiming | PointToPointTiming | None:
    """None for a line that is cut, is no JSON, or lacks what makes it a record."""
    if "_perf" not in line:
        return None
    try:
        found = json.loads(line)
        header, extra = found["header"], found.get("metadata", {})
        if "coll_perf" in found:
            return _collective(header, extra, found["coll_perf"])
        return _point_to_point(header, extra, found["p2p_perf"])
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None  # a line being written, or another version's: counted by the reader as not recognised


def _collective(header: Any, extra: Any, perf: Any) -> CollectiveTiming:
    bus = perf.get("coll_busbw_gbs")
    bus_gbs = None if bus is None else float(bus)
    return CollectiveTiming(
        comm=str(header["id"]),
        comm_name=str(header.get("comm_name", "")),
        rank=int(header["rank"]),
        ranks=int(header["n_ranks"]),
        nodes=int(header.get("nnodes", 1)),
        op=str(perf["coll"]),
        sequence=int(perf["coll_sn"]),
        size_bytes=int(perf["coll_msg_size_bytes"]),
        seconds=_seconds(perf["coll_exec_time_us"]),
        timing_source=str(perf.get("coll_timing_source", "")),
        bus_gbs=bus_gbs if bus_gbs is not None and math.isfinite(bus_gbs) else None,
        host=str(extra.get("hostname", "")),
        pid=int(extra.get("pid", 0)),
        dumped_us=int(extra.get("dump_timestamp_us", 0)),
    )


def _point_to_point(header: Any, extra: Any, perf: Any) -> PointToPointTiming:
    peer = perf.get("p2p_peer", perf.get("peer"))
    return PointToPointTiming(
        comm=str(header["id"]),
        comm_name=str(header.get("comm_name", "")),
        rank=int(header["rank"]),
        ranks=int(header["n_ranks"]),
        op=str(perf.get("p2p", perf.get("func", ""))),
        peer=None if peer is None else int(peer),
        sequence=int(perf["p2p_sn"]),
        size_bytes=int(perf["p2p_msg_size_bytes"]),
        seconds=_seconds(perf["p2p_exec_time_us"]),
        timing_source=str(perf.get("p2p_timing_source", "")),
        host=str(extra.get("hostname", "")),
        pid=int(extra.get("pid", 0)),
        dumped_us=int(extra.get("dump_timestamp_us", 0)),
    )


def _seconds(microseconds: Any) -> float:
    seconds = float(microseconds) / 1e6
    if not 0 <= seconds < 1e9:
        raise ValueError("not a duration")
    return seconds
