"""What stands between a firing alert and a change: mode, limits, the plan and its bounds, guards, the baseline."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass

from sidecar.errors import QueryError, ResponseError
from sidecar.hooks import Actuator, Remediation, View
from sidecar.model import Alert, Change, Knob, Scope, Skip, TrainerIdentity
from sidecar.plugins import details
from sidecar.responses.episode import Plan, Refusal
from sidecar.responses.killswitch import Halt
from sidecar.responses.limits import Ledger, in_rollout, refusal
from sidecar.responses.measure import Measure
from sidecar.responses.response import Mode, Policy, Response
from sidecar.responses.statistics import Level, Window, lacks, level_of
from sidecar.responses.trials import unit_of


@dataclass(frozen=True, slots=True)
class Sight:
    """One actuator as seen in one tick. `undisturbed_since_ms`: nothing of it was changed or restarted since."""

    identity: TrainerIdentity | None
    knobs: Mapping[str, Knob]
    facts: Mapping[str, float]
    undisturbed_since_ms: int


class Gate:
    """Every check before an order, in the order in which the engine asks them. Holds no state of its own."""

    def __init__(
        self,
        remediations: Mapping[str, Remediation],
        actuators: Mapping[str, Actuator],
        ledger: Ledger,
        caps: Mapping[str, Mode],
        policy: Policy,
        pod: str = "",
    ) -> None:
        """`pod` is whose limits count where a response's scope is the pod."""
        self._remediations, self._actuators = remediations, actuators
        self._ledger, self._policy = ledger, policy
        self._caps, self._pod = caps, pod

    def mode(self, response: Response) -> Mode:
        """The file's mode, lowered by the platform's cap."""
        return min(response.mode, self._caps.get(response.remediation, Mode.ACT))

    def actuator(self, response: Response) -> str:
        """The actuator a response's changes go to."""
        return self._remediations[response.remediation].actuator

    def scope(self, response: Response, job: str) -> str:
        """The key under which its limits count."""
        scope = response.limits.scope
        return {"job": f"job:{job}", "pod": f"pod:{self._pod}" if self._pod else "pod", "fleet": "fleet"}[scope]

    def standing(
        self, response: Response, sight: Sight | None, busy: Container[str], halt: Halt | None, now_ms: int
    ) -> Refusal | None:
        """The refusals that do not depend on the alert: asked once a tick for each response. `busy` holds trainers."""
        name = self.actuator(response)
        if halt is not None:
            return Refusal("kill_switch", f"{halt.file} {halt.by} {halt.reason}".strip())
        if name not in self._actuators or sight is None:
            return Refusal("no_actuator", f"{response.remediation} needs the actuator {name!r}, which is not there")
        if sight.identity is None:
            return Refusal("no_trainer")
        job = sight.identity.job
        if not in_rollout(response.name, job, response.limits.rollout):
            return Refusal("not_in_rollout", f"job {job!r} is not among {response.limits.rollout:.4g} of all jobs")
        reason = refusal(self._ledger.record(response.name, self.scope(response, job)), response.limits, now_ms)
        if reason == "breaker_open":
            return Refusal(reason)
        if not response.awake(now_ms):
            return Refusal("outside_time_intervals")
        if unit_of(sight.identity) in busy:
            return Refusal("busy")
        return Refusal(reason) if reason else None

    def plan(self, response: Response, alert: Alert, sight: Sight) -> Plan | Refusal:
        """The remediation's plan, held to its declarations and to the bounds of every knob."""
        remediation = self._remediations[response.remediation]
        view = View(sight.knobs, sight.identity, sight.facts)
        try:
            params = response.params_for(alert)
        except ResponseError as e:
            return Refusal("bad_parameters", str(e))
        try:
            change = remediation.plan(alert, view, params)
        except Exception as e:  # noqa: BLE001 - a plugin's mistake is a refusal on record, not the end of the tick
            return Refusal("plugin_error", f"{type(e).__name__}: {e}")
        if isinstance(change, Skip):
            return Refusal(change.reason, change.detail)
        if sight.identity is None:
            return Refusal("no_trainer")
        return _checked(remediation, change, sight.knobs) or self._placed(response, change, sight.knobs, sight.identity)

    def _placed(
        self, response: Response, change: Change, knobs: Mapping[str, Knob], identity: TrainerIdentity
    ) -> Plan | Refusal:
        quarantined = self._ledger.quarantined(identity.job) & set(change.values)
        if quarantined:
            return Refusal("quarantined", f"{', '.join(sorted(quarantined))} ended in an out-of-memory kill")
        if any(knobs[name].scope is Scope.ALL_RANK for name in change.values) and 0 not in identity.ranks:
            return Refusal("not_leader", "only the sidecar of global rank 0 changes what all ranks share")
        # What the trainer moves by itself has no value to be compared, neither by it nor with the plan that was shown.
        drifts = details(self._remediations[response.remediation]).drifts
        found = {name: knobs[name].value for name in change.values if name not in drifts}
        return Plan(change, found, identity.job, identity.epoch, identity.run_ids)

    def needs_approval(self, response: Response, plan: Plan, knobs: Mapping[str, Knob]) -> bool:
        """Also where a change touches all ranks and the platform has not allowed `act` in so many words."""
        if self.mode(response) is Mode.SUGGEST:
            return True
        shared = any(knobs[name].scope is Scope.ALL_RANK for name in plan.change.values if name in knobs)
        return shared and self._caps.get(response.remediation) is not Mode.ACT

    def alert_range_ms(self, alert: Alert, measure: Measure) -> int:
        """How far back an alert may look: until then it can still speak of the time before a change."""
        try:
            return measure.longest_range_ms(alert.expr) if alert.expr else self._policy.unknown_range_ms
        except QueryError:
            return self._policy.unknown_range_ms

    def guards(self, response: Response, measure: Measure, now_ms: int) -> Refusal | None:
        """A guard that is broken, or cannot be seen, before anything was done."""
        try:
            for expr in response.verify.abort_if:
                if measure.evaluate(expr, now_ms):
                    return Refusal("guard_broken", expr)
            for expr in response.verify.watched:
                if not measure.seen(expr, now_ms):
                    return Refusal("guard_absent", expr)
        except QueryError as e:
            return Refusal("query_error", str(e))
        return None

    def levels(self, response: Response, baseline: Window, measure: Measure) -> Mapping[str, Level] | Refusal:
        """Where each guarded value stood over the baseline; what is not a finite number is broken before it begins."""
        found: dict[str, Level] = {}
        for guard in response.verify.guards:
            try:
                values = [v for _, v in measure.values(guard.expr, baseline.after_ms, baseline.until_ms)]
            except QueryError as e:
                return Refusal("query_error", str(e))
            if len(values) < self._policy.min_samples:
                return Refusal("thin_baseline", f"{len(values)} values of {guard.expr}")
            level = level_of(values)
            if level is None:
                return Refusal("guard_broken", guard.expr)
            found[guard.expr] = level
        return found

    def baseline(
        self, response: Response, active_at_ms: int, sight: Sight, measure: Measure, now_ms: int
    ) -> Window | Refusal:
        """What the trainer did before: only while the alert was active and after the ranges have left what was before.

        Grows beyond the configured length while it holds too few steps, as far as there is anything to read.
        """
        verify, policy = response.verify, self._policy
        try:
            floor = max(active_at_ms, sight.undisturbed_since_ms) + measure.longest_range_ms(verify.expr)
            after = now_ms - verify.baseline_ms
            if after < floor:
                return Refusal("thin_baseline", f"full in {floor - after} ms")
            steps = measure.steps(after, now_ms)
            if steps is not None and steps < policy.min_steps:
                after = max(floor, now_ms - policy.stretch * verify.baseline_ms)
                steps = measure.steps(after, now_ms)
                if steps is None or steps < policy.min_steps:
                    return Refusal("thin_baseline", f"{steps or 0:g} of {policy.min_steps:g} steps")
            found = measure.increments(verify.expr, after, now_ms)
        except QueryError as e:
            return Refusal("query_error", str(e))
        if found.elements > 1:
            return Refusal("not_one_element", f"{verify.expr} has {found.elements} elements")
        window = Window(after, now_ms, found.samples, steps)
        lack = lacks(window, min_steps=policy.min_steps, min_samples=policy.min_samples)
        return Refusal("thin_baseline", lack) if lack else window


def _checked(remediation: Remediation, change: Change, knobs: Mapping[str, Knob]) -> Refusal | None:
    for name, value in change.values.items():
        if change.actuator != remediation.actuator or name not in remediation.knobs:
            return Refusal("undeclared_knob", f"{remediation.name} does not declare {change.actuator}.{name}")
        knob = knobs.get(name)
        if knob is None:
            return Refusal("knob_missing", name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            low = knob.minimum if knob.minimum is not None else value
            high = knob.maximum if knob.maximum is not None else value
            if not low <= value <= high:
                return Refusal("out_of_bounds", f"{name} = {value} is not within [{low:g}, {high:g}]")
    if all(knobs[name].value == value for name, value in change.values.items()):
        return Refusal("no_change")
    return None
