"""The past of a server with Prometheus's API as a source: the samples as scraped, chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sidecar import durations
from sidecar.errors import QueryError
from sidecar.history.api import QueryApi
from sidecar.history.source import SILENT_MS, Row
from sidecar.model import STALE, Labels

_MOST_STEPS = 10_000  # Prometheus refuses a range query of more than 11 000 points a series
_FIRST_MS, _SHORTEST_MS, _LONGEST_MS = 600_000, 60_000, 7_200_000
_MANY = 300_000  # samples of a chunk above which the next one is shorter


class RemoteHistory:
    """Reads what some selectors pick.

    A range selector asked at one instant gives samples with their own timestamps, so that rates come out as they were;
    but it leaves out the markers that end a series. So each chunk is also asked for at every step, where a series that
    is not there although its last sample is younger than the look-back has ended.
    """

    def __init__(self, api: QueryApi, selectors: Sequence[str], step_ms: int) -> None:
        """`step_ms` is how often rules are evaluated: an end is seen at the first multiple of it at which it shows."""
        self._api, self._selectors, self._step_ms = api, tuple(selectors), step_ms
        self._last: dict[Labels, int] = {}  # newest sample of the series that have not ended

    def extent(self) -> tuple[int, int] | None:
        """Unknown: it would take a query over everything."""
        return None

    def rows(self, start_ms: int, end_ms: int) -> Iterator[Row]:
        """The samples in [start, end], in order of time. Raises QueryError, RemoteError."""
        self._last.clear()
        after, length = start_ms - 1, _FIRST_MS
        longest = min(_LONGEST_MS, _MOST_STEPS * self._step_ms)
        while after < end_ms:
            length = max(min(length, longest), min(_SHORTEST_MS, longest))
            until = min(after + length, end_ms)
            try:
                rows = self._chunk(after, until)
            except QueryError:
                if length <= _SHORTEST_MS:
                    raise
                length //= 2  # perhaps only too much at once: an expression that cannot work fails again
                continue
            yield from rows
            after = until
            length = length // 2 if len(rows) > _MANY else length * 2 if len(rows) < _MANY // 4 else length

    def _chunk(self, after_ms: int, until_ms: int) -> list[Row]:
        """The samples in (after, until]."""
        samples: dict[Labels, dict[int, float]] = {}
        seen: dict[Labels, set[int]] = {}
        length = durations.text(until_ms - after_ms)
        step = self._step_ms
        first = after_ms // step * step + step
        for selector in self._selectors:
            for series in self._api.instant(f"{selector}[{length}]", until_ms).series:
                samples.setdefault(series.labels, {}).update(series.points)
            if first <= until_ms:
                for series in self._api.over(selector, first, until_ms, step).series:
                    seen.setdefault(series.labels, set()).update(t for t, _ in series.points)
        steps = range(first, until_ms + 1, step)
        rows: list[Row] = []
        for labels in {**dict.fromkeys(self._last), **samples}:
            there = samples.get(labels, {})
            times = sorted(there)
            rows += [(t, labels, there[t]) for t in times]
            rows += [(t, labels, STALE) for t in self._ends(labels, times, seen.get(labels, set()), steps)]
        rows.sort(key=lambda row: row[0])
        return rows

    def _ends(self, labels: Labels, times: Sequence[int], seen: set[int], steps: range) -> Iterator[int]:
        """The first step after each sample at which the series was not to be seen, though the sample was young."""
        last = self._last.pop(labels, None)
        position = 0
        for step in steps:
            while position < len(times) and times[position] <= step:
                last = times[position]
                position += 1
            if last is not None and step not in seen and step - last < SILENT_MS:
                if last != step:
                    yield step
                last = None
        if position < len(times):
            last = times[-1]
        if last is not None and (not steps or steps[-1] - last < SILENT_MS):
            self._last[labels] = last
