"""Quantiles of a moving window: of each series only the samples around the wanted rank are kept in order.

    below     how many samples are smaller than the band
    band      the samples between two values, sorted: the wanted ranks are among them
    the rest  larger, and not looked at

A sample outside the band changes a count. When the wanted rank drifts out of its band, or is about to, the band is
laid anew from the ring. A few series a tick go first, those nearest to the edge, so that series that drift together
are not all renewed in the same tick.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort

import numpy as np

from sidecar.promql.incremental.track import Accumulator, Track
from sidecar.store import cells
from sidecar.store.cells import F64, I64, Bools

_MARGIN = 32  # ranks kept on either side of the wanted ones
_RENEWED = 64  # one series in so many may be renewed before it must be
_CHECKED = 2  # at every second tick


class Ranks(Accumulator):
    """The state for one φ."""

    def __init__(self, track: Track, phi: float) -> None:
        super().__init__(track)
        self._phi = phi
        self._bands: list[array[float]] = []
        self._low: F64 = np.zeros(0)
        self._high: F64 = np.zeros(0)
        self._below: I64 = np.zeros(0, np.int64)
        self._inside: I64 = np.zeros(0, np.int64)  # the bands' lengths
        self._nans: I64 = np.zeros(0, np.int64)

    def rebuild(self) -> None:
        width = self.track.width
        self._bands = []
        self._low, self._high = np.zeros(0), np.zeros(0)
        self._below = self._inside = self._nans = np.zeros(0, np.int64)
        self.grow(width)
        rows = np.ascontiguousarray(self.track.part.rows(self.track.lo, self.track.hi))
        self._nans = (np.isnan(rows) & ~cells.absent(rows)).sum(axis=0)
        self._below = (~np.isnan(rows)).sum(axis=0)

    def grow(self, extra: int) -> None:
        """A new series has an empty band above everything: the first question lays it."""
        self._bands += [array("d") for _ in range(extra)]
        self._low = np.concatenate((self._low, np.full(extra, np.inf)))
        self._high = np.concatenate((self._high, np.full(extra, -np.inf)))
        none = np.zeros(extra, np.int64)
        self._below = np.concatenate((self._below, none))
        self._inside, self._nans = np.concatenate((self._inside, none)), np.concatenate((self._nans, none))

    def add(self, slot: int, row: F64, t_ms: int, valid: Bools | None) -> None:
        if valid is not None:
            row = np.where(valid, row, cells.MISSING)
        for j in self._count(row, 1):
            insort(self._bands[j], float(row[j]))

    def evict(self, slot: int) -> None:
        row = self.track.part.row(slot)
        for j in self._count(row, -1):
            band = self._bands[j]
            del band[bisect_left(band, float(row[j]))]

    def _count(self, row: F64, step: int) -> list[int]:
        """Counts a row in or out; which series have a sample inside their band."""
        below = row < self._low
        within = (row >= self._low) & (row <= self._high)
        self._below = self._below + step * below
        if np.isnan(row).any():
            self._nans = self._nans + step * (np.isnan(row) & ~cells.absent(row))
        found = np.flatnonzero(within)
        if len(found):
            self._inside[found] += step
        return found.tolist()

    def quantile(self) -> F64:
        """The φ-quantile by series; NaN samples sort first, and NaN where there is no sample."""
        track, phi = self.track, self._phi
        if phi != phi:
            return np.full(track.width, np.nan)
        if not 0 <= phi <= 1:
            return np.full(track.width, -np.inf if phi < 0 else np.inf)
        if track.uniform and track.live is None and not self._nans.any():
            return self._of_all(track.hi - track.lo)
        count = np.full(track.width, track.hi - track.lo) if track.uniform else track.n
        if track.uniform and track.live is not None:
            count = np.where(track.live, count, 0)
        rank = phi * (count - 1)
        low = np.floor(rank).astype(np.int64)
        high = np.minimum(count - 1, low + 1)
        first, last = low - self._nans, high - self._nans
        self._renew(first, last, count - self._nans, (count > 0) & (first >= 0))
        return self._values(rank - low, first - self._below, last - self._below, (count > 0) & (first >= 0))

    def _of_all(self, count: int) -> F64:
        """When every series has as many samples, all of them numbers."""
        rank = self._phi * (count - 1)
        low = int(rank)
        high = min(count - 1, low + 1)
        at = low - self._below
        if self.track.hi % _CHECKED == 0 or (at < 0).any() or (at + (high - low) >= self._inside).any():
            width = self.track.width
            self._renew(np.full(width, low), np.full(width, high), np.full(width, count), np.ones(width, bool))
            at = low - self._below
        places = at.tolist()
        below = np.array([band[i] for band, i in zip(self._bands, places, strict=True)])
        step = high - low  # also where the weight is 0: an infinite neighbour makes the result NaN, as in Prometheus
        above = np.array([band[i + step] for band, i in zip(self._bands, places, strict=True)])
        return below * (1 - (rank - low)) + above * (rank - low)

    def _renew(self, first: I64, last: I64, numbers: I64, asked: Bools) -> None:
        """Lays those bands anew that the ranks `first` to `last`, of so many `numbers`, have left or soon will."""
        to_low, to_high = first - self._below, self._below + self._inside - 1 - last
        due = asked & (np.minimum(to_low, to_high) < 0)
        if due.any():
            for j in np.flatnonzero(due).tolist():
                self._lay(j, int(first[j]), int(last[j]))
            return
        # where a band ends with the window there is nothing to drift into
        to_low[self._below == 0] = _MARGIN
        to_high[numbers == self._below + self._inside] = _MARGIN
        near = np.minimum(to_low, to_high)
        if near.min() < _MARGIN // 2:
            near = np.where(asked, near, _MARGIN)
            for j in np.argsort(near)[: len(near) // _RENEWED + 1].tolist():
                if near[j] < _MARGIN // 2:
                    self._lay(j, int(first[j]), int(last[j]))

    def _lay(self, series: int, first: int, last: int) -> None:
        track = self.track
        column = np.ascontiguousarray(track.part.rows(track.lo, track.hi)[:, series])
        values = column[~np.isnan(column)]
        # margins differ from series to series, or those that drift together would be due together
        margin = _MARGIN + series * 7 % _MARGIN
        start, end = max(first - margin, 0), min(last + margin, len(values) - 1)
        parted = np.partition(values, (start, end))
        low = float(parted[start]) if start else -np.inf
        high = float(parted[end]) if end < len(values) - 1 else np.inf
        band = np.sort(values[(values >= low) & (values <= high)])
        self._low[series], self._high[series] = low, high
        self._below[series], self._inside[series] = int((values < low).sum()), len(band)
        self._bands[series] = array("d", band.tobytes())

    def _values(self, weight: F64, at: I64, then: I64, known: Bools) -> F64:
        below, above = np.full(len(at), np.nan), np.full(len(at), np.nan)
        for j in np.flatnonzero(known).tolist():
            below[j], above[j] = self._bands[j][at[j]], self._bands[j][then[j]]
        return below * (1 - weight) + above * weight
