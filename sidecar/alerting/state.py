"""The alert state machine of one rule: a pure step from one evaluation to the next, exactly as in Prometheus 3.5."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sidecar.alerting.rules import Rule
from sidecar.model import AlertState, Edge, Labels

NEVER = -(1 << 62)
"""A time long before any other. Not 0: rule unit tests start at 0."""

RESOLVED_RETENTION_MS = 15 * 60_000
"""How long a resolved alert is remembered and re-sent, so that a lost message does not leave it open (Prometheus)."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The sample an alert came from, at the evaluation that saw it last: what its annotations are expanded with."""

    sample: Labels  # with __name__ where the expression kept it
    value: float
    at_ms: int


@dataclass(frozen=True, slots=True)
class Instance:
    """One alert of a rule. Times are those of evaluations, in milliseconds; NEVER where not reached."""

    labels: Labels
    state: AlertState
    reading: Reading
    active_at_ms: int
    fired_at_ms: int = NEVER
    resolved_at_ms: int = NEVER
    keep_firing_since_ms: int = NEVER
    last_sent_at_ms: int = NEVER
    valid_until_ms: int = NEVER
    held_until_ms: int = NEVER  # taken over from before a restart: absence means nothing before this moment


@dataclass(frozen=True, slots=True)
class Transition:
    """An edge one instance went through."""

    edge: Edge
    instance: Instance


RuleState = Mapping[Labels, Instance]
Found = Mapping[Labels, tuple[Labels, float]]
"""What an evaluation found: the alert's labels → (labels of the sample, value)."""


@dataclass(frozen=True, slots=True)
class Step:
    """The next state, the edges on the way, and which labels are to be written to disk (or deleted) again."""

    state: RuleState
    transitions: tuple[Transition, ...] = ()
    changed: tuple[Labels, ...] = ()
    error: str = ""


def step(rule: Rule, state: RuleState, found: Found, now_ms: int, limit: int = 0) -> Step:
    """One evaluation. Over `limit` the rule loses all its state and the step carries an error, as in Prometheus."""
    following: dict[Labels, Instance] = {}
    transitions: list[Transition] = []
    changed: list[Labels] = []
    active = 0
    for labels, (sample, value) in found.items():
        before = state.get(labels)
        after = _present(rule, before, labels, Reading(sample, value, now_ms), now_ms)
        following[labels] = after
        active += 1
        if before is None or before.state is not after.state:
            changed.append(labels)
            transitions.append(Transition(Edge.FIRING if after.state is AlertState.FIRING else Edge.PENDING, after))
        elif before.held_until_ms != NEVER or before.keep_firing_since_ms != NEVER:
            changed.append(labels)
    for labels, before in state.items():
        if labels in found:
            continue
        kept = _absent(rule, before, now_ms)
        if kept is not before:
            changed.append(labels)
        if kept is not None:
            following[labels] = kept
            active += kept.state is not AlertState.INACTIVE
        edge = _ended(before, kept)
        if edge is not None:
            transitions.append(Transition(edge, kept or before))
    if 0 < limit < active:
        return _over_limit(state, active, limit)
    return Step(following, tuple(transitions), tuple(changed))


def _present(rule: Rule, before: Instance | None, labels: Labels, reading: Reading, now_ms: int) -> Instance:
    if before is None or before.state is AlertState.INACTIVE:
        after = Instance(labels, AlertState.PENDING, reading, active_at_ms=now_ms)
    else:
        after = replace(before, reading=reading, keep_firing_since_ms=NEVER, held_until_ms=NEVER)
    if after.state is AlertState.PENDING and now_ms - after.active_at_ms >= rule.for_ms:
        return replace(after, state=AlertState.FIRING, fired_at_ms=now_ms)
    return after


def _absent(rule: Rule, before: Instance, now_ms: int) -> Instance | None:
    """What becomes of an alert the expression no longer gives; None when it is forgotten."""
    if before.state is AlertState.INACTIVE:
        return before if now_ms - before.resolved_at_ms <= RESOLVED_RETENTION_MS else None
    if now_ms < before.held_until_ms:
        return before
    if before.state is AlertState.PENDING:
        return None
    if rule.keep_firing_for_ms > 0:
        if before.keep_firing_since_ms == NEVER:
            return replace(before, keep_firing_since_ms=now_ms)
        if now_ms - before.keep_firing_since_ms < rule.keep_firing_for_ms:
            return before
    return replace(before, state=AlertState.INACTIVE, resolved_at_ms=now_ms)


def _ended(before: Instance, after: Instance | None) -> Edge | None:
    if before.state is AlertState.PENDING and after is None:
        return Edge.CLEARED
    if before.state is AlertState.FIRING and after is not None and after.state is AlertState.INACTIVE:
        return Edge.RESOLVED
    return None


def _over_limit(state: RuleState, active: int, limit: int) -> Step:
    dropped = tuple(
        Transition(Edge.RESOLVED if i.state is AlertState.FIRING else Edge.CLEARED, i)
        for i in state.values()
        if i.state is not AlertState.INACTIVE
    )
    return Step({}, dropped, tuple(state), f"exceeded limit of {limit} with {active} alerts")


def needs_sending(instance: Instance, now_ms: int, resend_delay_ms: int) -> bool:
    """Whether Alertmanager is to hear of it now: it just resolved, or the last message is older than the delay."""
    if instance.state is AlertState.PENDING:
        return False
    if instance.resolved_at_ms > instance.last_sent_at_ms:
        return True
    return instance.last_sent_at_ms + resend_delay_ms < now_ms


def sent(instance: Instance, now_ms: int, interval_ms: int, resend_delay_ms: int) -> Instance:
    """The instance after a message at `now_ms`, valid through two lost messages and evaluations each."""
    return replace(instance, last_sent_at_ms=now_ms, valid_until_ms=now_ms + 4 * max(interval_ms, resend_delay_ms))
