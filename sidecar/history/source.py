"""What gives samples of the past, and how they get into a store as time goes on."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Protocol

from sidecar.hooks import Handle, Sink
from sidecar.model import STALE, Labels

Row = tuple[int, Labels, float]
"""(time in milliseconds, labels with `__name__`, value); the value `STALE` ends the series."""

SILENT_MS = 300_000
"""Prometheus's look-back: after so long without a sample a series is over, whether or not a marker says so."""


class Source(Protocol):
    """Samples of the past."""

    def extent(self) -> tuple[int, int] | None:
        """The times of the first and the last sample; None where nobody knows without reading everything."""
        ...

    def rows(self, start_ms: int, end_ms: int) -> Iterator[Row]:
        """The samples in [start, end], in order of time. Raises ConfigError, QueryError, RemoteError."""
        ...


class Feed:
    """Puts rows into a sink, up to a time that only moves forward."""

    def __init__(self, sink: Sink, rows: Iterator[Row], without: Collection[str] = ()) -> None:
        """Rows of the metrics in `without` are left out: what is computed anew must not come from the past."""
        self._sink, self._rows, self._without = sink, rows, frozenset(without)
        self._next: Row | None = next(rows, None)
        self._places: dict[Labels, Handle] = {}
        self._last: dict[Labels, int] = {}  # time of the newest sample of the series that have not ended
        self._looked_ms = 0
        self.samples = 0
        self.refused = 0  # samples of series the sink had no room for

    def until(self, t_ms: int) -> None:
        """Every sample with a time up to `t_ms`."""
        while self._next is not None and self._next[0] <= t_ms:
            self._push(self._next[0])
        if t_ms - self._looked_ms >= SILENT_MS:
            self._looked_ms = t_ms
            self._end_silent(t_ms)

    def _push(self, at_ms: int) -> None:
        """All samples of one instant: one slot a block."""
        blocks: dict[int, dict[int, float]] = {}
        row = self._next
        while row is not None and row[0] == at_ms:
            _, labels, value = row
            handle = self._places.get(labels)
            if handle is None and value is not STALE:
                handle = self._place(labels)
            if handle is not None:
                blocks.setdefault(handle.block, {})[handle.column] = value
                self.samples += 1
                self._last[labels] = at_ms
                if value is STALE:
                    del self._last[labels], self._places[labels]
            row = next(self._rows, None)
        self._next = row
        for block, values in blocks.items():
            self._sink.push(block, at_ms, values)

    def _place(self, labels: Labels) -> Handle | None:
        rest = dict(labels)
        metric = rest.pop("__name__", "")
        if metric in self._without:
            return None
        # Series of one scrape share their timestamps, so they share a block; another target's have their own.
        handle = self._sink.series(metric, rest, f"{rest.get('job', '')}\0{rest.get('instance', '')}")
        if handle is None:
            self.refused += 1
        else:
            self._places[labels] = handle
        return handle

    def _end_silent(self, t_ms: int) -> None:
        """Ends series nothing was heard of for the look-back: no query sees the difference, and their room is freed."""
        silent = [labels for labels, last_ms in self._last.items() if t_ms - last_ms > SILENT_MS]
        blocks: dict[int, dict[int, float]] = {}
        for labels in silent:
            handle = self._places.pop(labels)
            del self._last[labels]
            blocks.setdefault(handle.block, {})[handle.column] = STALE
        for block, values in blocks.items():
            self._sink.push(block, t_ms, values)
