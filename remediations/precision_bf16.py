"""Leaves fp16 for bf16: the range of fp32, so that gradients neither overflow nor underflow. One way only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from sidecar.hooks import Case, Details, View
from sidecar.model import Alert, AlertState, Change, Knob, Scope, Skip, TrainerIdentity

PRECISION, FROM, TO = "precision", "fp16", "bf16"


class Params(BaseModel):
    """`with:` of a response: there is nothing to set."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PrecisionBf16:
    """Switches mixed precision from fp16 to bf16; the gradient scaler stays and passes everything through."""

    name: ClassVar[str] = "precision_bf16"
    params: ClassVar[type[BaseModel]] = Params
    actuator: ClassVar[str] = "trainer"
    knobs: ClassVar[tuple[str, ...]] = (PRECISION,)
    example: ClassVar[Mapping[str, Any]] = {}
    details: ClassVar[Details] = Details(
        permissions=(f"trainer: change {PRECISION} on all ranks",),
        cases=(
            Case(
                "an overflow storm under fp16: bf16",
                {},
                Alert("LossScaleCollapse", (), (), AlertState.FIRING, 0.04, 0),
                View(
                    {PRECISION: Knob(PRECISION, FROM, scope=Scope.ALL_RANK)},
                    TrainerIdentity("job", "1", ("a",), (0,), 1),
                    {},
                ),
                Change("trainer", {PRECISION: TO}),
            ),
        ),
    )

    def plan(self, alert: Alert, view: View, params: BaseModel) -> Change | Skip:
        """Skips with `no_trainer`, `knob_missing`, `at_limit` (bf16 already) or `not_fp16`."""
        if view.identity is None:
            return Skip("no_trainer", "no trainer is attached")
        precision = view.knobs.get(PRECISION)
        if precision is None:
            return Skip("knob_missing", f"the trainer does not offer {PRECISION}")
        if precision.value == TO:
            return Skip("at_limit", f"the precision is {TO} already")
        if precision.value != FROM:
            return Skip("not_fp16", f"the precision is {precision.value}, and only {FROM} overflows as this is for")
        return Change(self.actuator, {PRECISION: TO}, f"{PRECISION} {FROM} -> {TO}")
