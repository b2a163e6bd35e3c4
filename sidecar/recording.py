"""From samples to the sink: one series handle per series, one slot per block and tick, an end for what vanished."""

from __future__ import annotations

from collections.abc import Iterable

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
        self.refused = 0
        self.duplicates = 0

    def __len__(self) -> int:
        """Series of the newest tick."""
        return len(self._handles)

    def record(self, samples: Iterable[Sample], t_ms: int) -> None:
        """Everything seen at `t_ms`. A series of the previous tick that is not among it ends here."""
        slots: dict[int, dict[int, float]] = {}
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
            slots.setdefault(handle.block, {})[handle.column] = sample.value
        for key, handle in self._handles.items():
            if key not in present:
                slots.setdefault(handle.block, {})[handle.column] = STALE
        for block, values in slots.items():
            self._sink.push(block, t_ms, values)
        self._handles = present

    def end(self, t_ms: int) -> None:
        """Ends every series: nothing is known any more."""
        self.record((), t_ms)

    def _place(self, sample: Sample) -> Handle | None:
        return self._sink.series(sample.metric, dict(sample.labels), self._producer)
