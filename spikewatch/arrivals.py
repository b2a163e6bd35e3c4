"""Prefetch hits: was the batch already there when the loop asked for it?

A request is a hit when the batch lay in this process, or was the next thing in the queue of finished batches, at the
moment of asking. Behind another batch that overtook it, or still being made, is a miss. Only loaders with workers
prefetch.
"""

from __future__ import annotations

import select
from typing import Any

from spikewatch.meter import Meter


class Arrivals:
    """Watches one worker iterator of torch."""

    __slots__ = ("_iterator", "_next", "_poll", "meter")

    def __init__(self, iterator: Any, meter: Meter) -> None:
        """`meter` counts the requests and hits."""
        self.meter = meter
        self._iterator = iterator
        self._next = iterator.__next__
        self._poll: select.poll | None = None
        reader = getattr(getattr(iterator, "_data_queue", None), "_reader", None)
        if reader is not None:  # a multiprocessing queue; the pinning thread's is a plain one
            self._poll = select.poll()
            self._poll.register(reader.fileno(), select.POLLIN)

    def take(self) -> Any:
        """The next batch. Raises what the iterator raises."""
        iterator, poll = self._iterator, self._poll
        try:
            before = iterator._send_idx - iterator._tasks_outstanding
            ready = poll.poll(0) if poll is not None else not iterator._data_queue.empty()
        except Exception:  # noqa: BLE001  the training loop must not see our mistakes
            self.meter.errors += 1
            return self._next()
        batch = self._next()
        try:
            read = iterator._send_idx - iterator._tasks_outstanding - before  # batches read from the queue meanwhile
            self.meter.prefetch(read == 0 or (read == 1 and bool(ready)))
        except Exception:  # noqa: BLE001  as above
            self.meter.errors += 1
        return batch


def watch(iterator: Any, meter: Meter) -> Arrivals | None:
    """None for an iterator that does not prefetch, or whose insides this torch names otherwise."""
    if all(hasattr(iterator, name) for name in ("_tasks_outstanding", "_send_idx", "_data_queue")):
        return Arrivals(iterator, meter)
    return None
