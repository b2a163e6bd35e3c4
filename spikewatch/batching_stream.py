"""The index batches of a pass, cut anew: the same samples in the same order, in batches of another size.

A *group* is what one optimizer step uses: `span` batches of the loader's own batch sampler. It is laid end to end and
cut into batches of the new size, so every step keeps exactly the samples it would have had, the rest at the end of a
pass too, whatever the sampler is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Any


@dataclass(frozen=True, slots=True)
class Piece:
    """What is known of one index batch. `total`: samples of its whole group, None where nobody has looked ahead."""

    samples: int | None
    total: int | None
    last: bool | None  # of its group; None where batches are not cut, there the loop counts
    own: int  # batches of the loader's own sampler that end with it


@dataclass(frozen=True, slots=True)
class Cut:
    """How a pass is cut. `size` None: not at all, the sampler's batches go through as they are."""

    size: int | None = None  # samples a batch
    span: int = 1  # of the sampler's own batches in a group


class Cutter:
    """Iterator over index batches that knows which of them have not been handed over yet."""

    __slots__ = ("_cut", "_error", "_issued", "_pending", "_pieces", "_source", "aligned", "done")

    def __init__(self, source: Iterator[Any], cut: Cut, done: int = 0) -> None:
        """`source` gives the sampler's own batches; `done` of them were handed over before."""
        self._source = source
        self._cut = cut
        self.done = done  # of the sampler's own batches, in groups that were handed over whole
        self.aligned = True  # the next batch to be handed over begins a group; always, where nothing is cut
        self._pending: deque[list[Any]] = deque()  # groups of own batches not handed over whole
        self._pieces: deque[tuple[Any, Piece]] = deque()  # of the newest group, not issued yet
        self._issued: deque[Piece] = deque()  # not handed over yet
        self._error: BaseException | None = None

    def __iter__(self) -> Cutter:
        return self

    def __next__(self) -> Any:
        if not self._pieces:
            self._next_group()
        indices, piece = self._pieces.popleft()
        self._issued.append(piece)
        return indices

    def _next_group(self) -> None:
        """Raises StopIteration at the end, or the sampler's own error where it belongs: after what came before it."""
        if self._error is not None:
            error, self._error = self._error, None
            try:
                raise error
            finally:
                del error  # its traceback holds this frame, see segments.Stream
        if self._cut.size is None:
            batch = next(self._source)
            self._pending.append([batch])
            self._pieces.append((batch, Piece(_length(batch), None, None, 1)))
            return
        group: list[Any] = []
        try:
            while len(group) < self._cut.span:
                group.append(next(self._source))
        except StopIteration:
            if not group:
                raise
        except Exception as error:
            if not group:
                raise
            self._error = error
        self._pending.append(group)
        size = self._cut.size
        samples = [index for batch in group for index in batch]
        for start in range(0, len(samples), size):
            indices, last = samples[start : start + size], start + size >= len(samples)
            piece = Piece(len(indices), len(samples), last, len(group) if last else 0)
            self._pieces.append((indices, piece))

    def handed(self, unread: int) -> Piece | None:
        """The newest batch that was handed over when `unread` of those issued have not been; None for nothing new."""
        piece = None
        while len(self._issued) > unread:
            piece = self._issued.popleft()
            self.aligned = piece.last is not False
            if piece.own:
                self._pending.popleft()
                self.done += piece.own
        return piece

    def rest(self, error: BaseException | None = None) -> Iterator[Any]:
        """The sampler's own batches from the oldest group on that was not handed over whole. Ends this iterator.

        Only where `aligned`: in the middle of a group, what was handed over of it would come again. `error`: one that
        this iterator raised already and that has not reached the loop; it comes where it would have.
        """
        pending, self._pending = self._pending, deque()
        source, self._source = self._source, iter(())
        error, self._error = error or self._error, None
        self._pieces.clear()
        self._issued.clear()
        return _Rest(deque(batch for group in pending for batch in group), error, source)


class _Rest:
    """Batches taken back, then the error met while looking ahead if there was one, then the sampler's others.

    No generator: left unfinished, one would be ended by the garbage collector, at a time nobody chose.
    """

    __slots__ = ("_error", "_source", "_taken")

    def __init__(self, taken: deque[Any], error: BaseException | None, source: Iterator[Any]) -> None:
        self._taken, self._error, self._source = taken, error, source

    def __iter__(self) -> _Rest:
        return self

    def __next__(self) -> Any:
        if self._taken:
            return self._taken.popleft()
        if self._error is not None:
            error, self._error = self._error, None
            try:
                raise error
            finally:
                del error
        return next(self._source)


class Regrouped:
    """Stands in for a loader's batch sampler: its samples in its order, cut. Picklable where the sampler is."""

    def __init__(self, own: Any, cut: Cut, own_size: int) -> None:
        """`own`: the sampler that the loader was made with; `own_size`: how many samples its batches have."""
        self.own = own
        self.cut = cut
        self.own_size = own_size

    @property
    def batch_size(self) -> int:
        return self.cut.size or self.own_size

    def __iter__(self) -> Cutter:
        return Cutter(iter(self.own), self.cut)

    def __len__(self) -> int:
        """How many batches a pass has. Raises TypeError where the sampler has no length.

        Exact for torch's BatchSampler; for another it takes every batch but the last for a full one.
        """
        batches, size, span = len(self.own), self.cut.size, self.cut.span
        if size is None:
            return batches
        samples = self._last_batch() + (batches - 1) * self.own_size if batches else 0
        whole, rest = divmod(samples, span * self.own_size)
        return whole * (span * self.own_size // size) + ceil(rest / size)

    def _last_batch(self) -> int:
        total = len(self.own.sampler) if hasattr(self.own, "sampler") and hasattr(self.own.sampler, "__len__") else 0
        return self.own_size if getattr(self.own, "drop_last", False) else total % self.own_size or self.own_size

    def __getattr__(self, name: str) -> Any:
        # Scripts reach through: `loader.batch_sampler.sampler.set_epoch(…)`.
        if name.startswith("__") or name in ("own", "cut", "own_size"):
            raise AttributeError(name)
        return getattr(self.own, name)


def _length(batch: Any) -> int | None:
    try:
        return len(batch)
    except TypeError:
        return None
