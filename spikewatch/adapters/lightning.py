"""Lightning: `Trainer(callbacks=[SpikewatchCallback()])`, for `lightning.pytorch` and `pytorch_lightning` alike."""

from __future__ import annotations

import logging
import sys
from typing import Any

from spikewatch import layout, placement
from spikewatch.adapters.accelerate import version
from spikewatch.adapters.lightning_loop import Loop, why_not_split
from spikewatch.adapters.losses import StepLoss
from spikewatch.adapters.microbatch import NAMES, Splitting
from spikewatch.attaching import attach
from spikewatch.knob import Absent
from spikewatch.run import Run

log = logging.getLogger("spikewatch")

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
_PRECISIONS = {"32": "fp32", "16": "fp16", "64": "fp64"}


def __getattr__(name: str) -> Any:
    # The class is made when it is asked for, of the Lightning that the script uses: both packages may be installed.
    if name != "SpikewatchCallback":
        raise AttributeError(f"module {__name__} has no attribute {name}")
    package = next((p for p in _PACKAGES if p in sys.modules), None)
    if package is None:
        import lightning.pytorch

        package = lightning.pytorch.__name__
    made = type(name, (Callback, sys.modules[package].Callback), {"__module__": __name__, "__doc__": Callback.__doc__})
    globals()[name] = made
    return made


class Callback:
    """Attaches as `fit` begins, counts optimizer steps, and lets go when it ends. Never raises.

    `run` is the attached run, None before. Arguments as of `spikewatch.attach`.
    """

    def __init__(self, *, job: str | None = None, socket: str | None = None, **options: Any) -> None:
        self.run: Run | None = None
        self._options: dict[str, Any] = {"job": job, "socket": socket, **options}
        self._loop: Loop | None = None
        self._loss = StepLoss()
        self._steps = 0

    # --- what the Trainer calls -------------------------------------------------------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage != "fit":
            return
        try:
            self._let_go()
            # The loader must be had before its first iterator is made, and no hook comes between the two.
            self._loop = Loop(trainer, lambda loader: self._begin(trainer, loader))
        except Exception as error:  # noqa: BLE001  the training goes on exactly as without us
            self._give_up(error)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if self.run is None and self._loop is not None:
            self._begin(trainer, None)
        self._steps = trainer.global_step

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._phase(layout.TRAIN)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        run, loop = self.run, self._loop
        if run is None or loop is None:
            return
        self._loss.add(loop.loss_of(outputs))
        if trainer.global_step != self._steps:  # else gradients are being accumulated
            self._steps = trainer.global_step
            run.step(self._loss.total())

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._phase(layout.EVAL)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._phase(layout.TRAIN)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        self._phase(layout.CHECKPOINT)  # until the next batch: nothing says when it is written

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._let_go()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._let_go()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._let_go()

    # --- inside -----------------------------------------------------------------------------------------------------

    def _begin(self, trainer: Any, loader: Any) -> None:
        try:
            self._attach(trainer, loader)
        except Exception as error:  # noqa: BLE001  as above
            self._give_up(error)

    def _attach(self, trainer: Any, loader: Any) -> None:
        loop = self._loop
        if self.run is not None or loop is None:
            return  # one loader of several, or one that was made anew for a later epoch
        optimizer = trainer.optimizers[0] if trainer.optimizers else None
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        model = trainer.strategy.model
        run = attach(model, optimizer, loader, scaler, **self._options)
        if run._parts is None:
            return
        self.run = run
        loop.adopt(run._parts.precision)
        run.describe(framework=version("lightning"), **_about(model, optimizer, scaler, trainer.precision_plugin))
        size = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
        why = why_not_split(trainer) or ("" if isinstance(size, int) else "the loader has no batch size")
        if why:
            run.offer(Absent(dict.fromkeys(NAMES, why)))
        elif isinstance(size, int):
            loop.split = Splitting(size, trainer.accumulate_grad_batches)
            run.offer(loop.split)

    def _phase(self, phase: int) -> None:
        parts = self.run._parts if self.run is not None else None
        if parts is not None and parts.meter.phase not in (phase, layout.STARTUP):
            parts.meter.enter(phase)

    def _give_up(self, error: Exception) -> None:
        log.warning("spikewatch stays off: %r", error)
        self._let_go()

    def _let_go(self) -> None:
        loop, self._loop = self._loop, None
        run, self.run = self.run, None
        if loop is not None:
            loop.undo()
        if run is not None:
            run.close()


def _about(model: Any, optimizer: Any, scaler: Any, plugin: Any) -> dict[str, str]:
    about = placement.describe(model, optimizer, scaler)
    kind, _, mixed = str(getattr(plugin, "precision", "")).partition("-")
    if kind:
        about["precision"] = _PRECISIONS.get(kind, kind) + ("-mixed" if mixed == "mixed" else "")
    return about
