"""An episode: one alert from firing to resolved, and the responses tried on it, in order, each at most once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sidecar.model import Alert, Change, KnobValue, Labels
from sidecar.responses.response import Response

Key = tuple[str, Labels]

PASSING = frozenset(
    {
        "alert_settling",  # the response before this one helped; the alert may still look back at the time before
        "awaiting_approval",
        "busy",  # another experiment runs on this trainer
        "cooldown",
        "guard_absent",  # an abort_if expression reads a series that does not exist
        "guard_broken",
        "kill_switch",
        "no_trainer",
        "outside_time_intervals",
        "per_hour",
        "query_error",
        "silenced",
        "thin_baseline",
        "steady",  # a remediation sees no need now; measured values come and go
        "thin_history",  # a remediation looks at a past that is not long enough yet
    }
)
"""Refusals that are looked at again on every tick."""

FINAL = frozenset(
    {
        "acted",
        "approval_expired",
        "bad_parameters",
        "breaker_open",
        "episode_limit",
        "interrupted",
        "knob_missing",
        "no_actuator",
        "no_change",
        "not_in_rollout",
        "not_leader",
        "not_one_element",
        "observe",
        "out_of_bounds",
        "plugin_error",
        "quarantined",
        "rejected",
        "resolved",
        "response_removed",
        "undeclared_knob",
    }
)
"""Reasons of a decision. A remediation's own `Skip` reasons come on top."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a response does not act now (passing) or at all (final)."""

    reason: str
    detail: str = ""

    @property
    def final(self) -> bool:
        """Whether it decides the matter."""
        return self.reason not in PASSING


@dataclass(frozen=True, slots=True)
class Plan:
    """A change that has passed every check, with the values found and whose limits it counts for."""

    change: Change
    found: Mapping[str, KnobValue]
    job: str
    epoch: str
    run_ids: tuple[str, ...]

    def same_as(self, other: Plan | None) -> bool:
        """Whether an approval of the other one covers this one."""
        return other is not None and (self.change.values, self.found) == (other.change.values, other.found)


@dataclass(slots=True)
class Attempt:
    """One (episode, response). `waits_for` is the newest passing refusal, `waited` every one there was."""

    response: str
    waits_for: str = ""
    waited: list[str] = field(default_factory=list)
    plan: Plan | None = None
    planned_at_ms: int = 0
    approved_by: str = ""
    approved_until_ms: int = 0
    decided: str = ""


@dataclass(slots=True)
class Episode:
    """Open until the alert has resolved, or every response has been decided and its experiment closed."""

    id: str
    alert: Alert
    opened_at_ms: int
    attempts: list[Attempt]
    at: int = 0  # the attempt whose turn it is
    resolved: bool = False
    closed: bool = False
    helped_at_ms: int = 0  # when a change was last kept for it

    def attempt(self, response: str) -> Attempt | None:
        """The attempt of that response."""
        return next((a for a in self.attempts if a.response == response), None)

    @property
    def undecided(self) -> list[Attempt]:
        """In order."""
        return [a for a in self.attempts if not a.decided]


def key_of(alert: Alert) -> Key:
    """What makes two events speak of the same alert."""
    return alert.name, alert.labels


def fired_at(alert: Alert, at_ms: int) -> int:
    """When the alert began to fire, or when we heard of it."""
    return alert.fired_at_ms or at_ms


def episode_id(alert: Alert, fired_ms: int) -> str:
    """The same for every copy of the same edge, also after a restart, so that a duplicate opens nothing."""
    text = "\0".join([alert.name, *(part for pair in alert.labels for part in pair)])
    return f"{hashlib.blake2s(text.encode(), digest_size=8).hexdigest()}-{fired_ms}"


def change_id(episode: str, response: str) -> str:
    """Of the one experiment this pair can have."""
    return f"{episode}.{response}"


def labels_with_name(alert: Alert) -> dict[str, str]:
    """What matchers look at."""
    return {**dict(alert.labels), "alertname": alert.name}


def answering(responses: Iterable[Response], alert: Alert) -> list[Response]:
    """The responses to an alert, in the file's order."""
    labels = labels_with_name(alert)
    return [r for r in responses if r.answers(labels)]
