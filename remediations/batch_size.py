"""Changes the micro batch by one of four strategies: utilisation, stability, variance-formula, warmup-decay.

By default what one optimizer step holds stays the same: the accumulation makes up for the micro batch, so neither the
learning rate nor the course of the training needs adjusting. `global_batch: follow` lets it change along.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from remediations import strategies
from remediations.batches import ACCUMULATION, LR, MICRO, Room, bounded
from sidecar.hooks import Case, Details, Reading, View
from sidecar.model import Alert, AlertState, Change, Knob, KnobValue, Scope, Skip, TrainerIdentity

READS = {
    "steps": Reading("max(spikewatch_trainer_steps_total)"),
    "gpu_use": Reading("avg(spikewatch_gpu_sm_active_ratio)"),
    "gradient_norm": Reading("max(spikewatch_trainer_gradient_norm)"),
    "nonfinite": Reading("sum(rate(spikewatch_trainer_nonfinite_losses_total[1m]))", 120_000),
}

LEAST_VALUES = 16
"""Gradient norms that a variance is taken from, at least: of fewer its own error exceeds a third of it."""

_OWN: Mapping[str, tuple[str, ...]] = {
    "utilisation": ("threshold", "windows", "window_steps", "growth", "lr_cut"),
    "stability": ("window_steps", "high_variance", "low_variance"),
    "variance-formula": ("window_steps",),
    "warmup-decay": ("start", "peak", "warmup_steps", "total_steps", "accumulation_base"),
}
_SHARED = ("strategy", "global_batch", "minimum", "maximum", "multiple")


class Params(BaseModel):
    """`with:` of a response. What belongs to another strategy is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    strategy: Literal["utilisation", "stability", "variance-formula", "warmup-decay"]
    global_batch: Literal["keep", "follow"] = "keep"
    minimum: int | None = Field(None, ge=1, description="samples; by default that of the strategy")
    maximum: int | None = Field(None, ge=1, description="samples; by default that of the strategy")
    multiple: int | None = Field(None, ge=1, le=4096, description="of what the size must be a multiple")
    window_steps: int | None = Field(None, ge=2, le=100_000, description="steps that are averaged over")
    windows: int = Field(3, ge=1, le=20, description="windows in a row above the threshold")
    threshold: float = Field(0.85, gt=0, le=1, description="mean GPU use of a window")
    growth: float = Field(strategies.GROWTH, gt=1, le=4)
    lr_cut: float = Field(0.1, ge=0, lt=1, description="off the learning rate after a loss that is not finite")
    high_variance: float = Field(0.5, gt=0, description="variance of gradient norms over their squared mean")
    low_variance: float = Field(0.05, ge=0)
    start: int | None = Field(None, ge=1)
    peak: int | None = Field(None, ge=1)
    warmup_steps: int | None = Field(None, ge=0)
    total_steps: int | None = Field(None, ge=1)
    accumulation_base: int | None = Field(None, ge=1, description="the size is a multiple of it")

    @model_validator(mode="after")
    def _consistent(self) -> Params:
        foreign = self.model_fields_set - {*_SHARED, *_OWN[self.strategy]}
        if foreign:
            raise ValueError(f"{', '.join(sorted(foreign))}: not for the strategy {self.strategy}")
        if self.strategy == "warmup-decay":
            wanted = ("start", "peak", "warmup_steps", "total_steps")
            if missing := [name for name in wanted if getattr(self, name) is None]:
                raise ValueError(f"the strategy warmup-decay needs {', '.join(missing)}")
            if (self.warmup_steps or 0) >= (self.total_steps or 0) or (self.start or 0) > (self.peak or 0):
                raise ValueError("the warm-up must end before the run, and start must not exceed peak")
        if self.low_variance >= self.high_variance:
            raise ValueError("low_variance must be below high_variance")
        if self.minimum is not None and self.maximum is not None and self.minimum > self.maximum:
            raise ValueError("minimum must not exceed maximum")
        return self


def _unproven(params: BaseModel) -> str:
    if getattr(params, "strategy", "") == "utilisation":
        return "the strategy utilisation reads GPU activity, and was run on recordings of it only"
    return ""


