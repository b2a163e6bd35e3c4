"""One window over the series of one block: which slots are inside, and per series its first and last sample.

While every slot inside has samples of the same series, plain numbers say it all (`uniform`). As soon as the pattern
breaks, arrays by series take over, until the break has left the window.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from sidecar.promql.selection import Part
from sidecar.store import cells
from sidecar.store.cells import F64, I64, Bools

_LONG_AGO = -(1 << 62)


class Accumulator(ABC):
    """What a function needs to know about the window, kept up to date sample by sample."""

    def __init__(self, track: Track) -> None:
        self.track = track

    @abstractmethod
    def rebuild(self) -> None:
        """Takes the window [track.lo, track.hi) from the ring; what was known before is void."""

    @abstractmethod
    def add(self, slot: int, row: F64, t_ms: int, valid: Bools | None) -> None:
        """Takes in the samples of `row` where `valid`; called before the track counts them."""

    def add_late(self, slot: int, row: F64, t_ms: int, valid: Bools) -> None:
        """Takes in more samples of the newest slot inside, of the series in `valid` only."""
        self.add(slot, row, t_ms, valid)

    def evict(self, slot: int) -> None:  # noqa: B027 - most windows can forget without being told
        """A slot has left; the track no longer counts it."""

    def grow(self, extra: int) -> None:  # noqa: B027
        """Series without any sample in the window were appended."""


class Track:
    """Slots [lo, hi) are inside the window. Times never go back; a track that lags behind the ring rebuilds."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.lo = self.hi = part.block.first
        self.end_ms = _LONG_AGO
        self.width = 0
        self.accumulators: dict[str, Accumulator] = {}
        self.uniform = True
        self.live: Bools | None = None  # while uniform: the series that have samples, None for all
        self.n: I64 = np.zeros(0, np.int64)  # while not uniform, by series: samples, first, last and last but one
        self.first = self.last = self.before = self.n
        self._gaps: dict[int, list[tuple[int, int]]] = {}  # slot → (series, its next slot) where that is not slot + 1
        self._pattern: Bools | None = None  # series with a sample in the newest slot inside
        self._broken_at = 0  # the newest slot whose pattern differs from the one before
        self._generation = -1
        self._merges = 0
        self._odd: dict[int, int] = {}  # series → the newest slot known to hold an infinite or NaN sample of it

    # --- moving ----------------------------------------------------------------------------------------------------

    def advance(self, start_ms: int, end_ms: int) -> None:
        """Moves the window to (start, end]; `end_ms` must not go back."""
        part, block = self.part, self.part.block
        self.end_ms = end_ms
        times, size = block.times, len(block.times)
        if (
            self._generation != part.generation
            or self.lo < block.first
            or (self.hi > self.lo and times[(self.hi - 1) % size] <= start_ms)
            or block.merge_count - self._merges > len(block.merges)
        ):
            self._rebuild(start_ms, end_ms)
            return
        if len(part.labels) > self.width:
            self._grow(len(part.labels))
        if block.merge_count != self._merges:
            self._take_late()
        high = block.upto(end_ms)
        while self.hi < high:
            self._add(self.hi)
        while self.lo < self.hi and times[self.lo % size] <= start_ms:
            self._evict()

    def _rebuild(self, start_ms: int, end_ms: int) -> None:
        part, block = self.part, self.part.block
        self._generation, self._merges = part.generation, block.merge_count
        self.width = len(part.labels)
        self.lo = max(block.upto(start_ms), block.first)
        self.hi = max(block.upto(end_ms), self.lo)
        self._gaps, self._odd = {}, {}
        self._pattern = part.valid(self.hi - 1) if self.hi > self.lo else None
        there = ~cells.absent(np.ascontiguousarray(part.rows(self.lo, self.hi)))
        changes = np.flatnonzero((there[1:] != there[:-1]).any(axis=1))
        self._broken_at = self.lo + 1 + int(changes[-1]) if len(changes) else self.lo
        self.uniform = not len(changes)
        self.live = self._pattern
        if not self.uniform:
            self._ragged_from(there)
        for accumulator in self.accumulators.values():
            accumulator.rebuild()

    def _ragged_from(self, there: Bools) -> None:
        self.n, self.first, self.last, self.before = (np.zeros(self.width, np.int64) for _ in range(4))
        self.n += there.sum(axis=0)
        for j in range(self.width):
            slots = (np.flatnonzero(there[:, j]) + self.lo).tolist()
            if slots:
                self.first[j], self.last[j], self.before[j] = slots[0], slots[-1], slots[-2:][0]
            for a, b in zip(slots, slots[1:], strict=False):
                if b != a + 1:
                    self._gaps.setdefault(a, []).append((j, b))

    def _grow(self, width: int) -> None:
        extra = width - self.width
        none = np.zeros(extra, bool)
        if self.uniform and self.hi > self.lo:
            self.live = np.concatenate((np.ones(self.width, bool) if self.live is None else self.live, none))
            self._pattern = self.live
        elif self.hi > self.lo:
            self._pattern = np.concatenate(
                (np.ones(self.width, bool) if self._pattern is None else self._pattern, none)
            )
        zeros = np.zeros(extra, np.int64)
        self.n, self.first, self.last, self.before = (
            np.concatenate((a, zeros)) for a in (self.n, self.first, self.last, self.before)
        )
        self.width = width
        for accumulator in self.accumulators.values():
            accumulator.grow(extra)

    def _take_late(self) -> None:
        """Samples added to the newest slot inside after it was taken in."""
        part, block = self.part, self.part.block
        missed = block.merge_count - self._merges
        self._merges = block.merge_count
        extra = np.zeros(self.width, bool)
        for i in range(len(block.merges) - missed, len(block.merges)):
            slot, columns = block.merges[i]
            if self.lo <= slot < self.hi:
                extra[[part.position[c] for c in columns if c in part.position]] = True
        slot = self.hi - 1
        if not extra.any():
            return
        row = part.row(slot)
        extra &= ~cells.absent(row)
        if extra.any():
            if self.uniform:
                self._break(slot)
            self._pattern, self._broken_at = part.valid(slot), slot
            for accumulator in self.accumulators.values():
                accumulator.add_late(slot, row, int(block.times[slot % len(block.times)]), extra)
            self._count(slot, extra)

    def _add(self, slot: int) -> None:
        row, valid = self.part.row(slot), self.part.valid(slot)
        t_ms = int(self.part.block.times[slot % len(self.part.block.times)])
        if self.lo == slot:
            self.uniform, self.live, self._gaps = True, valid, {}
        elif valid is not self._pattern and self._differs(valid):
            if self.uniform:
                self._break(slot)
            self._broken_at = slot
        self._pattern = valid
        for accumulator in self.accumulators.values():
            accumulator.add(slot, row, t_ms, valid)
        if not self.uniform:
            self._count(slot, np.ones(self.width, bool) if valid is None else valid)
        self.hi = slot + 1

    def _differs(self, valid: Bools | None) -> bool:
        pattern = self._pattern
        return valid is None or pattern is None or bool((valid != pattern).any())

    def _break(self, slot: int) -> None:
        """From plain numbers to arrays, for the slots before `slot` or, if it is inside already, up to it."""
        self.uniform = False
        live = np.ones(self.width, bool) if self.live is None else self.live
        self.n = np.where(live, self.hi - self.lo, 0)
        self.first = np.full(self.width, self.lo)
        self.last = np.full(self.width, self.hi - 1)
        self.before = np.full(self.width, max(self.hi - 2, self.lo))
        self._gaps = {}

    def _count(self, slot: int, valid: Bools) -> None:
        known = self.n > 0
        for j in np.flatnonzero(valid & known & (self.last < slot - 1)).tolist():
            self._gaps.setdefault(int(self.last[j]), []).append((j, slot))
        self.before = np.where(valid, np.where(known, self.last, slot), self.before)
        self.first = np.where(valid & ~known, slot, self.first)
        self.last = np.where(valid, slot, self.last)
        self.n = self.n + valid

    def _evict(self) -> None:
        slot = self.lo
        self.lo = slot + 1
        if not self.uniform:
            gone = ~cells.absent(self.part.row(slot))
            self.n = self.n - gone
            self.first = np.where(gone, slot + 1, self.first)
            for j, following in self._gaps.pop(slot, ()):
                self.first[j] = following
        for accumulator in self.accumulators.values():
            accumulator.evict(slot)
        if not self.uniform and (self.lo >= self._broken_at or self.lo == self.hi):
            self.uniform, self.live, self._gaps = True, self._pattern, {}

    # --- reading ---------------------------------------------------------------------------------------------------

    def count(self) -> int | I64:
        """Samples inside: a plain number while uniform, else by series."""
        return self.hi - self.lo if self.uniform else self.n

    def having(self, least: int) -> Bools | None:
        """The series with at least so many samples inside, None when all have."""
        if self.uniform:
            return self.live if self.hi - self.lo >= least else np.zeros(self.width, bool)
        return self.n >= least

    def values_at(self, slots: int | I64) -> F64:
        """The samples of one slot, or of one slot each."""
        if isinstance(slots, int):
            return self.part.row(slots)
        return self.part.cells(slots, np.arange(self.width))

    def first_slot(self) -> int | I64:
        """Where the first sample inside is."""
        return self.lo if self.uniform else self.first

    def last_slot(self) -> int | I64:
        """Where the last sample inside is."""
        return self.hi - 1 if self.uniform else self.last

    def before_slot(self) -> int | I64:
        """Where the last but one sample inside is, for series that have two."""
        return self.hi - 2 if self.uniform else self.before

    def ms_at(self, slots: int | I64) -> int | I64:
        """The times of slots."""
        times = self.part.block.times
        if isinstance(slots, int):
            return int(times[slots % len(times)])
        found: I64 = times[slots % len(times)]
        return found

    def odd_sample_inside(self, series: int) -> bool:
        """Whether an infinite or NaN sample of a series is inside; reads the window only when it may be news."""
        if self._odd.get(series, -1) >= self.lo:
            return True
        column = np.ascontiguousarray(self.part.rows(self.lo, self.hi)[:, series])
        odd = np.flatnonzero(~np.isfinite(column) & ~cells.absent(column))
        if not len(odd):
            return False
        self._odd[series] = self.lo + int(odd[-1])
        return True
