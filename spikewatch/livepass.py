"""A pass over an instrumented DataLoader: times every request, and can move to other settings on its way."""

from __future__ import annotations

from collections import deque
from threading import get_ident
from typing import TYPE_CHECKING, Any

from spikewatch import ahead, arrivals, randomness
from spikewatch.batches import BatchLengths
from spikewatch.layout import TRAIN
from spikewatch.meter import Meter
from spikewatch.segments import Part

if TYPE_CHECKING:
    from spikewatch.tuner import Tuner


class LivePass:
    """What `iter(loader)` returns. Without a change it hands on what the loader's own iterator gives.

    Holds the parts in the order their batches come in; nothing holds it but its user, so that leaving the loop
    ends the workers as it does without us.
    """

    __slots__ = ("__weakref__", "_arrivals", "_lengths", "_parts", "_tuner", "given", "over", "thread")

    def __init__(self, tuner: Tuner, part: Part, lengths: BatchLengths) -> None:
        self._tuner = tuner
        self._parts: deque[Part] = deque()
        self._begin(part, lengths)

    def _begin(self, part: Part, lengths: BatchLengths) -> None:
        self._parts.clear()
        self._parts.append(part)
        self._arrivals = arrivals.watch(part.iterator)
        self._lengths = lengths
        self.given = 0  # batches handed over in this pass
        self.over = False
        self.thread: int | None = None  # who asks for batches

    def __iter__(self) -> LivePass:
        return self

    def __len__(self) -> int:
        return len(self._parts[0].iterator)

    def __getattr__(self, name: str) -> Any:
        # Frameworks look into torch's iterators (`_workers`, `_num_workers`): they see the one in use.
        if name.startswith("__") or name in LivePass.__slots__:
            raise AttributeError(name)
        return getattr(self._parts[0].iterator, name)

    def __next__(self) -> Any:
        # The usual request in one piece: `_carefully` without the calls, of which each costs a microsecond or two where
        # the model's work has emptied the caches.
        meter, part, watch = self._tuner.meter, self._parts[0], self._arrivals
        if part.private is not None or meter.phase != TRAIN or self._tuner.probe.draws is None:
            return self._carefully()
        began = meter.now()
        meter.wait_clock = (meter.wait_clock[0], began)
        self.thread = get_ident()
        asked = watch is not None and self._tuner.asks(watch)
        try:
            batch = next(part.iterator)
        except StopIteration:
            asked, batch = False, self._continue()
        finally:
            total = meter.wait_clock[0]
            meter.wait_clock = (total, 0)  # before the time is read, see `meter.elapsed`
            meter.wait_clock = (total + meter.now() - began, 0)
        if asked and watch is not None:
            self._tuner.arrived(watch)
        self._received(meter, batch)
        return batch

    def _carefully(self) -> Any:
        """Any other request: outside training, or of a part that must not draw from the run's random state."""
        tuner = self._tuner
        began = tuner.wait_begins()
        self.thread = get_ident()
        try:
            try:
                batch = self._request(self._parts[0])
            except StopIteration:
                batch = self._continue()
        finally:
            tuner.wait_ends(began)
        self._received(tuner.meter, batch)
        return batch

    def _received(self, meter: Meter, batch: Any) -> None:
        try:
            meter.received(*self._lengths.of(self.given, batch))
        except Exception:  # noqa: BLE001  the training loop must not see our mistakes
            meter.errors += 1
        self.given += 1

    def _continue(self) -> Any:
        """The first batch of the next part that has one; the present part is over."""
        while len(self._parts) > 1:
            self._parts.popleft().end()
            part = self._parts[0]
            self._arrivals = arrivals.watch(part.iterator)
            try:
                return self._request(part)
            except StopIteration:
                pass
        self.over = True
        raise StopIteration

    def _request(self, part: Part) -> Any:
        if part.private is not None:
            with part.private:
                return next(part.iterator)
        probe = self._tuner.probe
        if probe.draws is None and probe.wanted(self.given):
            before = randomness.capture()
            batch = next(part.iterator)
            probe.looked(before)
            return batch
        watch = self._arrivals
        if watch is None:
            return next(part.iterator)
        asked = self._tuner.asks(watch)
        batch = next(part.iterator)
        if asked:
            self._tuner.arrived(watch)
        return batch

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """The next pass with workers that live on; the DataLoader calls it."""
        began = self._tuner.wait_begins()
        try:
            part = self._tuner.next_pass(loader, list(self._parts))
        finally:
            self._tuner.wait_ends(began)
        self._begin(part, self._tuner.lengths(loader))

    def settings(self) -> tuple[int, int]:
        """(workers, prefetch factor) of the newest part."""
        return self._parts[-1].workers, self._parts[-1].prefetch

    def move(self, workers: int, prefetch: int) -> None:
        """Continues this pass with other settings. Raises what the loader raises; the pass is then as it was."""
        newest = self._parts[-1]
        if (workers, prefetch if workers else newest.prefetch) == (newest.workers, newest.prefetch):
            return
        if workers and workers == newest.workers and ahead.can_change(newest):
            ahead.change(newest, prefetch)
            return
        stream = newest.take_stream()
        try:
            if not stream.more():
                return  # every batch of this pass is under way
            stream.remember()
            part = self._tuner.open_part(stream, workers, prefetch, int(newest.iterator._base_seed))
        except BaseException:
            stream.rewind()
            newest.give_stream(stream)
            raise
        stream.forget()
        self._parts.append(part)
