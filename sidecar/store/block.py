"""A block: the series of one (metric, producer) as a time-major ring with one timestamp per slot."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import numpy as np

from sidecar.model import Labels
from sidecar.store import cells
from sidecar.store.cells import F64, I64

_FIRST_SLOTS = 32
_FIRST_COLUMNS = 4
_NEWS_KEPT = 1024  # readers further behind than this look at everything again; 9 kB a block
_NEVER = -(1 << 62)


class Block:
    """`data[slot % capacity, column]`; slots count from 0 for ever, those with first ≤ slot < next are in the ring.

    Outside, columns go by ids that are never given out twice, so a producer that holds on to an ended series cannot
    write into the one that took its place.
    """

    def __init__(self, index: int, metric: str, producer: str, keep_ms: int, max_slots: int) -> None:
        self.index, self.metric, self.producer = index, metric, producer
        self.keep_ms, self._max_slots = keep_ms, max_slots
        self.first = self.next = 0
        self.labels: list[Labels | None] = []  # by column, with __name__; None where the column is free
        self.assigned: deque[int] = deque(maxlen=_NEWS_KEPT)  # columns in the order they were given a series
        self.assigned_count = 0  # so many ever; readers follow by this number
        self.data: F64 = cells.empty((_FIRST_SLOTS, _FIRST_COLUMNS))
        self.times: I64 = np.zeros(_FIRST_SLOTS, np.int64)
        self.newest_ms = _NEVER
        self.version = 0  # counts what readers have to look at again
        self.merges: deque[tuple[int, tuple[int, ...]]] = deque(maxlen=_NEWS_KEPT)  # (slot, columns) added later
        self.merge_count = 0
        self.crowded_out = 0  # slots dropped before their time because the ring is as long as it may be
        self._last_ms: I64 = np.full(_FIRST_COLUMNS, _NEVER, np.int64)
        self._ended: set[int] = set()
        self._free: list[int] = []
        self._ids: list[int] = []  # by column
        self._next_id = 0
        self._columns: dict[int, int] | None = None  # id → column, once they differ

    # --- columns ---------------------------------------------------------------------------------------------------

    def add_column(self, labels: Labels) -> int:
        """A column for a new series; returns its id."""
        identity = self._next_id
        self._next_id += 1
        if self._free:
            column = self._free.pop()
            if self._columns is None:
                self._columns = {known: c for c, known in enumerate(self._ids)}
            self._columns.pop(self._ids[column], None)
            self._columns[identity] = column
            self._ids[column], self.labels[column] = identity, labels
            self._ended.discard(column)
            self.data[:, column].fill(cells.MISSING)
        else:
            column = len(self.labels)
            if column == self.data.shape[1]:
                self._widen()
            self.labels.append(labels)
            self._ids.append(identity)
            if self._columns is not None:
                self._columns[identity] = column
        self._last_ms[column] = self.newest_ms
        self.assigned.append(column)
        self.assigned_count += 1
        self.version += 1
        return identity

    @property
    def full(self) -> bool:
        """Whether the next series needs a wider ring."""
        return not self._free and len(self.labels) == self.data.shape[1]

    def collect(self, now_ms: int) -> list[Labels]:
        """Frees the columns whose series ended before what the ring keeps at `now_ms`; returns their labels.

        When no series is left, so is the ring.
        """
        gone = []
        for column in sorted(self._ended):
            labels = self.labels[column]
            if labels is not None and self._last_ms[column] <= now_ms - self.keep_ms:
                self.labels[column] = None
                self._free.append(column)
                gone.append(labels)
        self._ended.difference_update(self._free)
        if gone and self.idle:
            self.first = self.next
            self.data, self.times = cells.empty((_FIRST_SLOTS, self.data.shape[1])), np.zeros(_FIRST_SLOTS, np.int64)
        return gone

    @property
    def idle(self) -> bool:
        """Whether no column holds a series."""
        return len(self._free) == len(self.labels)

    def _widen(self) -> None:
        width = self.data.shape[1]
        wider = cells.empty((self.data.shape[0], width + max(_FIRST_COLUMNS, width // 4)))
        wider[:, :width] = self.data
        self.data = wider
        last = np.full(wider.shape[1], _NEVER, np.int64)
        last[:width] = self._last_ms
        self._last_ms = last

    # --- writing ---------------------------------------------------------------------------------------------------

    def push(self, t_ms: int, values: Mapping[int, float]) -> tuple[int, int, int]:
        """Writes one slot, or adds to the newest one when `t_ms` is its time.

        Returns how many samples were out of order, duplicates, and of unknown columns; those are not written.
        """
        if t_ms < self.newest_ms:
            return len(values), 0, 0
        if t_ms > self.newest_ms and list(values) == self._ids:
            self._push_row(t_ms, values)
            return 0, 0, 0
        columns = np.fromiter(values.keys(), np.int64, len(values))
        numbers = np.fromiter(values.values(), np.float64, len(values))
        unknown = 0
        if self._columns is not None:
            known = np.fromiter((self._columns.get(c, -1) for c in columns.tolist()), np.int64, len(columns))
            columns, numbers = known[known >= 0], numbers[known >= 0]
            unknown = len(known) - len(columns)
        elif values and not 0 <= min(values) <= max(values) < len(self.labels):
            inside = (columns >= 0) & (columns < len(self.labels))
            unknown = len(columns) - int(inside.sum())
            columns, numbers = columns[inside], numbers[inside]
        if t_ms > self.newest_ms:
            row = self._open(t_ms)
            duplicates = 0
        else:
            row = (self.next - 1) % len(self.times)
            columns, numbers, duplicates = self._merge(row, columns, numbers)
        self.data[row, columns] = numbers
        self._last_ms[columns] = t_ms
        self._written(columns, numbers)
        return 0, duplicates, unknown

    def _push_row(self, t_ms: int, values: Mapping[int, float]) -> None:
        """A new slot with a value in every column, in their order: what nearly every push is, at half the price."""
        width = len(values)
        numbers = np.fromiter(values.values(), np.float64, width)
        row = self._open(t_ms)  # may make the ring longer
        self.data[row, :width] = numbers
        self._last_ms[:width] = t_ms
        self._written(None, numbers)

    def _written(self, columns: I64 | None, numbers: F64) -> None:
        """Notes which series ended and which are there again. `columns` None: all."""
        if self._ended or cells.may_be_stale(numbers):
            ends = cells.stale(numbers)
            where = np.arange(len(numbers)) if columns is None else columns
            self._ended.difference_update(where[~ends].tolist())
            self._ended.update(where[ends].tolist())
        self.version += 1

    def _merge(self, row: int, columns: I64, numbers: F64) -> tuple[I64, F64, int]:
        there = self.data[row, columns]
        vacant = cells.missing(there)
        # the same value again is no conflict, as in Prometheus
        same = there.view(np.uint64) == numbers.view(np.uint64)
        columns, numbers = columns[vacant], numbers[vacant]
        if len(columns):
            self.merges.append((self.next - 1, tuple(columns.tolist())))
            self.merge_count += 1
        return columns, numbers, int((~vacant & ~same).sum())

    def _open(self, t_ms: int) -> int:
        if self.next - self.first == len(self.times):
            oldest = int(self.times[self.first % len(self.times)])
            if oldest > t_ms - self.keep_ms and len(self.times) < self._max_slots:
                self._lengthen(t_ms)
            else:
                self.crowded_out += oldest > t_ms - self.keep_ms
                self.first += 1
        row = self.next % len(self.times)
        self.times[row] = t_ms
        self.data[row].fill(cells.MISSING)
        self.newest_ms = t_ms
        self.next += 1
        return row

    def _lengthen(self, t_ms: int) -> None:
        old = len(self.times)
        oldest = int(self.times[self.first % old])
        # as many slots as the time to keep takes at the pace seen so far, and a quarter more at least
        wanted = self.keep_ms * old // max(t_ms - oldest, 1) + 16
        size = min(max(wanted, old + old // 4), self._max_slots)
        if old == _FIRST_SLOTS:
            size = min(size, 4 * old)  # the pace of the first few slots is a poor guide
        slots = np.arange(self.first, self.next)
        data, times = cells.empty((size, self.data.shape[1])), np.zeros(size, np.int64)
        data[slots % size] = self.data[slots % old]
        times[slots % size] = self.times[slots % old]
        self.data, self.times = data, times

    # --- reading ---------------------------------------------------------------------------------------------------

    def upto(self, t_ms: int) -> int:
        """One past the newest slot that is not younger than `t_ms`."""
        if t_ms >= self.newest_ms:
            return self.next
        size = len(self.times)
        low, high = self.first, self.next
        if high - low > 1 and int(self.times[(high - 2) % size]) <= t_ms:
            return high - 1
        while low < high:
            middle = (low + high) // 2
            if int(self.times[middle % size]) <= t_ms:
                low = middle + 1
            else:
                high = middle
        return low

    def rows(self, low: int, high: int) -> F64:
        """Slots [low, high) as one array [slot, column]; a view where the ring does not wrap between them."""
        size = len(self.times)
        if high <= low:
            return self.data[:0]
        start, end = low % size, (high - 1) % size + 1
        return self.data[start:end] if start < end else np.concatenate((self.data[start:], self.data[:end]))

    def times_of(self, low: int, high: int) -> I64:
        """The timestamps of slots [low, high)."""
        size = len(self.times)
        if high <= low:
            return self.times[:0]
        start, end = low % size, (high - 1) % size + 1
        return self.times[start:end] if start < end else np.concatenate((self.times[start:], self.times[:end]))
