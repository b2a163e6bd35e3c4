"""A window as a front that crumbles and a tail that grows, so that nothing ever has to be subtracted.

    front: for each of its slots, everything from there to the front's end      (one merge per tick reads it)
    tail:  everything after the front, one slot added per tick
    panes: the tail again, in pieces of about the square root of the window

When the front is used up, the oldest pane becomes the new front and the remaining panes are merged into a new tail.
That costs two square roots of the window; the new front is worked out a few ticks before it is needed, so that no tick
pays for both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from math import isqrt

import numpy as np

from sidecar.promql.incremental.pile import Partial, Pile
from sidecar.promql.incremental.track import Accumulator, Track
from sidecar.store import cells
from sidecar.store.cells import F64, I64, Bools

_SHORTEST = 32  # below this the number of calls, not of samples, is what costs

_SOON = 4  # so many slots before the front is used up, what is in no pane yet is made one
_READY = 2  # so many before, the next front is worked out


class Fold(ABC):
    """How to summarise samples so that two summaries of neighbouring stretches make one."""

    @abstractmethod
    def suffixes(self, rows: F64, times: I64, valid: Bools | None) -> Partial:
        """Of each row and all after it, with a leading axis over rows."""

    @abstractmethod
    def whole(self, rows: F64, times: I64, valid: Bools | None) -> Partial:
        """Of all rows together."""

    @abstractmethod
    def push(self, partial: Partial, row: F64, t_ms: int, valid: Bools | None) -> Partial:
        """With one younger row."""

    @abstractmethod
    def merge(self, older: Partial, younger: Partial) -> Partial:
        """Of both."""

    @abstractmethod
    def merge_all(self, pile: Pile) -> Partial:
        """Of all in a pile; at least one."""

    @abstractmethod
    def grow(self, partial: Partial, width: int, extra: int, stacked: bool) -> Partial:
        """With `extra` more series that have no sample; `stacked` for what `suffixes` gave."""

    def pick(self, suffixes: Partial, i: int) -> Partial:
        """One row of `suffixes`."""
        return tuple(component[i] for component in suffixes)


class Folded(Accumulator):
    """A fold over a track's window."""

    def __init__(self, track: Track, fold: Fold, stagger: int = 0) -> None:
        """`stagger` spreads the ticks at which the folds of a window renew their front."""
        super().__init__(track)
        self._fold, self._stagger = fold, stagger
        self._front: Partial | None = None
        self._front_from = self._front_to = 0
        self._next: tuple[tuple[int, int], Partial] | None = None  # the oldest pane as a front
        self._tail: Partial | None = None
        self._panes: deque[tuple[int, int]] = deque()  # (from, to), oldest first
        self._pile = Pile()  # what is in them
        self._open_from = 0  # slots from here on are in no pane yet
        self._close_at = 0  # at this slot at the latest they become one

    def rebuild(self) -> None:
        track = self.track
        self._front, self._tail, self._next = None, None, None
        self._panes.clear()
        self._pile = Pile()
        self._front_from = self._front_to = self._open_from = track.lo
        length = self._length()
        self._close_at = track.hi + 2 * length
        if track.hi == track.lo:
            return
        at, to = track.lo, track.lo + 1 + self._stagger % length
        while to <= track.hi:
            self._add_pane(at, to)
            at, to = to, to + length
        self._open_from = at
        self._renew()

    def add(self, slot: int, row: F64, t_ms: int, valid: Bools | None) -> None:
        if self._tail is None:
            self._tail = self._one(row, t_ms, valid)
        else:
            self._tail = self._fold.push(self._tail, row, t_ms, valid)
        if slot >= self._close_at:
            self._close(slot + 1)

    def add_late(self, slot: int, row: F64, t_ms: int, valid: Bools) -> None:
        if slot < self._front_to or slot < self._open_from:
            self._patch(slot)
        elif self._tail is not None:
            self._tail = self._fold.push(self._tail, row, t_ms, valid)

    def _one(self, row: F64, t_ms: int, valid: Bools | None) -> Partial:
        return self._fold.whole(row[None, :], np.array([t_ms]), None if valid is None else valid[None, :])

    def _patch(self, slot: int) -> None:
        """A sample was added late to a slot that is in the front or in a pane already."""
        if slot < self._front_to:
            self._front_from = self.track.lo
            self._front = self._suffixes(self._front_from, self._front_to)
            return
        self._next = None
        start, to = self._panes.pop()
        self._pile.drop_youngest()
        self._add_pane(start, to)
        self._retail()

    def _add_pane(self, start: int, to: int) -> None:
        self._panes.append((start, to))
        self._pile.append(self._fold.whole(*self._samples(start, to)))

    def _close(self, to: int) -> None:
        """What is in no pane yet becomes one."""
        self._add_pane(self._open_from, to)
        self._open_from = to
        self._close_at = to + 2 * self._length()

    def _length(self) -> int:
        return max(_SHORTEST, isqrt(self.track.hi - self.track.lo))

    def evict(self, slot: int) -> None:
        left = self._front_to - slot - 1
        if left <= 0:
            self._renew()
        elif left == _SOON and 2 * (self.track.hi - self._open_from) >= self._length():
            # renewing the front is the costliest tick: what it would have to go through beside is closed before
            self._close(self.track.hi)
        elif left == _READY and self._panes and self._panes[0][0] == self._front_to:
            self._next = self._panes[0], self._suffixes(*self._panes[0])

    def _renew(self) -> None:
        """The next pane, or what is in none yet, becomes the front."""
        track = self.track
        while self._panes and self._panes[0][1] <= track.lo:
            self._drop_oldest()
        ready, self._next = self._next, None
        if self._panes and ready is not None and ready[0] == self._panes[0]:
            self._front_from, self._front = ready[0][0], ready[1]
            self._front_to = self._drop_oldest()
            self._retail()
            return
        if self._panes:
            self._front_to = self._drop_oldest()
        else:
            self._front_to = self._open_from = track.hi
            self._close_at = track.hi + 2 * self._length()
        self._front_from = track.lo
        self._front = self._suffixes(track.lo, self._front_to) if self._front_to > track.lo else None
        self._retail()

    def _drop_oldest(self) -> int:
        self._pile.drop_oldest()
        return self._panes.popleft()[1]

    def _retail(self) -> None:
        """The tail anew: the panes, and what is in none yet."""
        hi = max(self.track.hi, self._open_from)
        tail = None
        if self._panes:
            tail = self._pile.only() if len(self._panes) == 1 else self._fold.merge_all(self._pile)
        if self._open_from < hi:
            rest = self._fold.whole(*self._samples(self._open_from, hi))
            tail = rest if tail is None else self._fold.merge(tail, rest)
        self._tail = tail

    def _suffixes(self, low: int, high: int) -> Partial:
        return self._fold.suffixes(*self._samples(low, high))

    def _samples(self, low: int, high: int) -> tuple[F64, I64, Bools | None]:
        part = self.track.part
        rows = np.ascontiguousarray(part.rows(low, high))
        valid = ~cells.absent(rows)
        return rows, part.block.times_of(low, high), None if valid.all() else valid

    def grow(self, extra: int) -> None:
        before = self.track.width - extra
        self._next = None
        if self._front is not None:
            self._front = self._fold.grow(self._front, before, extra, True)
        if self._tail is not None:
            self._tail = self._fold.grow(self._tail, before, extra, False)
        self._pile.grow(lambda all_of_them: self._fold.grow(all_of_them, before, extra, True))

    def value(self) -> Partial | None:
        """The summary of the whole window, None when it is empty."""
        if self.track.lo == self.track.hi:
            return None
        if self._front is None or self.track.lo >= self._front_to:
            return self._tail
        front = self._fold.pick(self._front, self.track.lo - self._front_from)
        return front if self._tail is None else self._fold.merge(front, self._tail)
