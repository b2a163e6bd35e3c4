"""What a training loop asks of its run: whether to step, what the loss weighs, where the data stands."""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from spikewatch.batching import Batching
from spikewatch.refusal import Refused
from spikewatch.tuner import Tuner

log = logging.getLogger("spikewatch")

OFF = "spikewatch is off in this run"


class Loop:
    """The part of a `Run` that the training itself depends on: it works also where the client is off or closed."""

    _batching: Batching | None = None
    _model: weakref.ref[Any] | None = None
    _tuner: Tuner | None = None
    _why_no_tuner: str = OFF

    def use(self, batching: Batching | None, model: Any, tuner: Tuner | None, why_no_tuner: str) -> None:
        """`attach` calls it once. `why_no_tuner`: why `tuner` is None."""
        self._batching, self._tuner, self._why_no_tuner = batching, tuner, why_no_tuner
        with contextlib.suppress(TypeError):  # a list of models, say: `accumulate` has to be told which
            self._model = None if model is None else weakref.ref(model)

    def should_step(self) -> bool:
        """Whether the optimizer is to step after the batch that the loop has in hands: it completes a group of
        `accumulation_steps`, or the pass. Always, where attach was given no `accumulation_steps`.
        """
        return self._batching is None or self._batching.should_step()

    @property
    def accumulation_steps(self) -> int:
        """Batches that make an optimizer step now."""
        return 1 if self._batching is None else self._batching.accumulation

    @property
    def loss_weight(self) -> float:
        """What to multiply this batch's loss with before `backward`, if the loss is a mean over its samples: the
        batch's share of the samples of its step. Usually 1 / accumulation_steps.
        """
        return 1.0 if self._batching is None else self._batching.loss_weight()

    def accumulate(self, *models: Any) -> AbstractContextManager[Any]:
        """Around forward and backward of one batch: gradients are exchanged between ranks in a step's last batch only.

        `models`: those to hold back, else the one given to attach. Does something for DistributedDataParallel and
        FSDP (`no_sync`) and FSDP2 (`set_requires_gradient_sync`), nothing for others.
        """
        last = self._batching is None or self._batching.last
        known = self._model() if self._model is not None else None
        held = contextlib.ExitStack()
        for model in models or (() if known is None else (known,)):
            if hasattr(model, "set_requires_gradient_sync"):
                model.set_requires_gradient_sync(last)
            elif not last and hasattr(model, "no_sync"):
                held.enter_context(model.no_sync())
        return held

    def data_state(self) -> dict[str, Any]:
        """Where the data stands, for `state_dict`: between steps, as `torch.load(weights_only=True)` takes it, 5 KB.

        Where the position cannot be told, `reason` says why. Between two passes it says that, so the resumed run
        begins the next one. Never raises.
        """
        if self._tuner is None:
            return {"position": None, "reason": self._why_no_tuner}
        try:
            return {"position": self._tuner.position(), "reason": ""}
        except Refused as refusal:
            return {"position": None, "reason": refusal.detail}
        except Exception as error:  # noqa: BLE001  a checkpoint without a position is better than none
            log.warning("spikewatch: the checkpoint is without the data's position: %r", error)
            return {"position": None, "reason": repr(error)[:200]}

    def resume_data(self, state: Any, strict: bool) -> bool:
        """The next pass over the loader goes on where `data_state` was taken. Returns whether it will.

        Where not, the reason is logged, or with `strict` raised as ValueError.
        """
        try:
            self._resume(state)
        except ValueError as error:
            if strict:
                raise
            log.warning("spikewatch: the next pass begins at its beginning: %s", error)
            return False
        return True

    def _resume(self, state: Any) -> None:
        if not isinstance(state, Mapping) or not state.get("position"):
            reason = state.get("reason") if isinstance(state, Mapping) else ""
            raise ValueError("the checkpoint has no position of the data" + (f": {reason}" if reason else ""))
        if self._tuner is None:
            raise ValueError(f"the data's position cannot be set: {self._why_no_tuner}")
        try:
            self._tuner.resume(state["position"])
        except Refused as refusal:
            raise ValueError(f"the data's position cannot be set: {refusal.detail}") from refusal
        except (KeyError, TypeError, AttributeError, RuntimeError) as error:
            raise ValueError(f"the checkpoint's position is damaged: {error!r}") from error
