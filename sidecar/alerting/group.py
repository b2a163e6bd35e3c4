"""A group at work: its rules one after the other at one instant, so that later ones see what earlier ones wrote."""

from __future__ import annotations

from dataclasses import dataclass

from sidecar.alerting.history import Evaluation, Health
from sidecar.alerting.rules import Rule, RuleGroup, RuleKey
from sidecar.alerting.runner import At, RuleRunner, Tools
from sidecar.alerting.schedule import Slots, slot_offset
from sidecar.alerting.state import Transition
from sidecar.model import Alert, AlertState


@dataclass(frozen=True, slots=True)
class RuleStatus:
    """One rule as seen from outside."""

    rule: Rule
    key: RuleKey
    state: AlertState  # the worst of its alerts; inactive for a recording rule
    health: Health
    last_error: str
    history: tuple[Evaluation, ...]  # the last evaluations, oldest first
    evaluations: int
    failures: int
    alerts: tuple[Alert, ...]


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """One group as seen from outside. `last_slot_ms` is 0 before the first evaluation."""

    group: RuleGroup
    interval_ms: int
    last_slot_ms: int
    last_duration_ns: int
    missed: int
    rules: tuple[RuleStatus, ...]


class GroupRunner:
    """Evaluates one group. Its slots begin with the first `due`, not with the object."""

    def __init__(self, group: RuleGroup, keys: tuple[RuleKey, ...], default_interval_ms: int) -> None:
        self.group = group
        self.interval_ms = group.interval_ms or default_interval_ms
        self._pace_ms = default_interval_ms
        self.rules = tuple(RuleRunner(rule, key) for rule, key in zip(group.rules, keys, strict=True))
        self.slots: Slots | None = None
        self.last_slot_ms = 0
        self.last_duration_ns = 0

    def due(self, now_ms: int) -> int | None:
        """The slot to evaluate now, if any."""
        if self.slots is None:
            # Whole multiples of the pace at which samples come in: a slot between two of them would judge by samples
            # that are a part of the pace older than they could be.
            offset = slot_offset(self.group.name, self.group.file, self.interval_ms)
            self.slots = Slots(self.interval_ms, offset - offset % self._pace_ms, now_ms)
        due = self.slots.due(now_ms)
        return None if due is None else due.at_ms

    def evaluate(self, slot_ms: int, tools: Tools) -> list[tuple[RuleRunner, Transition]]:
        """All rules at one slot."""
        started = tools.stopwatch()
        at = At(slot_ms, self.group.query_offset_ms, self.group.limit)
        out = [(runner, t) for runner in self.rules for t in runner.evaluate(at, tools)]
        self.last_slot_ms, self.last_duration_ns = slot_ms, tools.stopwatch() - started
        return out

    def status(self, tools: Tools) -> GroupStatus:
        """For the API."""
        return GroupStatus(
            self.group,
            self.interval_ms,
            self.last_slot_ms,
            self.last_duration_ns,
            0 if self.slots is None else self.slots.missed,
            tuple(_status(runner, tools) for runner in self.rules),
        )


def _status(runner: RuleRunner, tools: Tools) -> RuleStatus:
    states = {instance.state for instance in runner.state.values()}
    worst = next((s for s in (AlertState.FIRING, AlertState.PENDING) if s in states), AlertState.INACTIVE)
    last = runner.history.last
    return RuleStatus(
        rule=runner.rule,
        key=runner.key,
        state=worst,
        health=runner.history.health,
        last_error=last.error if last else "",
        history=runner.history.recent,
        evaluations=runner.history.evaluations,
        failures=runner.history.failures,
        alerts=tuple(runner.alerts(tools)),
    )
