"""How many batches running workers work ahead, changed in place: same processes, same share of the batches each.

So even what the workers draw (augmentation) stays what it would have been. torch fills up to `prefetch_factor` x
workers when it starts and afterwards asks for one batch for each it hands over; more ahead is some extra asking, and
less ahead is leaving some out until enough have drained.
"""

from __future__ import annotations

import weakref
from typing import Any

from spikewatch.segments import Part

_NEEDED = (
    "_prefetch_factor", "_num_workers", "_tasks_outstanding", "_try_put_index", "_in_order", "_send_idx",
    "_workers_num_tasks", "_workers_status",
)  # fmt: skip


def can_change(part: Part) -> bool:
    """Whether this iterator has workers that can be asked for more or less."""
    iterator = part.iterator
    return all(hasattr(iterator, name) for name in _NEEDED) and bool(iterator._in_order) and iterator._num_workers > 0


def change(part: Part, prefetch: int) -> None:
    """Works `prefetch` batches a worker ahead from now on."""
    iterator = part.iterator
    stream = part.take_stream()
    part.give_stream(stream)
    part.prefetch = prefetch
    iterator._prefetch_factor = prefetch
    if not isinstance(vars(iterator).get("_try_put_index"), _Patient):
        iterator._try_put_index = _Patient(iterator)
    before = -1
    while before < iterator._send_idx and stream.more() and not stream.broken():
        before = iterator._send_idx
        iterator._try_put_index()


class _Patient:
    """In place of an iterator's `_try_put_index`: asks for nothing while more is under way than is wanted now."""

    __slots__ = ("_iterator",)

    def __init__(self, iterator: Any) -> None:
        self._iterator = weakref.ref(iterator)  # no cycle: a dropped iterator ends its workers at once

    def __call__(self) -> None:
        iterator = self._iterator()
        if iterator is None:
            return
        # What was asked of a worker that reached the end of its share of an iterable-style dataset never comes, and
        # torch counts it as under way for ever: waiting for that would end the pass too early.
        wanted = iterator._prefetch_factor
        lost = sum(
            tasks
            for tasks, works in zip(iterator._workers_num_tasks, iterator._workers_status, strict=True)
            if not works
        )
        if iterator._tasks_outstanding - lost >= wanted * iterator._num_workers:
            return
        iterator._prefetch_factor = iterator._tasks_outstanding + 1  # torch raises from there on
        try:
            type(iterator)._try_put_index(iterator)
        finally:
            iterator._prefetch_factor = wanted
