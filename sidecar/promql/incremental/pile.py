"""Summaries of neighbouring stretches in order, component by component, so that all can be merged at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Partial = tuple[Any, ...]
"""What a fold knows of some samples: arrays by series, or plain numbers where all series agree."""

_FIRST = 16


class Pile:
    """Partials appended at one end and taken off at the other. Plain numbers stay one column wide."""

    def __init__(self) -> None:
        self._columns: list[np.ndarray] = []
        self._plain: list[bool] = []
        self._start = self._end = 0

    def __len__(self) -> int:
        return self._end - self._start

    def append(self, partial: Partial) -> None:
        """One more, the youngest."""
        rows = [np.atleast_1d(component) for component in partial]
        plain = [np.ndim(component) == 0 for component in partial]
        if not len(self):
            self._plain = plain
            self._columns = [np.empty((_FIRST, len(row)), row.dtype) for row in rows]
            self._start = self._end = 0
        elif self._end == len(self._columns[0]):
            self._make_room()
        self._plain = [a and b for a, b in zip(self._plain, plain, strict=True)]
        for k, row in enumerate(rows):
            column = self._columns[k]
            if len(row) > column.shape[1]:
                column = self._columns[k] = np.repeat(column, len(row), axis=1)
            column[self._end] = row
        self._end += 1

    def _make_room(self) -> None:
        size = len(self)
        for k, column in enumerate(self._columns):
            moved = np.empty((2 * size + _FIRST, column.shape[1]), column.dtype)
            moved[:size] = column[self._start : self._end]
            self._columns[k] = moved
        self._start, self._end = 0, size

    def drop_oldest(self) -> None:
        """One less."""
        self._start += 1

    def drop_youngest(self) -> None:
        """One less."""
        self._end -= 1

    def plain(self, component: int) -> bool:
        """Whether a component is one number for all series in every partial."""
        return self._plain[component]

    def all(self) -> tuple[np.ndarray, ...]:
        """Each component as [partial, series], or [partial, 1] where all series agree. Views."""
        return tuple(column[self._start : self._end] for column in self._columns)

    def only(self) -> Partial:
        """The one partial there is."""
        rows = [column[self._start] for column in self._columns]
        return tuple(row.item() if plain else row.copy() for row, plain in zip(rows, self._plain, strict=True))

    def grow(self, change: Callable[[Partial], Partial]) -> None:
        """Replaces every component by what `change` makes of all of them; plain numbers are one-dimensional there."""
        if not len(self):
            return
        given = tuple(c[:, 0] if plain else c for c, plain in zip(self.all(), self._plain, strict=True))
        changed = [np.asarray(component) for component in change(given)]
        self._plain = [c.ndim == 1 for c in changed]
        self._columns = [c[:, None] if plain else c for c, plain in zip(changed, self._plain, strict=True)]
        self._start, self._end = 0, len(self._columns[0])
