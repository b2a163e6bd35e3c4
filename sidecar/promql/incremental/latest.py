"""Instant selectors that remember: the newest sample of each series, brought up to date by the slots that came in."""

from __future__ import annotations

import numpy as np

from sidecar.promql.selection import Part
from sidecar.promql.window import newest
from sidecar.store import cells
from sidecar.store.cells import F64, I64, Bools

_LONG_AGO = -(1 << 62)


class Latest:
    """The newest cell of each series of one block at a time that never goes back."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.end_ms = _LONG_AGO
        self._hi = -1
        self._generation = self._merges = -1
        self._values: F64 = cells.empty(0)
        self._when: int | I64 = 0  # by series, or one time for all

    def advance(self, t_ms: int, lookback_ms: int) -> tuple[F64, int | I64, Bools | None]:
        """Values, sample times and which series have one in (t - lookback, t], None for all.

        The values may be a view of the ring: read them before the next push.
        """
        part, block = self.part, self.part.block
        self.end_ms = t_ms
        high = block.upto(t_ms)
        if (
            self._generation != part.generation
            or len(self._values) != len(part.labels)
            or self._hi < block.first
            or high - self._hi > 64
        ):
            self._generation, self._merges, self._hi = part.generation, block.merge_count, high
            self._values, self._when, mask = newest(part, t_ms, lookback_ms)
            return self._values, self._when, None if mask.all() else mask
        if self._merges != block.merge_count:
            self._merges = block.merge_count
            if self._hi > block.first:
                self._take(self._hi - 1)
        for slot in range(self._hi, high):
            self._take(slot)
        self._hi = high
        return self._values, self._when, self._present(t_ms - lookback_ms)

    def _take(self, slot: int) -> None:
        block = self.part.block
        row, t_ms = self.part.row(slot), int(block.times[slot % len(block.times)])
        gaps = cells.missing(row)
        if gaps.any():
            self._when = np.where(gaps, self._when, t_ms)
            self._values = np.where(gaps, self._values, row)
        else:
            self._values, self._when = row, t_ms

    def _present(self, after_ms: int) -> Bools | None:
        there = ~cells.absent(self._values)
        if isinstance(self._when, int):
            if self._when <= after_ms:
                return np.zeros(len(there), bool)
        else:
            there &= self._when > after_ms
        return None if there.all() else there
