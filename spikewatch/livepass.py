"""A pass over an instrumented DataLoader: times every request, and can move to other settings on its way."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any

from spikewatch import ahead, arrivals, randomness
from spikewatch.arrivals import Arrivals
from spikewatch.batches import BatchLengths, measure
from spikewatch.batching_stream import Cut, Cutter
from spikewatch.meter import Meter
from spikewatch.segments import Part, Settings, Stream

if TYPE_CHECKING:
    from spikewatch.tuner import Tuner


class LivePass:
    """What `iter(loader)` returns. Without a change it hands on what the loader's own iterator gives.

    Holds the parts in the order their batches come in; nothing holds it but its user, so that leaving the loop
    ends the workers as it does without us.
    """

    __slots__ = (
        "__weakref__", "_arrivals", "_before", "_dismissed", "_full", "_kind", "_lengths", "_meter", "_named", "_parts",
        "_size", "_skipped", "_take", "_tensor", "_tuner", "count", "cutter", "given", "over", "thread",
    )  # fmt: skip

    def __init__(self, tuner: Tuner, part: Part, lengths: BatchLengths, before: int = 0) -> None:
        """`before`: batches of the loader's own sampler that were handed over in the run that this one resumes."""
        self._tuner = tuner
        self._parts: deque[Part] = deque()
        self._dismissed: list[Part] = []  # their workers are told to stop
        self._arrivals: Arrivals | None = None
        self._begin(part, lengths, before)

    def _begin(self, part: Part, lengths: BatchLengths, before: int) -> None:
        self._parts.clear()
        self._parts.append(part)
        self.carefully()
        self._arrivals = arrivals.watch(part.iterator, self._meter)
        self._lengths = lengths
        self._full, self._size, self._tensor = lengths.full - before, lengths.size or 0, lengths.tensor
        self._before = self._skipped = before
        self.given = 0  # batches handed over in this pass
        self.over = False
        self.thread: int | None = None  # who asks for batches
        self.cutter: Cutter | None = part.cutter()
        self.count = self._tuner.count(before)

    def __del__(self) -> None:
        # A checkpoint may still be taken, of a loop that was left to end the run.
        with contextlib.suppress(Exception):
            self._tuner.left(self)

    def __iter__(self) -> LivePass:
        return self

    def __len__(self) -> int:
        return len(self._parts[0].iterator)

    def __getattr__(self, name: str) -> Any:
        # Frameworks look into torch's iterators (`_workers`, `_num_workers`): they see the one in use.
        if name.startswith("__") or name in LivePass.__slots__:
            raise AttributeError(name)
        return getattr(self._parts[0].iterator, name)

    def carefully(self) -> None:
        """The next request is to be made the careful way, which then finds out whether the quick one will do."""
        self._meter = self._tuner.meter
        if self._arrivals is not None:
            self._arrivals.meter = self._meter
        self._take: Callable[[], Any] | None = None
        self._kind: Any = None  # type of batches that can be counted the quick way
        self._named = False  # they are dicts

    def __next__(self) -> Any:
        # The usual request in one piece and with few objects: `_carefully` without the calls, each of which costs a
        # microsecond or two where the model's work has emptied the caches.
        meter, take = self._meter, self._take
        if take is None or not meter.step_from:  # the latter: not in phase train
            return self._carefully()
        self.thread = get_ident()
        meter.wait_from = began = meter.now()
        try:
            batch = take()
        except StopIteration:
            try:
                batch = self._continue()
            finally:
                meter.wait_ends(began)
        except BaseException as error:
            meter.wait_ends(began)
            self._parts[0].failed += isinstance(error, Exception)
            raise
        else:
            meter.wait_from = 0  # before the time is read, see `Meter.record`
            meter.wait_ns += meter.now() - began
        if type(batch) is self._kind and self.given < self._full:
            size, tensor = 0, self._tensor
            try:
                for item in batch.values() if self._named else batch:
                    if type(item) is not tensor:
                        break
                    size += item.nbytes
                else:
                    self.given += 1
                    meter.handed += self._size
                    meter.bytes += size
                    if size > meter.batch_bytes:
                        meter.batch_bytes = size
                    return batch
            except Exception:  # noqa: BLE001  the training loop must not see our mistakes
                meter.errors += 1
        self._received(meter, batch)
        return batch

    def _carefully(self) -> Any:
        """Any other request: outside training, or of a part that must not draw from the run's random state."""
        tuner, part = self._tuner, self._parts[0]
        began = tuner.wait_begins()
        self.thread = get_ident()
        try:
            try:
                batch = self._request(part)
            except StopIteration:
                batch = self._continue()
            except Exception:
                part.failed += 1
                raise
        finally:
            tuner.wait_ends(began)
        self._received(tuner.meter, batch)
        return batch

    def _received(self, meter: Meter, batch: Any) -> None:
        piece = None
        if self.cutter is not None:
            piece = self.cutter.handed(sum(part.unread() for part in self._parts))
        if self.count is not None:
            self._tuner.handed(self, self.count, piece)
        try:
            if piece is not None and piece.samples is not None:
                meter.received(piece.samples, measure(batch)[1])
            else:
                meter.received(*self._lengths.of(self._skipped + self.given, batch))
            if self._dismissed:
                self._sweep()
            self._look_ahead(batch)
        except Exception:  # noqa: BLE001  the training loop must not see our mistakes
            meter.errors += 1
        self.given += 1

    def _look_ahead(self, batch: Any) -> None:
        """Whether the next request can be made the quick way, and the next batch counted so if it is like this one."""
        part = self._parts[0]
        if part.private is not None or self._tuner.probe.draws is None:
            return
        self._take = part.iterator.__next__ if self._arrivals is None else self._arrivals.take
        counted = self.cutter is not None or self.count is not None or self._dismissed
        if not counted and self._lengths.plain(batch):
            self._kind, self._named = type(batch), type(batch) is dict

    def _continue(self) -> Any:
        """The first batch of the next part that has one; the present part is over."""
        while len(self._parts) > 1:
            done = self._parts.popleft()
            self._before += done.taken()
            done.end()
            part = self._parts[0]
            self.carefully()
            self._arrivals = arrivals.watch(part.iterator, self._meter)
            try:
                return self._request(part)
            except StopIteration:
                pass
        self.over = True
        self._sweep(wait=True)
        self._tuner.look()
        raise StopIteration

    def _sweep(self, wait: bool = False) -> None:
        """Tidies up after iterators whose workers have stopped."""
        for part in [part for part in self._dismissed if wait or part.gone()]:
            self._dismissed.remove(part)
            part.end()

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
        return next(part.iterator) if self._arrivals is None else self._arrivals.take()

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """The next pass with workers that live on; the DataLoader calls it."""
        began = self._tuner.wait_begins()
        try:
            self._sweep(wait=True)
            part = self._tuner.next_pass(loader, list(self._parts))
        finally:
            self._tuner.wait_ends(began)
        self._begin(part, self._tuner.lengths(loader), self._tuner.openings.skipped)

    def position(self) -> int | None:
        """Batches of the loader's own sampler handed over in this pass; of a loop that accumulates, in whole groups.

        None where this torch does not tell.
        """
        unfinished = self.count.in_group if self.count is not None else 0
        if self._tuner.rereads:  # there, torch also numbers what it asked of workers that had nothing left
            failed = sum(part.failed for part in self._parts)
            return max(0, self._before + self.given + failed - unfinished)
        if self.cutter is not None:
            return max(0, self.cutter.done - unfinished)
        if not all(part.known for part in self._parts):
            return None
        return max(0, self._before + sum(part.taken() for part in self._parts) - unfinished)

    def settings(self) -> Settings:
        """Of the newest part."""
        return self._parts[-1].settings()

    def move(self, wanted: Settings) -> None:
        """Continues this pass with other settings. Raises what the loader raises; the pass is then as it was."""
        newest = self._parts[-1]
        if not wanted.workers:
            wanted = wanted._replace(prefetch=newest.prefetch)
        now = newest.settings()
        if wanted == now:
            return
        if wanted.workers and wanted == now._replace(prefetch=wanted.prefetch) and ahead.can_change(newest):
            ahead.change(newest, wanted.prefetch)
            return
        stream = newest.take_stream()
        try:
            if not stream.more():
                return  # every batch of this pass is under way
            stream.remember()
            part = self._tuner.openings.continuation(stream, wanted, int(newest.iterator._base_seed))
        except BaseException:
            stream.rewind()
            newest.give_stream(stream)
            raise
        stream.forget()
        self._parts.append(part)

    def recut(self, cut: Cut) -> None:
        """Continues this pass with batches of another size, from the next one on. What workers have made ready in
        the old size is dropped and made again. Only between two groups, see `Cutter.aligned`. Does not fail.
        """
        if self.cutter is None:
            return
        newest = self._parts[-1]
        stream = newest.take_stream()
        self.cutter = Cutter(self.cutter.rest(stream.error()), cut, self.cutter.done)
        rest = Stream(self.cutter)
        stays = newest
        if newest.workers and rest.more():
            stays = self._opened(rest, newest)
        else:
            newest.give_stream(rest)
        for part in self._parts:
            if part is not stays:
                part.dismiss()
                self._dismissed.append(part)
        self._parts = deque([stays])
        self.carefully()
        self._arrivals = arrivals.watch(stays.iterator, self._meter)

    def _opened(self, rest: Stream, like: Part) -> Part:
        """Without workers where they do not start: by now other ranks have changed, this one must not stay behind."""
        openings, seed = self._tuner.openings, int(like.iterator._base_seed)
        rest.remember()
        try:
            part = openings.continuation(rest, like.settings(), seed)
        except Exception as error:  # noqa: BLE001  whatever the loader raises
            rest.rewind()
            self._tuner.no_workers(error)
            return openings.continuation(rest, like.settings()._replace(workers=0), seed)
        rest.forget()
        return part
