"""The samples of each series of a window in order of size, for quantiles."""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort

import numpy as np

from sidecar.promql.incremental.track import Accumulator, Track
from sidecar.store import cells
from sidecar.store.cells import F64, Bools


class Ranks(Accumulator):
    """A sorted array by series, NaN counted apart. The only window state whose cost is Python per series."""

    def __init__(self, track: Track) -> None:
        super().__init__(track)
        self._sorted: list[array[float]] = []
        self._nans: list[int] = []

    def rebuild(self) -> None:
        track = self.track
        rows = np.ascontiguousarray(track.part.rows(track.lo, track.hi))
        self._sorted = [array("d") for _ in range(track.width)]
        self._nans = [0] * track.width
        if not len(rows):
            return
        there = ~cells.absent(rows)
        nans = np.isnan(rows)
        self._nans = (nans & there).sum(axis=0).tolist()
        for j in range(track.width):
            self._sorted[j] = array("d", np.sort(rows[~nans[:, j], j]).tobytes())

    def add(self, slot: int, row: F64, valid: Bools | None) -> None:
        if valid is None and not np.isnan(row).any():
            for ranked, value in zip(self._sorted, row.tolist(), strict=True):
                insort(ranked, value)
            return
        for j in range(len(row)) if valid is None else np.flatnonzero(valid).tolist():
            value = float(row[j])
            if value == value:
                insort(self._sorted[j], value)
            else:
                self._nans[j] += 1

    def evict(self, slot: int) -> None:
        row = self.track.part.row(slot)
        if not np.isnan(row).any():
            for ranked, value in zip(self._sorted, row.tolist(), strict=True):
                del ranked[bisect_left(ranked, value)]
            return
        there = ~cells.absent(row)
        for j in np.flatnonzero(there).tolist():
            value = float(row[j])
            if value == value:
                del self._sorted[j][bisect_left(self._sorted[j], value)]
            else:
                self._nans[j] -= 1

    def grow(self, extra: int) -> None:
        self._sorted += [array("d") for _ in range(extra)]
        self._nans += [0] * extra

    def quantile(self, phi: float) -> F64:
        """The φ-quantile by series; NaN samples sort first, and NaN where there is no sample."""
        width = self.track.width
        if phi != phi:
            return np.full(width, np.nan)
        if not 0 <= phi <= 1:
            return np.full(width, -np.inf if phi < 0 else np.inf)
        track = self.track
        if track.uniform and track.live is None and not any(self._nans):
            rank = phi * (track.hi - track.lo - 1)
            low = int(rank)
            high, weight = min(track.hi - track.lo - 1, low + 1), rank - low
            below = np.array([ranked[low] for ranked in self._sorted])
            return below * (1 - weight) + np.array([ranked[high] for ranked in self._sorted]) * weight
        return np.array([_quantile(r, k, phi) for r, k in zip(self._sorted, self._nans, strict=True)])


def _quantile(ranked: array[float], nans: int, phi: float) -> float:
    count = len(ranked) + nans
    if not count:
        return float("nan")
    rank = phi * (count - 1)
    low = int(rank)
    high = min(count - 1, low + 1)
    if low < nans:
        return float("nan")
    weight = rank - low
    return ranked[low - nans] * (1 - weight) + ranked[high - nans] * weight
