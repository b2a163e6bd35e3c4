"""Vectors inside the engine: a frame of label sets that rarely changes, and the numbers of one instant over it.

What depends on labels alone (groups, matches, dropped names) is worked out once per frame and kept with it, so an
evaluation is arithmetic on arrays. An element that is not there at an instant is masked out, not removed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeVar

import numpy as np

from sidecar.model import Labels
from sidecar.store.cells import F64, I64, Bools

_T = TypeVar("_T")
NAME = "__name__"


def nameless(labels: Labels) -> Labels:
    """The label set without the metric name."""
    return tuple(pair for pair in labels if pair[0] != NAME)


class Frame:
    """An immutable list of label sets; compared by identity. `derived` keeps what has been worked out from it."""

    __slots__ = ("_derived", "labels")

    def __init__(self, labels: tuple[Labels, ...]) -> None:
        self.labels = labels
        self._derived: dict[Hashable, Any] = {}

    def __len__(self) -> int:
        return len(self.labels)

    def derive(self, key: Hashable, make: Callable[[Frame], _T]) -> _T:
        """`make(self)`, computed once per key."""
        try:
            found: _T = self._derived[key]
        except KeyError:
            found = self._derived[key] = make(self)
        return found

    def nameless(self) -> Frame:
        """The same elements without metric names."""
        return self.derive("nameless", _without_names)

    def has_twins(self) -> bool:
        """Whether two elements have the same label set, which is an error once both are there."""
        return self.derive("twins", lambda f: len(set(f.labels)) < len(f.labels))


def _without_names(frame: Frame) -> Frame:
    labels = tuple(nameless(each) for each in frame.labels)
    return frame if labels == frame.labels else Frame(labels)


EMPTY_FRAME_LABELS: tuple[Labels, ...] = ()


class Vec:
    """The values of a frame at one instant. `mask` is None when every element is there; `order` is a display order."""

    __slots__ = ("frame", "mask", "order", "values")

    def __init__(self, frame: Frame, values: F64, mask: Bools | None = None, order: I64 | None = None) -> None:
        self.frame, self.values, self.mask, self.order = frame, values, mask, order

    def __len__(self) -> int:
        return len(self.frame) if self.mask is None else int(np.count_nonzero(self.mask))

    def present(self) -> I64:
        """Indexes of the elements that are there, in display order."""
        if self.order is not None:
            return self.order if self.mask is None else self.order[self.mask[self.order]]
        return np.arange(len(self.frame)) if self.mask is None else np.flatnonzero(self.mask)

    def items(self) -> Iterator[tuple[Labels, float]]:
        """(labels, value) of the elements that are there."""
        labels, values = self.frame.labels, self.values
        for i in self.present().tolist():
            yield labels[i], float(values[i])


def both(a: Bools | None, b: Bools | None) -> Bools | None:
    """The elements in both masks, None meaning all."""
    if a is None:
        return b
    return a if b is None else a & b


def keep(mask: Bools | None, condition: Bools) -> Bools | None:
    """The mask narrowed to where `condition` holds; None when all remain."""
    narrowed = condition if mask is None else mask & condition
    return None if mask is None and narrowed.all() else narrowed
