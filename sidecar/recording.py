"""From samples to the sink: one series handle per series, one slot per block and tick, an end for what vanished."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sidecar.hooks import Handle, Sink
from sidecar.model import STALE, Labels, Sample

_Key = tuple[str, Labels]


class Recorder:
    """Writes one producer's samples. Holds a handle for each series of the newest tick and nothing older.

    `refused` counts samples the sink had no room for, `duplicates` samples whose series came twice in one tick
    (the last one counts).
    """

    def __init__(self, sink: Sink, producer: str) -> None:
        """`producer` keeps apart the blocks of two sources of the same metric: each block has its own timestamps."""
        self._sink = sink
        self._producer = producer
        self._handles: dict[_Key, Handle] = {}
        # The newest tick: metric, labels, block, column. None: it says nothing about the next.
        self._order: list[tuple[str, Labels, int, int]] | None = None
        self.refused = 0
        self.duplicates = 0

    def __len__(self) -> int:
        """Series of the newest tick."""
        return len(self._handles)

    def record(self, samples: Iterable[Sample], t_ms: int) -> None:
        """Everything seen at `t_ms`. A series of the previous tick that is not among it ends here."""
        found = samples if isinstance(samples, list | tuple) else list(samples)
        slots = self._again(found)
        if slots is None:
            slots = self._place_all(found)
        for block, values in slots.items():
            self._sink.push(block, t_ms, values)

    def _again(self, samples: Sequence[Sample]) -> dict[int, dict[int, float]] | None:
        """The slots where the same series came as the last time, in the same order, as they mostly do; else None.

        To compare labels costs a tenth of what it costs to look them up: nothing remembers the hash of a tuple.
        """
        if self._order is None or len(samples) != len(self._order):
            return None
        slots: dict[int, dict[int, float]] = {}
        for (metric, labels, block, column), sample in zip(self._order, samples, strict=True):
            if sample.labels != labels or sample.metric != metric:
                return None
            slot = slots.get(block)
            if slot is None:
                slot = slots[block] = {}
            slot[column] = sample.value
        return slots

    def _place_all(self, samples: Sequence[Sample]) -> dict[int, dict[int, float]]:
        slots: dict[int, dict[int, float]] = {}
        order: list[tuple[str, Labels, int, int]] = []
        present: dict[_Key, Handle] = {}
        for sample in samples:
            key = (sample.metric, sample.labels)
            if key in present:
                self.duplicates += 1
            handle = present.get(key) or self._handles.get(key) or self._place(sample)
            if handle is None:
                self.refused += 1
                continue
            present[key] = handle
            order.append((*key, handle.block, handle.column))
            slots.setdefault(handle.block, {})[handle.column] = sample.value
        for key, handle in self._handles.items():
            if key not in present:
                slots.setdefault(handle.block, {})[handle.column] = STALE
        self._handles = present
        # With a series twice, or one without a place, every tick is counted anew.
        self._order = order if len(present) == len(samples) else None
        return slots

    def end(self, t_ms: int) -> None:
        """Ends every series: nothing is known any more."""
        self.record((), t_ms)

    def _place(self, sample: Sample) -> Handle | None:
        return self._sink.series(sample.metric, dict(sample.labels), self._producer)