class BatchSize:
    """Plans a micro batch; the trainer applies it on all ranks at one step."""

    name: ClassVar[str] = "batch_size"
    params: ClassVar[type[BaseModel]] = Params
    actuator: ClassVar[str] = "trainer"
    knobs: ClassVar[tuple[str, ...]] = (MICRO, ACCUMULATION, LR)
    example: ClassVar[Mapping[str, Any]] = {"strategy": "stability", "global_batch": "follow", "maximum": 64}
    details: ClassVar[Details]  # below, because its cases need what follows

    def plan(self, alert: Alert, view: View, params: BaseModel) -> Change | Skip:
        """Skips with `no_trainer`, `knob_missing`, `thin_history`, `steady`, `at_limit` or `no_fit`."""
        assert isinstance(params, Params)
        if view.identity is None:
            return Skip("no_trainer", "no trainer is attached")
        micro = view.knobs.get(MICRO)
        if micro is None:
            return Skip("knob_missing", f"the trainer does not offer {MICRO}")
        accumulation = view.knobs.get(ACCUMULATION)
        if params.global_batch == "keep" and accumulation is None:
            return Skip("knob_missing", f"the trainer does not offer {ACCUMULATION}, which would keep the global batch")
        now = int(micro.value)
        if params.strategy == "utilisation" and any(value > 0 for _, value in view.series.get("nonfinite", ())):
            return self._back(now, micro, accumulation, view, params)
        wish = _wish(now, accumulation, view, params)
        if isinstance(wish, Skip):
            return wish
        target, why = wish
        return self._moved(target, now, _room(now, micro, accumulation, params), accumulation, params, why)

    def _moved(
        self, target: int, now: int, room: Room, accumulation: Knob | None, params: Params, why: str
    ) -> Change | Skip:
        if target == now:
            return Skip("steady", f"{MICRO} = {now}: {why}")
        size = room.towards(target, now)
        if size is None:
            free = Room(room.low, room.high, room.multiple)
            reason = "at_limit" if free.towards(target, now) is None else "no_fit"
            return Skip(reason, f"{MICRO} = {now}, wanted {target}: {why}; {_told(room)}")
        values: dict[str, KnobValue] = {MICRO: size}
        moves = f"{MICRO} {now} -> {size}"
        if room.whole is not None and accumulation is not None:
            values[ACCUMULATION] = room.whole // size
            moves += f", {ACCUMULATION} {accumulation.value} -> {values[ACCUMULATION]}"
        elif accumulation is not None:
            # Said too: a trainer that is told the one alone would make the other up for it.
            values[ACCUMULATION] = accumulation.value
        return Change(self.actuator, values, f"{moves}: {why}")

    def _back(self, now: int, micro: Knob, accumulation: Knob | None, view: View, params: Params) -> Change | Skip:
        """After a loss that was not finite: the size before, and a little off the learning rate."""
        lr = view.knobs.get(LR)
        if lr is None:
            return Skip("knob_missing", f"the trainer does not offer {LR}")
        room = _room(now, micro, accumulation, params)
        smaller = self._moved(
            strategies.before_growth(now, params.growth, room.multiple), now, room, accumulation, params, "back"
        )
        values = dict(smaller.values) if isinstance(smaller, Change) else {}
        factor = float(lr.value) * (1 - params.lr_cut)
        if lr.minimum is not None:
            factor = max(factor, lr.minimum)
        if factor != lr.value:
            values[LR] = factor
        if not values:
            return Skip("at_limit", f"{MICRO} = {now} and {LR} = {lr.value} are as low as they go")
        moves = ", ".join(f"{name} {view.knobs[name].value} -> {value}" for name, value in values.items())
        return Change(self.actuator, values, f"{moves}: a loss was not finite")


