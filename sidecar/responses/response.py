"""A response as the engine sees it: which alerts it answers, with what, how far it may go, and how it is judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal

from pydantic import BaseModel

from sidecar.model import Alert
from sidecar.responses.matchers import Matcher
from sidecar.responses.parameters import Templated
from sidecar.responses.statistics import Goal
from sidecar.responses.timeintervals import TimeInterval


class Mode(IntEnum):
    """How far a response may go; ordered, so that the lower of two is `min`."""

    OBSERVE = 0  # says what it would do
    SUGGEST = 1  # does it once somebody has approved
    ACT = 2  # does it

    @property
    def text(self) -> str:
        """As written in a file."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Guard:
    """A value that must not rise by more than `z` robust deviations while a change is on trial."""

    expr: str
    z: float = 6.0


@dataclass(frozen=True, slots=True)
class Verify:
    """How a change is judged. `by` is a ratio (0.05 = 5 %); any element of an `abort_if` expression breaks it off, and
    so does a guard that leaves its range.
    """

    expr: str
    goal: Goal
    by: float
    baseline_ms: int
    window_ms: int
    abort_if: tuple[str, ...] = ()
    guards: tuple[Guard, ...] = ()

    @property
    def watched(self) -> tuple[str, ...]:
        """Every expression beside `expr`; what they read must exist."""
        return (*self.abort_if, *(g.expr for g in self.guards))


@dataclass(frozen=True, slots=True)
class Limits:
    """How often a response may act on one pod, job or the fleet, and after how many ineffective experiments in a row it
    stops. `rollout` is the share of jobs, 0 to 1, that it acts on at all.
    """

    scope: Literal["pod", "job", "fleet"] = "job"
    cooldown_ms: int = 300_000
    per_hour: int = 4
    max_ineffective: int = 3
    rollout: float = 1.0


@dataclass(frozen=True, slots=True)
class Approval:
    """Who is to be asked, and for how long an unanswered plan, and then a yes, counts (None: the engine's time)."""

    owner: str = ""
    expires_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Response:
    """One entry of a responses file, validated. `params` is an instance of the remediation's own schema, or a schema
    with templates that become one with an alert. `active` None: at any time.
    """

    name: str
    matchers: tuple[Matcher, ...]
    remediation: str
    params: BaseModel | Templated
    mode: Mode
    verify: Verify
    limits: Limits = field(default_factory=Limits)
    approval: Approval = field(default_factory=Approval)
    active: tuple[TimeInterval, ...] | None = None
    muted: tuple[TimeInterval, ...] = ()

    def answers(self, labels: Mapping[str, str]) -> bool:
        """Whether every matcher accepts these labels (`alertname` among them)."""
        return all(m.matches(labels) for m in self.matchers)

    def params_for(self, alert: Alert) -> BaseModel:
        """The parameters, with the alert's labels and value in them. Raises ResponseError where they do not fit."""
        return self.params.render(alert) if isinstance(self.params, Templated) else self.params

    def awake(self, now_ms: int) -> bool:
        """Whether its time intervals let it act at this moment."""
        if self.active is not None and not any(i.contains(now_ms) for i in self.active):
            return False
        return not any(i.contains(now_ms) for i in self.muted)


@dataclass(frozen=True, slots=True)
class Policy:
    """The engine's own times and sizes; one set for all responses. Milliseconds unless the name says otherwise."""

    lease_ms: int = 30_000  # the trainer reverts this long after the last renewal
    renew_ms: int = 5_000
    settle_ms: int = 10_000  # at least; the longest range of the expression where that is longer
    apply_timeout_ms: int = 120_000  # two steps of 40 s and a margin: orders take effect at a step boundary
    close_timeout_ms: int = 120_000  # for the confirmation of a keep or a rollback, for the same reason
    gone_grace_ms: int = 5_000  # the trainer's client reconnects within seconds if it lives
    guard_grace_ms: int = 10_000  # a guard without a series for this long breaks off
    approval_ttl_ms: int = 3_600_000
    min_steps: float = 20
    min_samples: int = 8
    stretch: int = 5  # windows grow to this multiple while there are too few steps (40 s steps need 800 s for 20)
    unknown_range_ms: int = 600_000  # how far back an alert may look whose expression is not known here
    max_episodes: int = 10_000  # open at once; further alerts are refused on record
    per_tick: int = 500  # episodes looked at in one tick, so that a storm cannot hold up the evaluation

    def settle_for(self, longest_range_ms: int) -> int:
        """How long after a change nothing is measured, so that no window mixes before and after."""
        return max(self.settle_ms, longest_range_ms)
