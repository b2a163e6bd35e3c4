"""What the Inspector's records and the flight recorder's dumps add up to: times, waits, rows of slow collectives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from sidecar.collectors.nccl import flightrecorder, inspector
from sidecar.collectors.nccl.events import Event
from sidecar.collectors.nccl.logbook import operation
from sidecar.collectors.nccl.waits import Waits
from sidecar.model import Sample

_FRESH_MS = 10_000  # how long the newest wait stays: longer than the Inspector's usual pause between dumps
_KEYS = 4096  # (rank, op) pairs

_Key = tuple[int, str]


class Timings:
    """Follows the ranks of this pod."""

    def __init__(self, limit_seconds: float) -> None:
        self._limit = limit_seconds
        self._waits = Waits(limit_seconds)
        self._calls: Counter[_Key] = Counter()
        self._bytes: Counter[_Key] = Counter()
        self._seconds: dict[_Key, float] = {}
        self._waited: dict[_Key, float] = {}
        self._newest: dict[_Key, tuple[int, float]] = {}  # (rank, op) → when, longest wait
        self.unmatched = 0
        self.slow_rows = 0  # the longest row of slow collectives at the last sample

    def see(self, lines: int, found: Iterable[Event], now_ms: int) -> None:
        """The records among `lines` lines of the Inspector."""
        for event in found:
            lines -= 1
            record = event.body
            if isinstance(record, inspector.CollectiveTiming):
                if self._counted(record):
                    self._waits.add(record.comm, record.op, record.sequence, record.rank, record.seconds, now_ms)
            elif isinstance(record, inspector.PointToPointTiming):
                self._counted(record)  # nobody else takes part in it: what it waited is not told by comparing
        self.unmatched += max(0, lines)

    def _counted(self, record: inspector.CollectiveTiming | inspector.PointToPointTiming) -> bool:
        if record.timing_source not in inspector.KERNEL_SOURCES:
            self.unmatched += 1
            return False
        key = (record.rank, record.op)
        if key not in self._calls and len(self._calls) >= _KEYS:
            return False
        self._calls[key] += 1
        self._bytes[key] += record.size_bytes
        self._seconds[key] = self._seconds.get(key, 0.0) + record.seconds
        return True

    def dumped(self, rank: int, entries: Iterable[flightrecorder.Entry], now_ms: int) -> None:
        """The entries of one rank's dump that carry times."""
        for entry in entries:
            if entry.seconds is not None and not entry.point_to_point and entry.state == "completed":
                op = operation(entry.op)
                self._waits.add(f"group {entry.group}", op, entry.sequence, rank, entry.seconds, now_ms)

    def samples(self, now_ms: int) -> Iterator[Sample]:
        """What is known now; nothing of what no record told."""
        for wait in self._waits.settle(now_ms):
            key = (wait.rank, wait.op)
            self._waited[key] = self._waited.get(key, 0.0) + wait.wait_seconds
            when, longest = self._newest.get(key, (0, 0.0))
            self._newest[key] = (now_ms, max(longest, wait.wait_seconds) if when == now_ms else wait.wait_seconds)
        self._newest = {key: seen for key, seen in self._newest.items() if now_ms - seen[0] <= _FRESH_MS}
        yield Sample("spikewatch_nccl_wait_limit_seconds", (), self._limit)
        for key, calls in self._calls.items():
            yield _sample("collectives_total", key, calls)
            yield _sample("collective_seconds_total", key, self._seconds[key])
            yield _sample("collective_bytes_total", key, self._bytes[key])
        for key, waited in self._waited.items():
            yield _sample("collective_waited_seconds_total", key, waited)
        for key, (_, longest) in self._newest.items():
            yield _sample("collective_wait_seconds", key, longest)
        rows = self._waits.consecutive()
        self.slow_rows = max(rows.values(), default=0)
        for op, row in rows.items():
            yield Sample("spikewatch_nccl_slow_collectives_consecutive", (("op", op),), row)


def _sample(name: str, key: _Key, value: float) -> Sample:
    return Sample(f"spikewatch_nccl_{name}", (("op", key[1]), ("rank", str(key[0]))), value)