def _room(now: int, micro: Knob, accumulation: Knob | None, params: Params) -> Room:
    low, high = {
        "utilisation": (strategies.SMALLEST, None),
        "stability": strategies.STABILITY_LIMITS,
        "variance-formula": strategies.FORMULA_LIMITS,
        "warmup-decay": (1, params.peak),
    }[params.strategy]
    low = low if params.minimum is None else params.minimum
    low, high = bounded(low, high if params.maximum is None else params.maximum, micro)
    multiple = params.multiple or _multiple(accumulation, params)
    whole = now * int(accumulation.value) if params.global_batch == "keep" and accumulation is not None else None
    if whole is not None and accumulation is not None:
        # The accumulation has bounds too: the largest of them is the smallest micro batch, and the other way round.
        least, most = bounded(1, None, accumulation)
        low, high = max(low, -(-whole // most)), min(high, whole // least)
    return Room(low, high, multiple, whole)


def _multiple(accumulation: Knob | None, params: Params) -> int:
    if params.strategy == "utilisation":
        return strategies.MULTIPLE
    if params.strategy != "warmup-decay":
        return 1
    return params.accumulation_base or (int(accumulation.value) if accumulation is not None else 1)


def _wish(now: int, accumulation: Knob | None, view: View, params: Params) -> tuple[int, str] | Skip:
    """The size wanted before any bound, and why."""
    steps = view.series.get("steps", ())
    if params.strategy == "warmup-decay":
        if not steps:
            return Skip("thin_history", "the step is not known")
        step, total = steps[-1][1], params.total_steps or 1
        size = strategies.scheduled(step, params.start or 1, params.peak or 1, params.warmup_steps or 0, total)
        base = params.multiple or _multiple(accumulation, params)
        return max(base, math.floor(size / base + 1e-9) * base), f"the schedule at step {step:g} of {total}"
    if params.strategy == "utilisation":
        length = params.window_steps or 100
        use = strategies.full_windows(
            strategies.by_steps(view.series.get("gpu_use", ()), steps), length, params.windows
        )
        if use is None:
            return Skip("thin_history", f"less than {params.windows} windows of {length} steps have been seen")
        told = ", ".join(f"{u:.0%}" for u in use)
        if min(use) < params.threshold - 1e-9:  # a mean of equal numbers may fall short of them
            return Skip("steady", f"GPU use of the last windows {told}: not all at {params.threshold:.0%}")
        target = strategies.grown(now, params.growth, params.multiple or strategies.MULTIPLE)
        return target, f"GPU use of the last windows {told}"
    length = params.window_steps or 128
    norms = strategies.by_steps(view.series.get("gradient_norm", ()), steps)
    found = strategies.spread(norms, length, LEAST_VALUES)
    if found is None:
        return Skip("thin_history", f"no gradient norms over {length} steps, or one that is not finite")
    mean, variance = found
    if params.strategy == "variance-formula":
        return strategies.from_variance(variance), f"gradient variance {variance:.4g}"
    if mean <= 0:
        return Skip("steady", "the gradients are zero")
    relative = variance / mean**2
    size = strategies.steadied(now, relative, params.high_variance, params.low_variance)
    return size, f"relative gradient variance {relative:.3g} over {length} steps"


def _told(room: Room) -> str:
    kept = f", dividing the {room.whole} samples of a step" if room.whole is not None else ""
    return f"it must be a multiple of {room.multiple} from {room.low} to {room.high}{kept}"


def _case(what: str, strategy: Mapping[str, Any], micro: int, answer: Change | Skip, **series: Any) -> Case:
    knobs = {
        MICRO: Knob(MICRO, micro, 1, 1024, "samples", Scope.ALL_RANK),
        ACCUMULATION: Knob(ACCUMULATION, 8, 1, 64, "steps", Scope.ALL_RANK),
        LR: Knob(LR, 1.0, 0.01, 10, "", Scope.ALL_RANK),
    }
    alert = Alert("GradientsUnsteady", (), (), AlertState.FIRING, 1.0, 0)
    identity = TrainerIdentity("job", "1", ("a",), (0,), 1)
    return Case(what, strategy, alert, View(knobs, identity, {}, series), answer)


_STEPS = tuple((1000 * t, 10.0 * t) for t in range(61))
_UNSTEADY = tuple((1000 * t, 1.0 if t % 2 else 9.0) for t in range(61))
_BUSY = tuple((1000 * t, 0.93) for t in range(61))

BatchSize.details = Details(
    permissions=(f"trainer: change {MICRO}, {ACCUMULATION} and {LR} on all ranks",),
    reads=READS,
    cases=(
        _case(
            "gradients vary much from step to step: half the micro batch, twice the accumulation",
            {"strategy": "stability"},
            32,
            Change("trainer", {MICRO: 16, ACCUMULATION: 16}),
            steps=_STEPS,
            gradient_norm=_UNSTEADY,
        ),
        _case(
            "three windows of 100 steps above 85 %: a quarter more, to a multiple of 16",
            {"strategy": "utilisation", "global_batch": "follow"},
            32,
            Change("trainer", {MICRO: 48, ACCUMULATION: 8}),
            steps=_STEPS,
            gpu_use=_BUSY,
        ),
        _case(
            "past the end of the schedule: the smallest that the accumulation divides",
            {"strategy": "warmup-decay", "global_batch": "follow", "start": 8, "peak": 64, "warmup_steps": 100,
             "total_steps": 500},
            32,
            Change("trainer", {MICRO: 8, ACCUMULATION: 8}),
            steps=_STEPS,
        ),
    ),
    unproven=_unproven,
)  # fmt: skip
