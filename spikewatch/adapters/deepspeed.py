"""DeepSpeed: `run = attach(engine)` after `initialize`, `run.step(loss)` after each `engine.step()`.

A step is counted, and a change carried out, only where the engine stepped its optimizer, so the loop calls `step` in
every round, also where gradients accumulate.
"""

from __future__ import annotations

import sys
from typing import Any

from spikewatch import placement
from spikewatch.adapters.accelerate import version
from spikewatch.adapters.losses import StepLoss
from spikewatch.attaching import attach as attach_plain
from spikewatch.knob import Absent
from spikewatch.run import Phase, Run

PLANNED = {
    "micro_batch_size": "planned under DeepSpeed: its engine counts the batches of a step by itself",
    "accumulation_steps": "planned under DeepSpeed: its engine counts the batches of a step by itself",
    "gradient_checkpointing": "planned under DeepSpeed: it has checkpointing of its own",
}


def attach(
    engine: Any, loader: Any = None, *, job: str | None = None, socket: str | None = None, **options: Any
) -> EngineRun:
    """Attaches an engine. `loader`: the one the loop iterates, else the engine's own, made of its `training_data`.

    Other arguments as of `spikewatch.attach`, which does the rest. Never raises.
    """
    if loader is None:
        own = getattr(engine, "training_dataloader", None)
        loader = getattr(own, "dataloader", own)
    optimizer = getattr(engine, "basic_optimizer", None)
    scaler = EngineScaler(engine)
    run = attach_plain(engine, optimizer, loader, scaler, job=job, socket=socket, **options)
    run.describe(framework=version("deepspeed"), **placement.describe(engine))
    run.offer(Absent(PLANNED))
    return EngineRun(run, engine, loader)


class EngineRun:
    """A `Run` that knows when the engine stepped."""

    def __init__(self, run: Run, engine: Any, loader: Any) -> None:
        self.run, self.loader = run, loader
        self._engine = engine
        self._steps = getattr(engine, "global_steps", 0)
        self._loss = StepLoss()

    def step(self, loss: Any = None, grad_norm: Any = None, samples: float | None = None) -> None:
        """Ends a round of the loop. `loss`: of this round's batch; the step's is their mean."""
        self._loss.add(loss)
        steps = getattr(self._engine, "global_steps", None)
        if steps != self._steps:
            self._steps = steps
            self.run.step(self._loss.mean(), grad_norm, samples)

    def phase(self, name: str) -> Phase:
        return self.run.phase(name)

    def close(self) -> None:
        self.run.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.run, name)

    def __enter__(self) -> EngineRun:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class EngineScaler:
    """The engine's loss scale, seen and set as that of a `torch.amp.GradScaler`. All of it are numbers on the host."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._at: Any = None
        self._update: dict[int, Any] = {}

    @property
    def _keeper(self) -> Any:
        """Where the ZeRO optimizers keep their scale. Those of stage 0 have another place, and in 0.19 the loss is not
        scaled by what stands there.
        """
        keeper = getattr(getattr(self._engine, "optimizer", None), "loss_scaler", None)
        return keeper if hasattr(keeper, "cur_scale") and hasattr(keeper, "scale_window") else None

    def is_enabled(self) -> bool:
        """Whether the engine scales the loss, by a scale it adapts."""
        keeper = self._keeper
        fp16 = getattr(self._engine, "fp16_enabled", lambda: False)()
        return bool(fp16 and keeper is not None)

    @property
    def _scale(self) -> Any:
        keeper = self._keeper
        return None if keeper is None else sys.modules["torch"].tensor(float(keeper.cur_scale))

    @property
    def _init_scale(self) -> float:
        return float(self._keeper.cur_scale)

    @property
    def _per_optimizer_states(self) -> dict[int, Any]:
        """Another one after each step, as of a scaler that was updated."""
        if self._engine.global_steps != self._at:
            self._at, self._update = self._engine.global_steps, {}
        return self._update

    def get_scale(self) -> float:
        return float(self._keeper.cur_scale)

    def get_growth_interval(self) -> int:
        return int(self._keeper.scale_window)

    def get_backoff_factor(self) -> float:
        return 1.0 / float(self._keeper.scale_factor)

    def state_dict(self) -> dict[str, Any]:
        return {"scale": self.get_scale(), "growth_interval": self.get_growth_interval(), "_growth_tracker": 0}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Sets scale and interval. The engine grows its scale by a count of steps that only an overflow moves."""
        self._keeper.cur_scale = float(state["scale"])
        self._keeper.scale_window = int(state["growth_interval"])
