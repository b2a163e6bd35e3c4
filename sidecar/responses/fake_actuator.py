"""A trainer and the way to it, for tests and drills: obeys the actuator's contract, and misbehaves on request.

It keeps the promises of the real client: one open change at a time, values compared before they are set, a change
that nobody confirms undone when its lease runs out, the same order twice carried out once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from sidecar.clock import Clock
from sidecar.errors import ChannelError
from sidecar.model import ChangeState, Knob, KnobValue, Order, Outcome, TrainerIdentity


@dataclass(slots=True)
class _Change:
    order: Order
    state: ChangeState
    due_ms: int  # when an order that is on its way takes effect
    lease_end_ms: int | None
    undo_due_ms: int | None = None
    step: int = -1
    reason: str = ""
    by: str = ""
    found: dict[str, KnobValue] = field(default_factory=dict)


class FakeActuator:
    """Time passes as its clock says; whatever is due happens before anything is answered.

    `refuse`: reason for which new orders are refused. `delay_ms`: how long an order or a revert takes to take effect.
    `lose`: names of messages that never arrive (apply, renew, keep, revert). `broken`: every call that sends raises.
    """

    name: ClassVar[str] = "trainer"

    def __init__(self, clock: Clock, knobs: Mapping[str, Knob], *, job: str = "job", step_ms: int = 1000) -> None:
        """`knobs` as a trainer has them at its start; `step_ms` is the time of one step."""
        self.refuse = ""
        self.delay_ms = 0
        self.lose: set[str] = set()
        self.broken = False
        self.sent: list[tuple[str, str]] = []  # (message, change id), also those lost
        self.history: list[dict[str, KnobValue]] = []  # the values after each change of them
        self._clock, self._job, self._step_ms = clock, job, step_ms
        self._initial = dict(knobs)
        self._attached_from_ms: int | None = 0
        self._runs = 0
        self.restart_trainer()

    # --- what happens to the trainer ----------------------------------------------------------------------------

    def restart_trainer(self) -> None:
        """The process ends and another begins: other run id, the values of its start, no memory of any change."""
        self._runs += 1
        self._knobs = dict(self._initial)
        self._changes: dict[str, _Change] = {}

    def detach(self) -> None:
        """The connection is lost; the trainer goes on, and so do its leases."""
        self._attached_from_ms = None

    def attach(self, after_ms: int = 0) -> None:
        """The trainer is there again, after a while where given."""
        self._attached_from_ms = self._clock.now_ms() + after_ms

    def set_by_hand(self, name: str, value: KnobValue) -> None:
        """Somebody else changes a knob."""
        self._happen()
        self._knobs[name] = replace(self._knobs[name], value=value)

    def values(self) -> dict[str, KnobValue]:
        """The values in effect, whether or not anybody is attached."""
        self._happen()
        return {name: knob.value for name, knob in self._knobs.items()}

    def open_changes(self) -> list[str]:
        """Changes that are on their way, or applied and not confirmed."""
        self._happen()
        return [i for i, c in self._changes.items() if c.state in (ChangeState.PENDING, ChangeState.APPLIED)]

    @property
    def run_id(self) -> str:
        """The present process."""
        return f"run-{self._runs}"

    # --- the actuator -------------------------------------------------------------------------------------------

    def identity(self) -> TrainerIdentity | None:
        """As in `hooks.Actuator`."""
        self._happen()
        if not self._attached():
            return None
        return TrainerIdentity(self._job, f"epoch-{self._runs}", (self.run_id,), (0,), 1)

    def knobs(self) -> Mapping[str, Knob]:
        """As in `hooks.Actuator`; empty while nobody is attached."""
        self._happen()
        return dict(self._knobs) if self._attached() else {}

    def apply(self, order: Order) -> None:
        """As in `hooks.Actuator`. Raises ChannelError when told to."""
        if not self._arrives("apply", order.change_id) or order.change_id in self._changes:
            return
        now = self._clock.now_ms()
        change = _Change(order, ChangeState.PENDING, now + self.delay_ms, now + order.lease_ms)
        if self.refuse or self.open_changes():
            change.state, change.reason = ChangeState.REFUSED, self.refuse or "busy"
        self._changes[order.change_id] = change
        self._happen()

    def renew(self, change_id: str, lease_ms: int) -> None:
        """As in `hooks.Actuator`. Raises ChannelError when told to."""
        if self._arrives("renew", change_id):
            change = self._changes.get(change_id)
            if change is not None and change.lease_end_ms is not None:
                change.lease_end_ms = self._clock.now_ms() + lease_ms

    def keep(self, change_id: str) -> None:
        """As in `hooks.Actuator`. Raises ChannelError when told to."""
        if self._arrives("keep", change_id):
            change = self._changes.get(change_id)
            if change is not None and change.state is ChangeState.APPLIED and change.undo_due_ms is None:
                change.state, change.lease_end_ms = ChangeState.KEPT, None

    def revert(self, change_id: str) -> None:
        """As in `hooks.Actuator`. Raises ChannelError when told to."""
        if self._arrives("revert", change_id):
            change = self._changes.get(change_id)
            undone = (ChangeState.PENDING, ChangeState.APPLIED)
            if change is not None and change.state in undone and change.undo_due_ms is None:
                change.undo_due_ms, change.by = self._clock.now_ms() + self.delay_ms, "order"
            self._happen()

    def outcome(self, change_id: str) -> Outcome:
        """As in `hooks.Actuator`; UNKNOWN while nobody is attached."""
        self._happen()
        change = self._changes.get(change_id) if self._attached() else None
        if change is None:
            return Outcome(ChangeState.UNKNOWN)
        now = {name: self._knobs[name].value for name in change.order.values}
        return Outcome(change.state, change.reason, change.step, change.found, now, change.by)

    # --- inside -------------------------------------------------------------------------------------------------

    def _attached(self) -> bool:
        return self._attached_from_ms is not None and self._attached_from_ms <= self._clock.now_ms()

    def _arrives(self, message: str, change_id: str) -> bool:
        self._happen()
        self.sent.append((message, change_id))
        if self.broken:
            raise ChannelError(f"{message} could not be sent: the connection is broken")
        return message not in self.lose and self._attached()

    def _happen(self) -> None:
        now = self._clock.now_ms()
        for change in self._changes.values():
            end = change.lease_end_ms
            if change.state is ChangeState.PENDING and change.due_ms <= now and change.undo_due_ms is None:
                if end is None or change.due_ms < end:
                    self._carry_out(change, change.due_ms)
            if end is not None and end <= now and (change.undo_due_ms is None or change.undo_due_ms > end):
                change.undo_due_ms, change.by = end, "lease"
            if change.undo_due_ms is not None and change.undo_due_ms <= now:
                self._undo(change)

    def _carry_out(self, change: _Change, at_ms: int) -> None:
        found = {name: self._knobs[name].value for name in change.order.values}
        if any(found.get(name) != value for name, value in change.order.expect.items()):
            change.state, change.reason, change.lease_end_ms = ChangeState.REFUSED, "conflict", None
            return
        change.found, change.state, change.step = found, ChangeState.APPLIED, at_ms // self._step_ms
        self._set(change.order.values)

    def _undo(self, change: _Change) -> None:
        change.undo_due_ms = change.lease_end_ms = None
        if change.state is ChangeState.APPLIED:
            if any(self._knobs[name].value != value for name, value in change.order.values.items()):
                change.state, change.reason = ChangeState.KEPT, "conflict"  # somebody else's value stands
                return
            self._set(change.found)
        change.state = ChangeState.REVERTED

    def _set(self, values: Mapping[str, KnobValue]) -> None:
        for name, value in values.items():
            self._knobs[name] = replace(self._knobs[name], value=value)
        self.history.append({name: knob.value for name, knob in self._knobs.items()})
