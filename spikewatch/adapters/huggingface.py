"""Hugging Face Trainer, and the TRL trainers built on it: `Trainer(…, callbacks=[SpikewatchCallback()])`."""

from __future__ import annotations

import logging
import sys
from types import FrameType
from typing import Any

from spikewatch import layout
from spikewatch.adapters import accelerate
from spikewatch.adapters.huggingface_loop import Loop, why_not_split
from spikewatch.adapters.huggingface_seeds import follow_workers
from spikewatch.adapters.microbatch import NAMES, Splitting
from spikewatch.attaching import attach
from spikewatch.knob import Absent
from spikewatch.run import Run

log = logging.getLogger("spikewatch")


def __getattr__(name: str) -> Any:
    # The class is made when it is asked for: this module is importable where transformers is not.
    if name != "SpikewatchCallback":
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from transformers import TrainerCallback

    made = type(name, (Callback, TrainerCallback), {"__module__": __name__, "__doc__": Callback.__doc__})
    globals()[name] = made
    return made


class Callback:
    """Attaches when the training begins, counts optimizer steps, and lets go when it ends. Never raises.

    `run` is the attached run, None before. Arguments as of `spikewatch.attach`.
    """

    def __init__(self, *, job: str | None = None, socket: str | None = None, **options: Any) -> None:
        self.run: Run | None = None
        self._options: dict[str, Any] = {"job": job, "socket": socket, **options}
        self._loop: Loop | None = None
        self._norm: float | None = None
        self._logged_loss: float | None = None

    # --- what the Trainer calls -------------------------------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, **found: Any) -> None:
        try:
            self._let_go()
            self._begin(args, sys._getframe(1), **found)
        except Exception as error:  # noqa: BLE001  the training goes on exactly as without us
            log.warning("spikewatch stays off: %r", error)
            self._let_go()

    def on_step_begin(self, args: Any, state: Any, control: Any, **found: Any) -> None:
        self._phase(layout.TRAIN)

    def on_step_end(self, args: Any, state: Any, control: Any, **found: Any) -> None:
        run = self.run
        if run is None:
            return
        loss, self._logged_loss = self._logged_loss, None
        norm, self._norm = self._norm, None
        run.step(self._loop.loss.total() if self._loop is not None else loss, norm)
        # what the Trainer does before it asks for the next batch
        if getattr(control, "should_evaluate", False):
            self._phase(layout.EVAL)
        elif getattr(control, "should_save", False):
            self._phase(layout.CHECKPOINT)

    def on_evaluate(self, args: Any, state: Any, control: Any, **found: Any) -> None:
        self._phase(layout.CHECKPOINT if getattr(control, "should_save", False) else layout.TRAIN)

    def on_save(self, args: Any, state: Any, control: Any, **found: Any) -> None:
        self._phase(layout.TRAIN)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **found: Any) -> None:
        # The Trainer hands these out only where it logs: read here they cost nobody a wait for the device.
        logs = logs or {}
        self._norm = _number(logs.get("grad_norm"))
        self._logged_loss = _number(logs.get("loss"))

    def on_train_end(self, args: Any, state: Any, control: Any, **found: Any) -> None:
        self._let_go()

    # --- inside -----------------------------------------------------------------------------------------------------

    def _begin(
        self,
        args: Any,
        frame: FrameType,
        model: Any = None,
        optimizer: Any = None,
        train_dataloader: Any = None,
        **_: Any,
    ) -> None:
        trainer = _trainer(frame, self)
        optimizer_itself, scaler = accelerate.inner(optimizer), getattr(optimizer, "scaler", None)
        wrapped = getattr(trainer, "model_wrapped", None) or model
        loader = accelerate.base(train_dataloader)
        follow_workers(loader)
        run = attach(wrapped, optimizer_itself, loader, scaler, **self._options)
        if run._parts is None:
            return
        self.run = run
        mixed = str(getattr(getattr(optimizer, "accelerator_state", None), "mixed_precision", ""))
        about = accelerate.describe(wrapped, optimizer_itself, scaler, mixed)
        run.describe(framework=accelerate.version("transformers"), **about)
        accelerate.offer(run, wrapped)
        if accelerate.dispatches(train_dataloader):
            run.offer(Absent(accelerate.DISPATCHED))
        if trainer is None:
            run.offer(Absent(dict.fromkeys(NAMES, "the Trainer that calls this callback was not found")))
            return
        why = why_not_split(trainer)
        split = None if why else Splitting(trainer._train_batch_size, args.gradient_accumulation_steps)
        run.offer(Absent(dict.fromkeys(NAMES, why)) if split is None else split)
        self._loop = Loop(trainer, split, run._parts.meter, timed=run._parts.tuner is None)

    def _phase(self, phase: int) -> None:
        parts = self.run._parts if self.run is not None else None
        if parts is not None and parts.meter.phase not in (phase, layout.STARTUP):
            parts.meter.enter(phase)

    def _let_go(self) -> None:
        loop, self._loop = self._loop, None
        run, self.run = self.run, None
        if loop is not None:
            loop.undo()
        if run is not None:
            run.close()


def _trainer(frame: FrameType | None, callback: Any) -> Any:
    """The Trainer among the callers: it hands itself to no callback, and this one runs inside its `train`."""
    while frame is not None:
        caller = frame.f_locals.get("self")
        kinds = {f"{kind.__module__}.{kind.__name__}" for kind in type(caller).__mro__}
        if "transformers.trainer.Trainer" in kinds:
            trainer: Any = caller
            if callback in trainer.callback_handler.callbacks:
                return trainer
        frame = frame.f_back
    return None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
