"""One experiment as a pure state machine: what was, what is seen now, what follows.

    planned -> approved -> intended -> settling -> measuring -+-> keeping ---> closed
                               |          |           |       |
                               +----------+-----------+-------+-> reverting -> closed

`intended` is on disk before the order leaves. A verdict is on disk before `keep` or `revert` leaves. Whoever finds an
experiment after a crash therefore knows enough: without the verdict *helped* the found values come back, by order or
by the lease; with it the new ones are kept if the trainer still holds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from sidecar.model import ChangeState, KnobValue, Outcome, TrainerIdentity
from sidecar.responses.response import Policy
from sidecar.responses.statistics import Judgement, Verdict


class Phase(Enum):
    """Where an experiment stands."""

    PLANNED = "planned"
    APPROVED = "approved"
    INTENDED = "intended"  # journalled; the order leaves, no acknowledgement yet
    SETTLING = "settling"  # applied; old and new still mix in the ranges of the expression
    MEASURING = "measuring"
    KEEPING = "keeping"  # helped; waits for the trainer to confirm that the lease has ended
    REVERTING = "reverting"  # waits for the trainer to confirm the found values
    CLOSED = "closed"


SENT = frozenset({Phase.INTENDED, Phase.SETTLING, Phase.MEASURING, Phase.KEEPING, Phase.REVERTING})
"""The phases in which the trainer may hold the change."""

UNVERIFIED = frozenset({Phase.INTENDED, Phase.SETTLING, Phase.MEASURING})
"""The phases that have no verdict yet; the lease is renewed in these and until a keep is confirmed."""


class Result(Enum):
    """How an experiment ended, as far as the trainer's values go."""

    KEPT = "kept"
    ROLLED_BACK = "rolled_back"
    REVERTED_BY_LEASE = "reverted_by_lease"
    NOT_APPLIED = "not_applied"
    TRAINER_GONE = "trainer_gone"  # the process that held the value has ended, and its value with it
    NOT_HELD = "not_held"  # the trainer is there and knows nothing of the change
    ROLLBACK_REFUSED = "rollback_refused"  # somebody else has changed the value since
    ROLLBACK_UNCONFIRMED = "rollback_unconfirmed"  # the lease, no longer renewed, brings the found values back
    KEEP_UNCONFIRMED = "keep_unconfirmed"  # as above, unless the keep did arrive
    INTERRUPTED = "interrupted"  # nothing had been sent when the process ended


class Send(Enum):
    """A message to the actuator."""

    APPLY = "apply"
    RENEW = "renew"
    KEEP = "keep"
    REVERT = "revert"


@dataclass(frozen=True, slots=True)
class Experiment:
    """Durable. `since_ms` is when the phase began; `run_ids` say whose values were changed."""

    change_id: str
    episode: str
    response: str
    remediation: str
    actuator: str
    scope: str  # whose limits it counts for
    job: str
    epoch: str
    run_ids: tuple[str, ...]
    values: Mapping[str, KnobValue]
    found: Mapping[str, KnobValue]
    why: str
    phase: Phase
    since_ms: int
    approved_by: str = ""
    step: int = -1
    measure_from_ms: int = 0
    messaged_ms: int = 0  # when the last message left
    absent_ms: int = 0  # since when the trainer has not answered; 0 while it does
    verdict: Verdict | None = None
    reason: str = ""
    result: Result | None = None
    oom_kills: float | None = None  # in this pod when the order left; None where that is not known

    def to_dict(self) -> dict[str, Any]:
        """For the database."""
        data: dict[str, Any] = {name: getattr(self, name) for name in self.__dataclass_fields__}
        for name in ("verdict", "result"):
            data[name] = data[name].value if data[name] else None
        del data["phase"]  # a column of its own
        return {**data, "run_ids": list(self.run_ids), "values": dict(self.values), "found": dict(self.found)}

    @classmethod
    def from_dict(cls, phase: str, data: Mapping[str, Any]) -> Experiment:
        """From the database."""
        return cls(
            **{
                **data,
                "run_ids": tuple(data["run_ids"]),
                "phase": Phase(phase),
                "verdict": Verdict(data["verdict"]) if data["verdict"] else None,
                "result": Result(data["result"]) if data["result"] else None,
            }
        )


@dataclass(frozen=True, slots=True)
class Seen:
    """What one tick sees. `broken` is a snake_case reason to break off, `judgement` there once the window is full."""

    now_ms: int
    identity: TrainerIdentity | None
    outcome: Outcome
    settle_ms: int = 0
    broken: str = ""
    detail: str = ""  # more about `broken`, for people
    judgement: Judgement | None = None


Step = tuple[Experiment, tuple[Send, ...]]


def step(x: Experiment, seen: Seen, policy: Policy) -> Step:
    """The experiment after this tick, and what to tell the actuator once that is on disk."""
    if x.phase in UNVERIFIED:
        return _unverified(x, seen, policy)
    if x.phase is Phase.KEEPING:
        return _keeping(x, seen, policy)
    if x.phase is Phase.REVERTING:
        return _reverting(x, seen, policy)
    return x, ()


def recovered(x: Experiment, now_ms: int) -> Experiment:
    """The experiment as a new process takes it over. Nothing sent: closed. No verdict: inconclusive, to be reverted."""
    if x.phase in (Phase.PLANNED, Phase.APPROVED):
        return replace(x, phase=Phase.CLOSED, since_ms=now_ms, reason="interrupted", result=Result.INTERRUPTED)
    if x.phase in UNVERIFIED:
        x = replace(x, verdict=Verdict.INCONCLUSIVE, reason="interrupted", phase=Phase.REVERTING)
    return replace(x, since_ms=now_ms, messaged_ms=0, absent_ms=0)


