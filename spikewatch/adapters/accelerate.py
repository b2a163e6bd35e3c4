"""Accelerate: `run = attach(accelerator)` after `prepare`, `run.step(loss)` once a batch.

A step is counted, and a change carried out, only where Accelerate synchronised gradients, so the loop calls `step` in
every round, also under `with accelerator.accumulate(model)`.
"""

from __future__ import annotations

import sys
from typing import Any

from spikewatch import placement
from spikewatch.adapters import autocasts
from spikewatch.adapters.checkpointing import Checkpointing
from spikewatch.adapters.losses import StepLoss
from spikewatch.attaching import attach as attach_plain
from spikewatch.knob import Absent
from spikewatch.run import Phase, Run

PLANNED = {
    name: "planned under Accelerate: its loaders take a batch ahead, so one step would use batches of two sizes"
    for name in ("micro_batch_size", "accumulation_steps")
}
DISPATCHED = {
    name: "rank 0 reads the batches for all ranks (dispatch_batches)" for name in ("num_workers", "prefetch_factor")
}


def attach(
    accelerator: Any, model: Any = None, *, job: str | None = None, socket: str | None = None, **options: Any
) -> AcceleratedRun:
    """Attaches what `accelerator.prepare` was given: first model, first optimizer, first loader, the scaler.

    `model`: the one that `prepare` returned, for DDP's own times; else the module that went in. Other arguments as of
    `spikewatch.attach`, which does the rest. Never raises; what was not prepared is not measured.
    """
    if model is None:
        model = next(iter(getattr(accelerator, "_models", ())), None)
    optimizer = inner(next(iter(getattr(accelerator, "_optimizers", ())), None))
    shard = next(iter(getattr(accelerator, "_dataloaders", ())), None)
    scaler = getattr(accelerator, "scaler", None)
    run = attach_plain(model, optimizer, base(shard), scaler, job=job, socket=socket, **options)
    about = describe(model, optimizer, scaler, str(getattr(accelerator, "mixed_precision", "")))
    if about["parallelism"] == "none" and str(getattr(accelerator, "distributed_type", "")).find("MULTI_") >= 0:
        about["parallelism"] = "ddp"  # Accelerate keeps the module without what it wrapped around it
    run.describe(framework=version("accelerate"), **about)
    offer(run, model)
    run.offer(Absent(PLANNED))
    if dispatches(shard):
        run.offer(Absent(DISPATCHED))
    return AcceleratedRun(run, accelerator, shard)


class AcceleratedRun:
    """A `Run` that knows when Accelerate stepped. `loader` is the prepared one."""

    def __init__(self, run: Run, accelerator: Any, loader: Any) -> None:
        self.run, self.loader = run, loader
        self._accelerator = accelerator
        self._loss = StepLoss()

    def step(self, loss: Any = None, grad_norm: Any = None, samples: float | None = None) -> None:
        """Ends a round of the loop. `loss`: of this round's batch; the step's is their mean."""
        self._loss.add(loss)
        if getattr(self._accelerator, "sync_gradients", True):
            self.run.step(self._loss.mean(), grad_norm, samples)

    def phase(self, name: str) -> Phase:
        return self.run.phase(name)

    def close(self) -> None:
        self.run.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.run, name)

    def __enter__(self) -> AcceleratedRun:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


# --- what the Trainer, which runs on Accelerate, needs, too ----------------------------------------------------------


def inner(optimizer: Any) -> Any:
    """The optimizer itself: hooks on Accelerate's wrapper are never called."""
    while type(optimizer).__name__ == "AcceleratedOptimizer":
        optimizer = optimizer.optimizer
    return optimizer


def base(shard: Any) -> Any:
    """The loader that a prepared one reads; None where it is read on one rank for all."""
    return None if dispatches(shard) else getattr(shard, "base_dataloader", shard)


def offer(run: Run, model: Any) -> None:
    """The knobs that a prepared model has: its precision, with the contexts around its forward, and checkpointing."""
    if run._parts is None or model is None:
        return
    for context in autocasts.found(model):
        run._parts.precision.adopt(context)
    run.offer(Checkpointing(list(autocasts.unwrapped(model))[-1]))


def dispatches(shard: Any) -> bool:
    """Whether rank 0 reads for all."""
    return type(shard).__name__ == "DataLoaderDispatcher"


def describe(model: Any, optimizer: Any, scaler: Any, mixed: str) -> dict[str, str]:
    """`placement.describe`, with the mixed precision that Accelerate was told: no, fp16, bf16 or fp8."""
    about = placement.describe(model, optimizer, scaler)
    if mixed in ("fp16", "bf16", "fp8"):
        about["precision"] = f"{mixed}-mixed"
    elif mixed == "no" and about["precision"] == placement.UNKNOWN:
        about["precision"] = "fp32"
    return about


def version(name: str) -> str:
    """`name` with its version, as far as it was imported."""
    return f"{name} {getattr(sys.modules.get(name), '__version__', '')}".strip()
