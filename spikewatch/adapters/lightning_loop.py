"""The inside of Lightning's loop: its training loader before the first iterator, and its batches in pieces.

Lightning computes a batch in a closure: forward, then zero the gradients where a step begins, then backward. So the
first piece's forward takes the place of the batch's, and the other pieces follow in the place of its backward, where
the gradients are zeroed already.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from spikewatch.adapters.microbatch import Splitting
from spikewatch.numerics_precision import MixedPrecision

_REPLACED = ("process_dataloader", "training_step", "backward")
_AUTOCAST = "autocast_context_manager"
_STRATEGIES = ("SingleDeviceStrategy", "DDPStrategy")


def why_not_split(trainer: Any) -> str:
    """Why this trainer's batches cannot be computed in pieces; empty where they can."""
    strategy = type(trainer.strategy).__name__
    if strategy not in _STRATEGIES:
        return f"planned under {strategy}"
    if not trainer.lightning_module.automatic_optimization:
        return "the module optimizes by itself (automatic_optimization=False)"
    if len(trainer.optimizers) != 1:
        return "the module has several optimizers"
    return ""


class Loop:
    """Stands before three methods of one trainer's strategy until `undo`. `split` is None as long as nothing splits."""

    def __init__(self, trainer: Any, found: Callable[[Any], None]) -> None:
        """`found` is called with each loader of the training, before it is iterated."""
        self.split: Splitting | None = None
        self._trainer, self._found = trainer, found
        self._strategy = strategy = trainer.strategy
        self._before = {name: value for name, value in vars(strategy).items() if name in _REPLACED}
        self._process, self._forward, self._backward = (getattr(strategy, name) for name in _REPLACED)
        self._rest: list[tuple[Any, int]] = []  # pieces of the present batch that are still to be computed
        self._arguments: tuple[Any, ...] = ()
        self._weights: tuple[int, int] = (1, 1)  # samples of the first piece, and of the batch
        self._losses: Any = None  # of the present batch, from its pieces
        strategy.process_dataloader = self._process_dataloader
        strategy.training_step = self._training_step
        strategy.backward = self._backward_pass
        self._plugin: Any = None

    def adopt(self, precision: MixedPrecision) -> None:
        """Lets `precision` change the contexts that the precision plugin makes for each forward pass."""
        plugin = self._trainer.precision_plugin
        if not hasattr(plugin, _AUTOCAST) or _AUTOCAST in vars(plugin):
            return
        make = getattr(plugin, _AUTOCAST)

        def made() -> Any:
            context = make()
            precision.adopt(context)
            return context

        setattr(plugin, _AUTOCAST, made)
        self._plugin = plugin

    def undo(self) -> None:
        """Leaves the strategy as it was found."""
        if self._plugin is not None:
            vars(self._plugin).pop(_AUTOCAST, None)
        for name in _REPLACED:
            if getattr(vars(self._strategy).get(name), "__self__", None) is self:
                delattr(self._strategy, name)
                if name in self._before:
                    setattr(self._strategy, name, self._before[name])

    def loss_of(self, outputs: Any) -> Any:
        """This batch's loss, divided by the batches accumulated; of all its pieces."""
        losses, self._losses = self._losses, None
        if losses is not None:
            return losses
        return outputs.get("loss") if isinstance(outputs, Mapping) else outputs

    # --- in place of the strategy's ---------------------------------------------------------------------------------

    def _process_dataloader(self, loader: Any) -> Any:
        processed = self._process(loader)
        if self._trainer.training:
            self._found(processed)
        return processed

    def _training_step(self, *arguments: Any, **named: Any) -> Any:
        self._rest = []  # of a batch whose step returned nothing
        pieces = self._pieces(arguments[0]) if arguments and not named else None
        if pieces is None:
            return self._forward(*arguments, **named)
        whole = sum(samples for _, samples in pieces)
        (first, samples), *self._rest = pieces
        self._arguments, self._weights = arguments[1:], (samples, whole)
        with self._unsynchronised():
            return self._forward(first, *arguments[1:])

    def _backward_pass(self, loss: Any, optimizer: Any, *more: Any, **named: Any) -> Any:
        rest, self._rest = self._rest, []
        if not rest:
            return self._backward(loss, optimizer, *more, **named)
        samples, whole = self._weights
        weighed = loss * (samples / whole)
        self._losses = weighed.detach()
        with self._unsynchronised():
            self._backward(weighed, optimizer, *more, **named)
        for number, (piece, samples) in enumerate(rest, 1):
            with contextlib.nullcontext() if number == len(rest) else self._unsynchronised():
                returned = self._backward(self._loss(piece) * (samples / whole), optimizer, *more, **named)
        return returned

    # --- inside -----------------------------------------------------------------------------------------------------

    def _pieces(self, batch: Any) -> list[tuple[Any, int]] | None:
        if self.split is None:
            return None
        try:
            return self.split.pieces(batch)
        except Exception:  # noqa: BLE001  the training goes on exactly as without us
            self.split = None
            return None

    def _loss(self, piece: Any) -> Any:
        """Of one more piece, as Lightning would have it: divided by the batches it accumulates."""
        module, trainer = self._trainer.lightning_module, self._trainer
        hook, module._current_fx_name = module._current_fx_name, "training_step"  # what `self.log` goes by
        try:
            output = self._forward(piece, *self._arguments)
        finally:
            module._current_fx_name = hook
        loss = (output["loss"] if isinstance(output, Mapping) else output) / trainer.accumulate_grad_batches
        self._losses = self._losses + loss.detach()
        return loss

    def _unsynchronised(self) -> contextlib.AbstractContextManager[Any]:
        """Gradients stay on their rank: also where Lightning holds them back already."""
        block = getattr(self._strategy, "block_backward_sync", None)
        held: contextlib.AbstractContextManager[Any] = block() if block is not None else contextlib.nullcontext()
        return held
