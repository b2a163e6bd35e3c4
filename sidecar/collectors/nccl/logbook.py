"""Counts what the logs say, event by event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from sidecar.collectors.nccl import events
from sidecar.collectors.nccl.events import Event
from sidecar.collectors.nccl.routes import Routes
from sidecar.collectors.nccl.warnings import FAMILIES
from sidecar.model import Sample, labels_of

# What PyTorch's watchdog calls operations → NCCL's names, which the metrics use.
_OPS = {
    "ALLREDUCE": "AllReduce",
    "ALLREDUCE_COALESCED": "AllReduce",
    "ALLGATHER": "AllGather",
    "_ALLGATHER_BASE": "AllGather",
    "ALLGATHER_COALESCED": "AllGather",
    "REDUCE_SCATTER": "ReduceScatter",
    "_REDUCE_SCATTER_BASE": "ReduceScatter",
    "BROADCAST": "Broadcast",
    "_BROADCAST_OOP": "Broadcast",
    "REDUCE": "Reduce",
    "ALLTOALL": "AllToAll",
    "ALLTOALL_BASE": "AllToAll",
    "SEND": "SendRecv",
    "RECV": "SendRecv",
    "COALESCED": "Coalesced",
    "BARRIER": "Barrier",
}
OPS = tuple(dict.fromkeys(_OPS.values()))


def operation(name: str) -> str:
    """NCCL's name of an operation as the watchdog or the flight recorder spells it; `other` for what is none."""
    upper = name.rpartition(":")[2].upper()
    if upper in _OPS:
        return _OPS[upper]
    by_plain = {op.upper(): op for op in OPS}
    return by_plain.get(upper.replace("_", ""), "other")


class Logbook:
    """Everything the log lines add up to. Counters run from the start of the sidecar."""

    def __init__(self, alignment: int = 512) -> None:
        self._alignment = alignment
        self._routes = Routes()
        self._warnings: Counter[str] = Counter()
        self._timeouts: Counter[str] = Counter()
        self._aligned = self._misaligned = 0
        self._progress: dict[int, tuple[int, int]] = {}
        self._versions: set[str] = set()
        self._synthetic = 0
        self._init_seconds: float | None = None
        self.complete_at_ms: int | None = None  # when a communicator was last seen to be ready

    @property
    def timeouts(self) -> int:
        """Collectives the watchdog gave up on."""
        return self._timeouts.total()

    @property
    def version(self) -> str:
        """The newest version seen, "" for none."""
        return max(self._versions, key=_numbers, default="")

    def see(self, found: Iterable[Event], now_ms: int) -> None:
        """Takes in events as they come."""
        alignment, aligned, buffers = self._alignment, 0, 0
        for event in found:
            body = event[2]
            if type(body) is events.Collective:  # the commonest by far
                send, receive = body[2], body[3]
                buffers += 1
                aligned += not send % alignment
                if receive != send:
                    buffers += 1
                    aligned += not receive % alignment
            elif type(body) is events.Channel and event[1] is not None:
                self._routes.channel(event[1], body)
            else:
                self._count(event, now_ms)
        self._aligned += aligned
        self._misaligned += buffers - aligned

    def _count(self, event: Event, now_ms: int) -> None:
        body = event.body
        match body:
            case events.Warn():
                self._warnings[body.family] += 1
            case events.WatchdogTimeout():
                self._timeouts[operation(body.op)] += 1
            case events.WatchdogStatus():
                self._progress[body.rank] = (body.last_enqueued, body.last_completed)
            case events.Version():
                self._versions.add(body.version)
            case events.Init():
                if event.header is not None:
                    self._routes.init(event.header, body)
                if body.phase == "complete":
                    self.complete_at_ms = now_ms
            case events.InitTimings():
                self._init_seconds = max(self._init_seconds or 0.0, body.total_seconds)
            case events.SyntheticCollective() | events.SyntheticTimeout():
                self._synthetic += 1
            case _:
                pass

    def samples(self) -> Iterator[Sample]:
        """What is known now. What the log never spoke of is left out; events that did not happen count 0."""
        for family in FAMILIES:
            yield Sample("spikewatch_nccl_warnings_total", (("family", family),), self._warnings[family])
        for op in (*OPS, "other"):
            yield Sample("spikewatch_nccl_watchdog_timeouts_total", (("op", op),), self._timeouts[op])
        yield Sample("spikewatch_nccl_synthetic_lines_total", (), self._synthetic)
        if self._aligned or self._misaligned:
            for aligned, buffers in (("true", self._aligned), ("false", self._misaligned)):
                yield Sample("spikewatch_nccl_buffers_total", (("aligned", aligned),), buffers)
        for version in self._versions:
            yield Sample("spikewatch_nccl_info", labels_of({"version": version}), 1.0)
        transports = self._routes.transports()
        for transport, channels in transports.items():
            yield Sample("spikewatch_nccl_channels", labels_of({"transport": transport}), channels)
        if transports:
            yield Sample("spikewatch_nccl_downgraded_routes", (), self._routes.downgraded())
        if self._init_seconds is not None:
            yield Sample("spikewatch_nccl_init_seconds", (), self._init_seconds)

    def progress(self, dumped: Mapping[int, tuple[int, int]]) -> Iterator[Sample]:
        """How far each rank had come when that was told last.

        `dumped`: rank → newest collective (enqueued, completed) as its flight recorder says; it wins over the log.
        """
        for rank, (enqueued, completed) in {**self._progress, **dumped}.items():
            labels = (("rank", str(rank)),)
            yield Sample("spikewatch_nccl_last_enqueued_collective", labels, enqueued)
            yield Sample("spikewatch_nccl_last_completed_collective", labels, completed)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part[:9]) for part in version.split(".") if part.isdigit())
