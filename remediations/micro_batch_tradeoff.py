"""Trades the micro batch for accumulation: half the samples at a time, twice as many times. Less memory, same training.

What one optimizer step holds, and with it the learning rate, stays exactly the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from remediations.batches import ACCUMULATION, MICRO
from sidecar.hooks import Case, Details, View
from sidecar.model import Alert, AlertState, Change, Knob, Scope, Skip, TrainerIdentity


class Params(BaseModel):
    """`with:` of a response."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    minimum: int = Field(1, ge=1, description="samples of a micro batch, at least")
    max_accumulation: int = Field(64, ge=2, le=4096, description="micro batches of an optimizer step, at most")


_KNOBS = {
    MICRO: Knob(MICRO, 16, 1, 256, "samples", Scope.ALL_RANK),
    ACCUMULATION: Knob(ACCUMULATION, 2, 1, 64, "steps", Scope.ALL_RANK),
}


class MicroBatchTradeoff:
    """Halves the micro batch and doubles the accumulation, both or neither."""

    name: ClassVar[str] = "micro_batch_tradeoff"
    params: ClassVar[type[BaseModel]] = Params
    actuator: ClassVar[str] = "trainer"
    knobs: ClassVar[tuple[str, ...]] = (MICRO, ACCUMULATION)
    example: ClassVar[Mapping[str, Any]] = {"minimum": 1, "max_accumulation": 64}
    details: ClassVar[Details] = Details(
        permissions=(f"trainer: change {MICRO} and {ACCUMULATION} on all ranks",),
        cases=(
            Case(
                "memory is short: half the micro batch, twice the accumulation",
                {},
                Alert("CheckpointResidency", (), (), AlertState.FIRING, 0.91, 0),
                View(_KNOBS, TrainerIdentity("job", "1", ("a",), (0,), 1), {}),
                Change("trainer", {MICRO: 8, ACCUMULATION: 4}),
            ),
        ),
    )

    def plan(self, alert: Alert, view: View, params: BaseModel) -> Change | Skip:
        """Skips with `no_trainer`, `knob_missing`, `at_limit` or `odd_micro_batch`."""
        assert isinstance(params, Params)
        if view.identity is None:
            return Skip("no_trainer", "no trainer is attached")
        missing = [name for name in self.knobs if name not in view.knobs]
        if missing:
            return Skip("knob_missing", f"the trainer does not offer {', '.join(missing)}")
        micro, accumulation = view.knobs[MICRO], view.knobs[ACCUMULATION]
        now, times = int(micro.value), int(accumulation.value)
        least = max(params.minimum, micro.minimum or 1)
        most = min(params.max_accumulation, accumulation.maximum or params.max_accumulation)
        if now % 2:
            return Skip("odd_micro_batch", f"{MICRO} = {now} has no half")
        if now // 2 < least or times * 2 > most:
            return Skip("at_limit", f"{MICRO} = {now} (least {least:g}), {ACCUMULATION} = {times} (most {most:g})")
        moves = f"{MICRO} {now} -> {now // 2}, {ACCUMULATION} {times} -> {times * 2}"
        return Change(self.actuator, {MICRO: now // 2, ACCUMULATION: times * 2}, moves)
