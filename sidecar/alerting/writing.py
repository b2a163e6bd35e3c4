"""Where results go: recorded series, ALERTS, ALERTS_FOR_STATE and the markers that end them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sidecar.hooks import Handle, Sink
from sidecar.model import STALE, Labels

Row = tuple[str, Labels, float]
"""Metric, labels without `__name__`, value; `model.STALE` ends the series."""

Write = Callable[[str, int, Iterable[Row]], None]
"""(producer, time in milliseconds, rows): the producer is the rule, whose rows of one instant belong together."""


class StoreWriter:
    """Writes rows into a Sink: one push a block and instant, places looked up once a series."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._handles: dict[tuple[str, Labels], Handle] = {}
        self.refused = 0  # rows lost to a limit on series, counted by the store too

    def __call__(self, producer: str, t_ms: int, rows: Iterable[Row]) -> None:
        blocks: dict[int, dict[int, float]] = {}
        ended: list[tuple[str, Labels]] = []
        for metric, labels, value in rows:
            key = (metric, labels)
            handle = self._handles.get(key)
            if handle is None:
                handle = self._sink.series(metric, dict(labels), producer)
                if handle is None:
                    self.refused += 1
                    continue
                self._handles[key] = handle
            blocks.setdefault(handle.block, {})[handle.column] = value
            if is_stale(value):
                ended.append(key)
        for block, values in blocks.items():
            self._sink.push(block, t_ms, values)
        for key in ended:  # an ended series may lose its place: ask anew when it comes back
            self._handles.pop(key, None)


def is_stale(value: float) -> bool:
    """Whether a value is the marker that we put there ourselves (the same object, so no bit pattern is compared)."""
    return value is STALE


def nowhere(producer: str, t_ms: int, rows: Iterable[Row]) -> None:
    """Writes nothing: for checks and tests that only look at alerts."""
