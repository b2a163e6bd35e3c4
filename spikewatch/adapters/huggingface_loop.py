"""The inside of the Trainer's loop: its losses, its waits for data, and its batches computed in pieces."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from spikewatch.adapters.losses import StepLoss
from spikewatch.adapters.microbatch import Splitting
from spikewatch.batches import measure
from spikewatch.meter import Meter

_REPLACED = ("training_step", "get_batch_samples")


def why_not_split(trainer: Any) -> str:
    """Why this Trainer's batches cannot be computed in pieces; empty where they can.

    Reads what decides how the Trainer weighs the loss of a batch, and who else takes part in a step.
    """
    theirs = sys.modules["transformers.trainer"].Trainer
    accelerator = trainer.accelerator
    engine = str(getattr(accelerator.distributed_type, "value", accelerator.distributed_type))
    if type(trainer)._prepare_inputs is not theirs._prepare_inputs:
        return f"{type(trainer).__name__} prepares batches of its own for several steps at a time"
    if any(kind.__name__ == "KTOTrainer" for kind in type(trainer).__mro__):
        return "KTO compares each sample with the others of its batch"
    if engine not in ("NO", "MULTI_CPU", "MULTI_GPU"):
        return f"planned under {engine}"
    if trainer.args.n_gpu > 1:
        return "one process drives several GPUs"
    if trainer.compute_loss_func is not None or getattr(trainer, "loss_is_scaled_for_ga", None):
        return "the loss function is the script's own, and only it knows how to weigh a part of a batch"
    if getattr(trainer, "get_sp_size", lambda: 1)() > 1:
        return "sequences are split over ranks"
    return ""


class Loop:
    """Stands before `training_step` and `get_batch_samples` of one Trainer until `undo`."""

    def __init__(self, trainer: Any, split: Splitting | None, meter: Meter, timed: bool) -> None:
        """`timed`: the loader is not instrumented, so its batches are timed and counted here."""
        self.loss = StepLoss()
        self._trainer, self._split, self._meter = trainer, split, meter
        self._step = trainer.training_step
        self._fetch = trainer.get_batch_samples
        self._before = {name: value for name, value in vars(trainer).items() if name in _REPLACED}
        trainer.training_step = self._training_step
        if timed:
            trainer.get_batch_samples = self._timed

    def undo(self) -> None:
        """Leaves the Trainer as it was found."""
        for name in _REPLACED:
            if getattr(vars(self._trainer).get(name), "__self__", None) is self:
                delattr(self._trainer, name)
                if name in self._before:
                    setattr(self._trainer, name, self._before[name])

    def _training_step(self, model: Any, inputs: Any, *more: Any, **named: Any) -> Any:
        pieces = self._pieces(inputs)
        if pieces is None:
            loss = self._step(model, inputs, *more, **named)
        else:
            loss = self._in_pieces(model, pieces, *more, **named)
        self.loss.add(loss)
        return loss

    def _pieces(self, inputs: Any) -> list[tuple[Any, int]] | None:
        if self._split is None:
            return None
        try:
            return self._split.pieces(inputs)
        except Exception:  # noqa: BLE001  the training goes on exactly as without us
            self._meter.errors += 1
            return None

    def _in_pieces(self, model: Any, pieces: list[tuple[Any, int]], *more: Any, **named: Any) -> Any:
        """The batch's loss. Each piece weighs what its samples do; only the last one's gradients are synchronised."""
        trainer, accelerator = self._trainer, self._trainer.accelerator
        accumulated = trainer.current_gradient_accumulation_steps
        whole = sum(samples for _, samples in pieces)
        loss = None
        try:
            for number, (piece, samples) in enumerate(pieces, 1):
                # The Trainer divides by this, or by the number of labels in all the step's batches.
                trainer.current_gradient_accumulation_steps = accumulated * whole / samples
                alone = number == len(pieces) or not accelerator.sync_gradients  # else the Trainer holds back already
                with contextlib.nullcontext() if alone else accelerator.no_sync(model):
                    part = self._step(model, piece, *more, **named)
                loss = part if loss is None else loss + part
        finally:
            trainer.current_gradient_accumulation_steps = accumulated
        return loss

    def _timed(self, *arguments: Any, **named: Any) -> Any:
        meter = self._meter
        began = meter.wait_begins()
        try:
            fetched = self._fetch(*arguments, **named)
        finally:
            meter.wait_ends(began)
        try:
            for batch in fetched[0]:
                meter.received(*measure(batch))
        except Exception:  # noqa: BLE001  as above
            meter.errors += 1
        return fetched
