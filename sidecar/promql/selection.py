"""The series a selector picks from the store, kept up to date as series come and go."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sidecar.model import Labels
from sidecar.promql.frame import NAME, Frame
from sidecar.promql.plan import Matcher, Selector
from sidecar.promql.regex import predicate
from sidecar.store import Block, Store, cells
from sidecar.store.cells import F64, I64, Bools


class Part:
    """The columns of one block that a selector picks, in order of first sight.

    `generation` changes when a position came to mean another series, so that state kept by position is void; columns
    appended at the end leave it as it is.
    """

    def __init__(self, block: Block, matches: Callable[[Labels], bool]) -> None:
        self.block = block
        self.labels: list[Labels] = []
        self.columns: I64 = np.zeros(0, np.int64)
        self.generation = 0
        self.position: dict[int, int] = {}  # by column
        self._matches = matches
        self._seen = 0
        self._whole = True  # the columns are 0, 1, 2 …: rows can be sliced
        self._pattern: Bools | None = None
        self._pattern_of = (-1, -1, -1)

    def follow(self) -> bool:
        """Takes in the columns assigned since the last call; whether anything changed."""
        fresh = self._fresh()
        if not fresh:
            return False
        self._seen = self.block.assigned_count
        columns = self.columns.tolist()
        position = {column: i for i, column in enumerate(columns)}
        changed = False
        for column in fresh:
            labels = self.block.labels[column]
            wanted = labels is not None and self._matches(labels)
            at = position.get(column)
            if at is not None:
                self.generation += 1
                changed = True
                if wanted and labels is not None:
                    self.labels[at] = labels
                else:
                    del columns[at], self.labels[at]
                    position = {column: i for i, column in enumerate(columns)}
            elif wanted and labels is not None:
                position[column] = len(columns)
                columns.append(column)
                self.labels.append(labels)
                changed = True
        self.columns = np.array(columns, np.int64)
        self.position = position
        self._whole = columns == list(range(len(columns)))
        return changed

    def overtaken(self) -> bool:
        """Whether a column has been given to another series since the last `follow`, so that it must not be read."""
        return any(column in self.position for column in self._fresh())

    def _fresh(self) -> list[int]:
        """The columns assigned since the last `follow`, oldest first; all columns for who is too far behind."""
        block = self.block
        missed = block.assigned_count - self._seen
        if not missed:
            return []
        return list(block.assigned)[-missed:] if missed <= len(block.assigned) else list(range(len(block.labels)))

    def row(self, slot: int) -> F64:
        """The picked cells of one slot; possibly a view."""
        row: F64 = self.block.data[slot % len(self.block.times)]
        return row[: len(self.labels)] if self._whole else row[self.columns]

    def rows(self, low: int, high: int) -> F64:
        """The picked cells of slots [low, high) as [slot, series]; possibly a view."""
        found = self.block.rows(low, high)
        return found[:, : len(self.labels)] if self._whole else found[:, self.columns]

    def valid(self, slot: int) -> Bools | None:
        """Which picked series have a sample in a slot, None when all; the same object while it does not change."""
        key = (slot, self.block.merge_count, len(self.labels))
        if key != self._pattern_of:
            self._pattern_of = key
            there = ~cells.absent(self.row(slot))
            old = self._pattern
            if there.all():
                self._pattern = None
            elif old is None or len(old) != len(there) or (old != there).any():
                self._pattern = there
        return self._pattern

    def cells(self, slots: I64, positions: I64) -> F64:
        """Single cells by slot and position."""
        found: F64 = self.block.data[slots % len(self.block.times), self.columns[positions]]
        return found


class Selection:
    """A selector bound to a store: its parts, and the frame of all their series one after the other."""

    def __init__(self, store: Store, metric: str, matchers: tuple[Matcher, ...]) -> None:
        self.store, self.metric = store, metric
        tests = [(m.name, predicate(m)) for m in matchers]
        self._tests = [(name, test) for name, test in tests if name != NAME]
        self._name_tests = [test for name, test in tests if name == NAME]
        self.parts: list[Part] = []
        self._known: set[int] = set()
        self.frame = Frame(())
        self._blocks_seen = 0
        self._series_seen = -1

    @classmethod
    def of(cls, store: Store, selector: Selector) -> Selection:
        """The selection of a plan's selector."""
        return cls(store, selector.metric, selector.matchers)

    def _matches(self, labels: Labels) -> bool:
        values = dict(labels)
        return all(test(values.get(name, "")) for name, test in self._tests)

    def refresh(self) -> Frame:
        """Looks for series made since the last call; the frame stays the same object while there are none."""
        if self._series_seen == self.store.layout:
            return self.frame
        self._series_seen = self.store.layout
        changed = self._find_blocks()
        for part in self.parts:
            changed |= part.follow()
        if changed:
            self.frame = Frame(tuple(labels for part in self.parts for labels in part.labels))
        return self.frame

    def _find_blocks(self) -> bool:
        names = [self.metric] if self.metric else self.store.metrics()
        names = [name for name in names if all(test(name) for test in self._name_tests)]
        found = False
        for block in (block for name in names for block in self.store.blocks(name)):
            if block.index not in self._known:
                self._known.add(block.index)
                self.parts.append(Part(block, self._matches))
                found = True
        return found

    def version(self) -> int:
        """Changes whenever a sample or a series of this selection may have been added."""
        self.refresh()
        return sum(part.block.version for part in self.parts) + len(self.parts)
