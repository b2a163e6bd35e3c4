"""Gradient accumulation: how many batches make an optimizer step, and where in it the loop is.

The loop asks (`should_step`, `loss_weight`), so the numbers can change between two steps. Groups begin with each pass
and the last of a pass may be shorter, as if it were cut off by the end of the data; of a loader without a length
nobody knows the end, there groups run on from pass to pass.
"""

from __future__ import annotations

import sys
from threading import get_ident
from typing import Any

from spikewatch.batching_stream import Piece


class Count:
    """How far one pass is, in batches that are counted as they are handed over."""

    __slots__ = ("batches", "final", "full", "in_group", "left")

    def __init__(self, left: int | None, full: int, final: int, in_group: int) -> None:
        self.left = left  # batches not handed over yet; None: nobody knows
        self.full, self.final = full, final  # samples of a full batch, and of the pass's last one
        self.in_group = in_group  # batches handed over of the step in progress
        self.batches = 0  # that the step in progress has


class Batching:
    """The batches of one loop. Works as well where nothing else of ours does: the training counts on it."""

    __slots__ = (
        "_asked",
        "_carried",
        "_weighed",
        "accumulation",
        "accumulation_at_first",
        "last",
        "micro",
        "micro_at_first",
        "thread",
        "trouble",
        "weight",
    )

    def __init__(self, accumulation: int, micro: int | None = None) -> None:
        """`accumulation`: batches a step. `micro`: samples a batch, where it is known. Raises ValueError below 1."""
        if accumulation < 1:
            raise ValueError(f"accumulation_steps is a whole number from 1, not {accumulation}")
        self.accumulation = self.accumulation_at_first = accumulation
        self.micro = self.micro_at_first = micro
        self.last = True  # the batch in the loop's hands is the last of its step
        self.weight = 1.0  # of the batch in the loop's hands: its share of the step's samples
        self.trouble = "the loop has not asked run.should_step() yet"
        self.thread: int | None = None  # that calls `stepped`
        self._carried = 0  # batches of a step in progress that a pass without a known end left behind
        self._asked = self._weighed = False

    # --- what hands over batches ------------------------------------------------------------------------------------

    def begins(self, left: int | None, full: int = 1, final: int = 1) -> Count:
        """A pass begins, or goes on with batches of another size. `left`: how many batches it still has, None if
        nobody knows; `full` and `final`: samples of a full batch and of the pass's last one, where they may differ.
        """
        return Count(left, full, final, self._carried if left is None else 0)

    def handed(self, count: Count, piece: Piece | None = None) -> None:
        """A batch was handed over; `piece` says where in its group it is, else that is counted here."""
        self._asked = self._weighed = False
        if piece is not None and piece.last is not None:
            self.last = piece.last
            self.weight = piece.samples / piece.total if piece.samples and piece.total else 1.0
            return
        if count.in_group == 0 or not count.batches:
            known = self.accumulation if count.left is None else count.in_group + count.left
            count.batches = max(1, min(self.accumulation, known))
        ends = count.left is not None and count.left <= count.batches - count.in_group
        count.in_group += 1
        self.last = count.in_group >= count.batches
        if ends:
            samples = count.final if self.last else count.full
            self.weight = samples / ((count.batches - 1) * count.full + count.final)
        else:
            self.weight = 1.0 / count.batches
        if self.last:
            count.in_group = 0
        if count.left is None:
            self._carried = count.in_group
        else:
            count.left -= 1

    # --- the loop ---------------------------------------------------------------------------------------------------

    def should_step(self) -> bool:
        """Whether the optimizer steps after the batch in the loop's hands."""
        self._asked = True
        return self.last

    def loss_weight(self) -> float:
        """What the loss (a mean over the batch) is multiplied with, so that a step's gradients add up to a mean."""
        self._weighed = True
        return self.weight

    def stepped(self) -> None:
        """The loop calls an optimizer step done."""
        self.thread = get_ident()
        if not self._asked:
            self.trouble = "the loop steps without asking run.should_step()"
        elif not self.last:
            self.trouble = "run.step() was called in the middle of an accumulation: call it after an optimizer step"
        elif not self._weighed:
            self.trouble = "the loop does not multiply its loss with run.loss_weight"
        else:
            self.trouble = ""


def pass_shape(loader: Any) -> tuple[int | None, int, int]:
    """(batches of a pass or None, samples of a full one, of the last one), as `Batching.begins` takes them.

    An iterable-style dataset is not asked: its answer makes the DataLoader warn when it turns out wrong.
    """
    data = sys.modules.get("torch.utils.data")
    if data is not None and isinstance(loader, data.DataLoader) and isinstance(loader.dataset, data.IterableDataset):
        return None, 1, 1
    try:
        batches = len(loader)
    except (TypeError, NotImplementedError):
        return None, 1, 1
    sampler: Any = getattr(loader, "batch_sampler", None)
    if data is None or type(sampler) is not data.BatchSampler:
        return batches, 1, 1
    full = sampler.batch_size
    return batches, full, full if sampler.drop_last else len(sampler.sampler) % full or full


class Counted:
    """Any iterable of batches, counted for a `Batching`; where the loader's own iterator does not tell."""

    def __init__(self, loader: Any, batching: Batching) -> None:
        self._loader = loader
        self._batching = batching

    def __iter__(self) -> CountedPass:
        return CountedPass(iter(self._loader), self._batching, self._batching.begins(*pass_shape(self._loader)))

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name in ("_loader", "_batching"):
            raise AttributeError(name)
        return getattr(self._loader, name)


class CountedPass:
    """One pass over a `Counted`."""

    __slots__ = ("_batching", "_count", "_source")

    def __init__(self, source: Any, batching: Batching, count: Count) -> None:
        self._source, self._batching, self._count = source, batching, count

    def __iter__(self) -> CountedPass:
        return self

    def __next__(self) -> Any:
        batch = next(self._source)
        self._batching.handed(self._count)
        return batch

    def __getattr__(self, name: str) -> Any:
        if name in CountedPass.__slots__:
            raise AttributeError(name)
        return getattr(self._source, name)
