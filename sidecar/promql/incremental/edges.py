"""What happens between neighbouring samples of a window: counter resets, how many, and how many changes."""

from __future__ import annotations

from collections import deque

import numpy as np

from sidecar.promql.incremental.track import Accumulator, Track
from sidecar.store import cells
from sidecar.store.cells import F64, Bools


class Pairs(Accumulator):
    """Looks at each pair of neighbouring samples once when it enters and once when it leaves."""

    def rebuild(self) -> None:
        track, part = self.track, self.track.part
        self.clear()
        if track.hi - track.lo < 2:
            return
        rows = np.ascontiguousarray(part.rows(track.lo, track.hi))
        if track.uniform:
            for i in range(1, len(rows)):
                self.entered(track.lo + i, rows[i - 1], rows[i], track.live)
            return
        there = ~cells.absent(rows)
        last, seen = rows[0], there[0]
        for i in range(1, len(rows)):
            self.entered(track.lo + i, last, rows[i], seen & there[i])
            last, seen = np.where(there[i], rows[i], last), seen | there[i]

    def add(self, slot: int, row: F64, t_ms: int, valid: Bools | None) -> None:
        track = self.track
        if track.lo >= track.hi and slot == track.lo:
            return
        if track.uniform:
            self.entered(slot, track.part.row(slot - 1), row, track.live)
            return
        both = track.n > 0 if valid is None else valid & (track.n > 0)
        self.entered(slot, track.values_at(track.last), row, both)

    def evict(self, slot: int) -> None:
        track = self.track
        if track.lo >= track.hi:
            self.clear()
            return
        if track.uniform:
            if self.touched(track.lo):
                self.left(track.part.row(slot), track.part.row(track.lo), track.live)
            return
        row = track.part.row(slot)
        both = ~cells.absent(row) & (track.n > 0)
        self.left(row, track.values_at(np.where(both, track.first, track.lo)), both)

    def touched(self, slot: int) -> bool:
        """Whether the pair that ends in `slot` may matter, in a uniform window."""
        return True

    def clear(self) -> None:
        """Forgets everything: the window holds no pair."""
        raise NotImplementedError

    def entered(self, slot: int, before: F64, after: F64, valid: Bools | None) -> None:
        """A pair of samples, the younger in `slot`, came in for the series in `valid`."""
        raise NotImplementedError

    def left(self, before: F64, after: F64, valid: Bools | None) -> None:
        """A pair of samples went out."""
        raise NotImplementedError


class Resets(Pairs):
    """How much counters lost by restarting: the sum of the values before each reset."""

    def __init__(self, track: Track) -> None:
        super().__init__(track)
        self.lost: F64 | None = None  # None: no reset inside
        self._rest: F64 = np.zeros(0)
        self._slots: deque[int] = deque()  # where the younger sample of a pair with any reset is

    def clear(self) -> None:
        self.lost = None
        self._slots.clear()

    def entered(self, slot: int, before: F64, after: F64, valid: Bools | None) -> None:
        fell = after < before
        if valid is not None:
            fell &= valid
        if fell.any():
            self._slots.append(slot)
            self._add(np.where(fell, before, 0.0))

    def _add(self, amount: F64) -> None:
        if self.lost is None:
            self.lost, self._rest = np.zeros(len(amount)), np.zeros(len(amount))
        after = self.lost + amount
        part = after - self.lost
        self._rest = self._rest + ((self.lost - (after - part)) + (amount - part))
        self.lost = after

    def touched(self, slot: int) -> bool:
        while self._slots and self._slots[0] < slot:
            self._slots.popleft()
        if not self._slots:
            self.lost = None
        return bool(self._slots) and self._slots[0] == slot

    def left(self, before: F64, after: F64, valid: Bools | None) -> None:
        if self.lost is None:
            return
        if self.track.uniform:
            self._slots.popleft()
        fell = after < before
        if valid is not None:
            fell &= valid
        if not fell.any():
            return
        if self.track.uniform and not self._slots:
            self.lost = None
            return
        large = np.abs(self.lost)
        self._add(np.where(fell, -before, 0.0))
        # what is left over of a much larger number may be rounding: count again
        if not (np.abs(self.lost) >= large * 1e-9).all():
            self.rebuild()

    def increase(self, first: F64, last: F64) -> F64:
        """From first to last sample with what was lost put back; rounded once, at the end."""
        change = last - first
        if self.lost is None:
            return change
        part = change - last
        rounded = (last - (change - part)) - (first + part)
        whole = change + self.lost
        part = whole - change
        rounded = rounded + ((change - (whole - part)) + (self.lost - part)) + self._rest
        return whole + np.where(np.isfinite(whole), rounded, 0.0)

    def grow(self, extra: int) -> None:
        if self.lost is not None:
            self.lost = np.concatenate((self.lost, np.zeros(extra)))
            self._rest = np.concatenate((self._rest, np.zeros(extra)))


class Count(Pairs):
    """How many pairs are a change, or a reset."""

    def __init__(self, track: Track, resets: bool) -> None:
        super().__init__(track)
        self._resets = resets
        self.number: F64 = np.zeros(track.width)

    def clear(self) -> None:
        self.number = np.zeros(self.track.width)

    def _happened(self, before: F64, after: F64, valid: Bools | None) -> Bools:
        found: Bools
        if self._resets:
            found = after < before
        else:
            found = (after != before) & ((after == after) | (before == before))
        return found if valid is None else found & valid

    def entered(self, slot: int, before: F64, after: F64, valid: Bools | None) -> None:
        self.number = self.number + self._happened(before, after, valid)

    def left(self, before: F64, after: F64, valid: Bools | None) -> None:
        self.number = self.number - self._happened(before, after, valid)

    def grow(self, extra: int) -> None:
        self.number = np.concatenate((self.number, np.zeros(extra)))