class _Who(Enum):
    SAME = "same"
    ABSENT = "absent"  # nobody, or not every rank
    OTHER = "other"  # a process that was not there when the order left


def _who(x: Experiment, identity: TrainerIdentity | None) -> _Who:
    there = set(identity.run_ids) if identity else set()
    if there - set(x.run_ids):
        return _Who.OTHER
    return _Who.SAME if there == set(x.run_ids) else _Who.ABSENT


def _unverified(x: Experiment, seen: Seen, policy: Policy) -> Step:
    now, state, who = seen.now_ms, seen.outcome.state, _who(x, seen.identity)
    if state is ChangeState.REVERTED:
        return _closed(_concluded(x, "lease_expired"), _reverted_by(seen.outcome), now)
    if state is ChangeState.REFUSED:
        return _closed(_concluded(x, "refused"), Result.NOT_APPLIED, now)
    if who is _Who.OTHER:
        return _revert(_concluded(x, seen.broken or "trainer_restarted"), now)
    lost = who is _Who.ABSENT or (state is ChangeState.UNKNOWN and x.phase is not Phase.INTENDED)
    x = replace(x, absent_ms=(x.absent_ms or now) if lost else 0)
    if lost and now - x.absent_ms >= policy.gone_grace_ms:
        return _revert(_concluded(x, seen.broken or "trainer_gone"), now)
    if seen.broken:
        return _revert(_concluded(x, seen.broken), now)
    if not lost:
        moved = _forward(x, seen, policy)
        if moved is not None:
            return moved
    return _resent(x, now, policy, Send.RENEW)


def _forward(x: Experiment, seen: Seen, policy: Policy) -> Step | None:
    now = seen.now_ms
    if x.phase is Phase.INTENDED:
        if seen.outcome.state is ChangeState.APPLIED:
            begin = now + seen.settle_ms
            x = replace(x, phase=Phase.SETTLING, since_ms=now, step=seen.outcome.step, measure_from_ms=begin)
            return _resent(x, now, policy, Send.RENEW)
        if now - x.since_ms >= policy.apply_timeout_ms:
            return _revert(_concluded(x, "not_acknowledged"), now)
    elif x.phase is Phase.SETTLING:
        if now >= x.measure_from_ms:
            return _resent(replace(x, phase=Phase.MEASURING, since_ms=now), now, policy, Send.RENEW)
    elif seen.judgement is not None:
        x = replace(x, verdict=seen.judgement.verdict, reason=seen.judgement.reason)
        if x.verdict is Verdict.HELPED:
            return replace(x, phase=Phase.KEEPING, since_ms=now, messaged_ms=now), (Send.KEEP,)
        return _revert(x, now)
    return None


def _keeping(x: Experiment, seen: Seen, policy: Policy) -> Step:
    now, state = seen.now_ms, seen.outcome.state
    if state is ChangeState.KEPT:
        return _closed(x, Result.KEPT, now)
    if state is ChangeState.REVERTED:
        return _closed(x, _reverted_by(seen.outcome), now)
    if _who(x, seen.identity) is _Who.OTHER:
        return _closed(x, Result.TRAINER_GONE, now)
    if now - x.since_ms >= policy.close_timeout_ms:
        return _closed(x, Result.KEEP_UNCONFIRMED, now)
    # Renewed as well: a lost keep must not cost a change that has proved itself.
    return _resent(x, now, policy, Send.RENEW, Send.KEEP)


def _reverting(x: Experiment, seen: Seen, policy: Policy) -> Step:
    now, state, who = seen.now_ms, seen.outcome.state, _who(x, seen.identity)
    if state is ChangeState.REVERTED:
        return _closed(x, _reverted_by(seen.outcome), now)
    if state is ChangeState.REFUSED:
        return _closed(x, Result.NOT_APPLIED, now)
    if state is ChangeState.KEPT:
        return _closed(x, Result.ROLLBACK_REFUSED, now)
    if state is ChangeState.UNKNOWN and who is _Who.OTHER:
        return _closed(x, Result.TRAINER_GONE, now)
    # By now a lease would have run out and an order that was still on its way would have been acknowledged.
    if state is ChangeState.UNKNOWN and who is _Who.SAME and now - x.since_ms >= policy.lease_ms + policy.renew_ms:
        return _closed(x, Result.NOT_HELD, now)
    if now - x.since_ms >= policy.close_timeout_ms:
        return _closed(x, Result.ROLLBACK_UNCONFIRMED, now)
    return _resent(x, now, policy, Send.REVERT)


def _concluded(x: Experiment, reason: str) -> Experiment:
    return replace(x, verdict=Verdict.INCONCLUSIVE, reason=reason)


def _revert(x: Experiment, now: int) -> Step:
    return replace(x, phase=Phase.REVERTING, since_ms=now, messaged_ms=now), (Send.REVERT,)


def _closed(x: Experiment, result: Result, now: int) -> Step:
    return replace(x, phase=Phase.CLOSED, since_ms=now, result=result), ()


def _resent(x: Experiment, now: int, policy: Policy, *messages: Send) -> Step:
    """Messages are idempotent and may be lost, so they are repeated until the outcome shows that one arrived."""
    if now - x.messaged_ms < policy.renew_ms:
        return x, ()
    return replace(x, messaged_ms=now), messages


def _reverted_by(outcome: Outcome) -> Result:
    return Result.REVERTED_BY_LEASE if outcome.by == "lease" else Result.ROLLED_BACK
