"""Ends a storm of gradient overflows: a lower loss scale that grows back more slowly, and never below its floor.

PyTorch's scaler halves its scale at every overflow without a floor of its own, and tries to double it again after every
`growth_interval` good steps. A job whose gradients stand just that one doubling skips a step each time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sidecar.hooks import Case, Details, Reading, View
from sidecar.model import Alert, AlertState, Change, Knob, KnobValue, Scope, Skip, TrainerIdentity

SCALE, INTERVAL = "loss_scale", "loss_scale_growth_interval"


class Params(BaseModel):
    """`with:` of a response."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    factor: float = Field(0.25, gt=0, le=1, description="multiplies the scale")
    floor: float = Field(1.0, ge=1, le=65536, description="the scale, at least; one that is lower is raised to it")
    interval_factor: float = Field(4, ge=1, le=64, description="multiplies the growth interval")
    max_interval: int = Field(20_000, ge=1, le=10_000_000, description="good steps between two doublings, at most")

    @model_validator(mode="after")
    def _changes_something(self) -> Params:
        if self.factor == 1 and self.interval_factor == 1:
            raise ValueError("factor 1 and interval_factor 1 change nothing")
        return self


def _knobs(scale: float, interval: int) -> dict[str, Knob]:
    return {
        SCALE: Knob(SCALE, scale, 1, 16_777_216, "", Scope.ALL_RANK),
        INTERVAL: Knob(INTERVAL, interval, 1, 1_000_000, "steps", Scope.ALL_RANK),
    }


_STORM = Alert("LossScaleCollapse", (), (), AlertState.FIRING, 0.04, 0)
_WHO = TrainerIdentity("job", "1", ("a",), (0,), 1)


class LossScale:
    """Lowers the scale and lengthens its growth interval."""

    name: ClassVar[str] = "loss_scale"
    params: ClassVar[type[BaseModel]] = Params
    actuator: ClassVar[str] = "trainer"
    knobs: ClassVar[tuple[str, ...]] = (SCALE, INTERVAL)
    example: ClassVar[Mapping[str, Any]] = {"factor": 0.25, "floor": 1, "interval_factor": 4}
    details: ClassVar[Details] = Details(
        permissions=(f"trainer: change {SCALE} and {INTERVAL} on all ranks",),
        reads={"scale": Reading(f"min(spikewatch_trainer_{SCALE})", 120_000)},
        drifts=(SCALE,),
        cases=(
            Case(
                "a storm at a scale of 1024: a quarter of it, growing back a quarter as often",
                {},
                _STORM,
                View(_knobs(1024.0, 100), _WHO, {}),
                Change("trainer", {SCALE: 256.0, INTERVAL: 400}),
            ),
            Case(
                "the scale has collapsed: raised to the floor, below which good gradients underflow",
                {},
                _STORM,
                View(_knobs(0.125, 20_000), _WHO, {}),
                Change("trainer", {SCALE: 1.0}),
            ),
        ),
    )

    def plan(self, alert: Alert, view: View, params: BaseModel) -> Change | Skip:
        """Skips with `no_trainer`, `knob_missing` or `at_limit`. Without the knob of the interval, the scale alone."""
        assert isinstance(params, Params)
        if view.identity is None:
            return Skip("no_trainer", "no trainer is attached")
        scale, interval = view.knobs.get(SCALE), view.knobs.get(INTERVAL)
        if scale is None:
            return Skip("knob_missing", f"the trainer does not offer {SCALE}: it scales no loss")
        values: dict[str, KnobValue] = {SCALE: _scaled(scale, view, params)}
        if interval is not None:
            values[INTERVAL] = _longer(interval, params)
        changed = {name: value for name, value in values.items() if value != view.knobs[name].value}
        if not changed:
            told = ", ".join(f"{name} = {view.knobs[name].value}" for name in values)
            return Skip("at_limit", f"{told}: at the floor of {params.floor:g}")
        moves = ", ".join(f"{name} {view.knobs[name].value} -> {value}" for name, value in changed.items())
        return Change(self.actuator, changed, moves)


def _scaled(scale: Knob, view: View, params: Params) -> float:
    """A factor of the scale, but not below the floor; what is below it already comes up to it.

    Of the lowest scale lately: in a storm the scaler moves it all the time, and a plan that moved along would never be
    the one that was approved.
    """
    lately = [value for _, value in view.series.get("scale", ()) if value > 0]
    floor = max(params.floor, scale.minimum or 0.0)
    wanted = max(floor, min([float(scale.value), *lately]) * params.factor)
    return min(wanted, scale.maximum) if scale.maximum is not None else wanted


def _longer(interval: Knob, params: Params) -> int:
    now = int(interval.value)
    most = params.max_interval if interval.maximum is None else min(params.max_interval, int(interval.maximum))
    return max(now, min(most, round(now * params.interval_factor)))
