"""A running experiment with what only this process knows of it: the baseline, the guards' patience, the OOM count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sidecar.errors import QueryError
from sidecar.hooks import Actuator
from sidecar.model import ChangeState, Outcome
from sidecar.responses.experiment import UNVERIFIED, Experiment, Phase, Seen
from sidecar.responses.measure import Measure
from sidecar.responses.response import Policy, Response
from sidecar.responses.statistics import Judgement, Level, Verdict, Window, judge

OOM_FACT = "oom_kills_total"
"""The fact that counts out-of-memory kills in this pod; where it is unknown nothing is quarantined."""


LOOK_BACK_MS = 60_000
"""How far back a guarded value's newest samples are looked for, where they are rare."""


@dataclass(slots=True)
class Trial:
    """`response` and `baseline` are None for an experiment taken over from a former process: it is never measured."""

    experiment: Experiment
    response: Response | None = None
    baseline: Window | None = None
    oom_kills: float | None = None
    levels: Mapping[str, Level] = field(default_factory=dict)  # of the guards, by expression
    guard_absent_ms: int = 0
    detail: str = ""  # about the newest guard that broke

    def seen(
        self, actuator: Actuator | None, measure: Measure, facts: Mapping[str, float], policy: Policy, now_ms: int
    ) -> Seen:
        """This tick's observations for the state machine."""
        if actuator is None:  # no longer configured: the lease decides, and the state machine waits for it
            return Seen(now_ms, None, Outcome(ChangeState.UNKNOWN))
        try:
            identity, outcome = actuator.identity(), actuator.outcome(self.experiment.change_id)
        except Exception:  # noqa: BLE001  foreign code that fails tells as much as one that is not there
            return Seen(now_ms, None, Outcome(ChangeState.UNKNOWN))
        if self.response is None or self.baseline is None or self.experiment.phase not in UNVERIFIED:
            return Seen(now_ms, identity, outcome)
        try:
            settle = policy.settle_for(measure.longest_range_ms(self.response.verify.expr))
            self.detail = ""
            broken = "oom_kill" if self.killed(facts) else self._guard(self.response, measure, policy, settle, now_ms)
            judgement = None if broken else self._judgement(self.response, self.baseline, measure, policy, now_ms)
        except QueryError:
            return Seen(now_ms, identity, outcome, broken="query_error")
        return Seen(now_ms, identity, outcome, settle, broken, self.detail, judgement)

    def killed(self, facts: Mapping[str, float]) -> bool:
        """Whether something in this pod was killed for memory since the order left."""
        kills = facts.get(OOM_FACT)
        return kills is not None and self.oom_kills is not None and kills > self.oom_kills

    def _guard(self, response: Response, measure: Measure, policy: Policy, settle_ms: int, now_ms: int) -> str:
        for expr in response.verify.abort_if:
            if measure.evaluate(expr, now_ms):
                self.detail = expr
                return "guard_broken"
        if self.experiment.measure_from_ms and self._unsteady(response, measure, settle_ms, now_ms):
            return "unsteady"
        absent = not all(measure.seen(expr, now_ms) for expr in response.verify.watched)
        self.guard_absent_ms = (self.guard_absent_ms or now_ms) if absent else 0
        return "guard_absent" if absent and now_ms - self.guard_absent_ms >= policy.guard_grace_ms else ""

    def _unsteady(self, response: Response, measure: Measure, settle_ms: int, now_ms: int) -> bool:
        """Whether a guarded value has risen since the change was applied."""
        applied_ms = self.experiment.measure_from_ms - settle_ms
        for guard in response.verify.guards:
            level = self.levels.get(guard.expr)
            if level is None:
                continue
            recent = [v for _, v in measure.values(guard.expr, max(applied_ms, now_ms - LOOK_BACK_MS), now_ms)]
            z = level.z(recent)
            if z is not None and z > guard.z:
                self.detail = f"{guard.expr}: z = {z:.3g}, {guard.z:g} allowed; it was {level.median:.6g} before"
                return True
        return False

    def _judgement(
        self, response: Response, baseline: Window, measure: Measure, policy: Policy, now_ms: int
    ) -> Judgement | None:
        """None until the window is full: as long as configured, and then as long as steps come but are too few."""
        x, verify = self.experiment, response.verify
        length = now_ms - x.measure_from_ms
        if x.phase is not Phase.MEASURING or length < verify.window_ms:
            return None
        steps = measure.steps(x.measure_from_ms, now_ms)
        if steps is None and baseline.steps is not None:
            return Judgement(Verdict.INCONCLUSIVE, "missing_data_in_window")
        if steps is not None and 0 < steps < policy.min_steps and length < policy.stretch * verify.window_ms:
            return None
        found = measure.increments(verify.expr, x.measure_from_ms, now_ms)
        if found.elements > 1:
            return Judgement(Verdict.INCONCLUSIVE, "not_one_element")
        return judge(
            baseline,
            Window(x.measure_from_ms, now_ms, found.samples, steps),
            goal=verify.goal,
            by=verify.by,
            min_steps=policy.min_steps,
            min_samples=policy.min_samples,
        )
