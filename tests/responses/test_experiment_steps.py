"""The experiment's state machine: every transition, one line each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sidecar.model import ChangeState, Outcome, TrainerIdentity
from sidecar.responses.experiment import (
    SENT,
    UNVERIFIED,
    Experiment,
    Phase,
    Result,
    Seen,
    Send,
    recovered,
    step,
)
from sidecar.responses.response import Policy
from sidecar.responses.statistics import Judgement, Verdict

POLICY = Policy()
T = 10_000_000
SAME = TrainerIdentity("job", "1", ("a", "b"), (0, 1), 2)
OTHER = TrainerIdentity("job", "2", ("c", "d"), (0, 1), 2)
HALF = TrainerIdentity("job", "1", ("a",), (0,), 2)
HALF_NEW = TrainerIdentity("job", "1", ("a", "c"), (0, 1), 2)

HELPED = Judgement(Verdict.HELPED, "gain_is_real")
NO_GAIN = Judgement(Verdict.DID_NOT_HELP, "no_gain")
NOISE = Judgement(Verdict.INCONCLUSIVE, "cannot_be_told_from_noise")

INTENDED, SETTLING, MEASURING = Phase.INTENDED, Phase.SETTLING, Phase.MEASURING
KEEPING, REVERTING, CLOSED = Phase.KEEPING, Phase.REVERTING, Phase.CLOSED
UNKNOWN, PENDING, APPLIED = ChangeState.UNKNOWN, ChangeState.PENDING, ChangeState.APPLIED
REFUSED, REVERTED, KEPT = ChangeState.REFUSED, ChangeState.REVERTED, ChangeState.KEPT

LEASE, APPLY, CLOSE, GONE = POLICY.lease_ms, POLICY.apply_timeout_ms, POLICY.close_timeout_ms, POLICY.gone_grace_ms


def experiment(phase, **changes):
    verdict = {KEEPING: Verdict.HELPED, REVERTING: Verdict.DID_NOT_HELP}.get(phase)
    x = Experiment(
        change_id="e.r",
        episode="e",
        response="r",
        remediation="m",
        actuator="trainer",
        scope="job:job",
        job="job",
        epoch="1",
        run_ids=("a", "b"),
        values={"k": 2},
        found={"k": 1},
        why="",
        phase=phase,
        since_ms=T,
        messaged_ms=T,
        measure_from_ms=T + 10_000 if phase is SETTLING else 0,
        verdict=verdict,
    )
    return replace(x, **changes)


def seen(state, identity=SAME, after=1000, **more):
    by = more.pop("by", "")
    return Seen(T + after, identity, Outcome(state, step=7, by=by), settle_ms=12_000, **more)


# phase now, what is seen, phase next, verdict, reason, result, messages
TRANSITIONS = [
    # the order is on its way
    (INTENDED, seen(UNKNOWN), INTENDED, None, "", None, ()),
    (INTENDED, seen(PENDING), INTENDED, None, "", None, ()),
    (INTENDED, seen(PENDING, after=5000), INTENDED, None, "", None, (Send.RENEW,)),
    (INTENDED, seen(APPLIED), SETTLING, None, "", None, ()),
    (INTENDED, seen(REFUSED), CLOSED, Verdict.INCONCLUSIVE, "refused", Result.NOT_APPLIED, ()),
    (INTENDED, seen(REVERTED, by="lease"), CLOSED, Verdict.INCONCLUSIVE, "lease_expired", Result.REVERTED_BY_LEASE, ()),
    (INTENDED, seen(UNKNOWN, after=APPLY), REVERTING, Verdict.INCONCLUSIVE, "not_acknowledged", None, (Send.REVERT,)),
    (INTENDED, seen(PENDING, after=APPLY), REVERTING, Verdict.INCONCLUSIVE, "not_acknowledged", None, (Send.REVERT,)),
    (INTENDED, seen(UNKNOWN, OTHER), REVERTING, Verdict.INCONCLUSIVE, "trainer_restarted", None, (Send.REVERT,)),
    (INTENDED, seen(APPLIED, OTHER), REVERTING, Verdict.INCONCLUSIVE, "trainer_restarted", None, (Send.REVERT,)),
    (INTENDED, seen(PENDING, broken="oom_kill"), REVERTING, Verdict.INCONCLUSIVE, "oom_kill", None, (Send.REVERT,)),
    # applied, ranges still mix
    (SETTLING, seen(APPLIED), SETTLING, None, "", None, ()),
    (SETTLING, seen(APPLIED, after=5000), SETTLING, None, "", None, (Send.RENEW,)),
    (SETTLING, seen(APPLIED, after=9999, judgement=HELPED), SETTLING, None, "", None, (Send.RENEW,)),
    (SETTLING, seen(APPLIED, after=10_000), MEASURING, None, "", None, (Send.RENEW,)),
    (SETTLING, seen(APPLIED, broken="oom_kill"), REVERTING, Verdict.INCONCLUSIVE, "oom_kill", None, (Send.REVERT,)),
    (SETTLING, seen(REVERTED, by="lease"), CLOSED, Verdict.INCONCLUSIVE, "lease_expired", Result.REVERTED_BY_LEASE, ()),
    (SETTLING, seen(APPLIED, OTHER), REVERTING, Verdict.INCONCLUSIVE, "trainer_restarted", None, (Send.REVERT,)),
    (SETTLING, seen(APPLIED, HALF_NEW), REVERTING, Verdict.INCONCLUSIVE, "trainer_restarted", None, (Send.REVERT,)),
    (SETTLING, seen(APPLIED, HALF), SETTLING, None, "", None, ()),
    (SETTLING, seen(UNKNOWN, None, after=60_000), SETTLING, None, "", None, (Send.RENEW,)),
    # measuring
    (MEASURING, seen(APPLIED), MEASURING, None, "", None, ()),
    (MEASURING, seen(APPLIED, judgement=HELPED), KEEPING, Verdict.HELPED, "gain_is_real", None, (Send.KEEP,)),
    (MEASURING, seen(APPLIED, judgement=NO_GAIN), REVERTING, Verdict.DID_NOT_HELP, "no_gain", None, (Send.REVERT,)),
    (MEASURING, seen(APPLIED, judgement=NOISE), REVERTING, Verdict.INCONCLUSIVE, "cannot_be_told_from_noise", None,
     (Send.REVERT,)),
    (MEASURING, seen(UNKNOWN, None, judgement=HELPED), MEASURING, None, "", None, ()),
    (MEASURING, seen(APPLIED, HALF, judgement=HELPED), MEASURING, None, "", None, ()),
    (MEASURING, seen(UNKNOWN, OTHER, broken="oom_kill"), REVERTING, Verdict.INCONCLUSIVE, "oom_kill", None,
     (Send.REVERT,)),
    (MEASURING, seen(APPLIED, judgement=HELPED, broken="guard_broken"), REVERTING, Verdict.INCONCLUSIVE, "guard_broken",
     None, (Send.REVERT,)),
    # helped; the trainer has to confirm
    (KEEPING, seen(APPLIED), KEEPING, Verdict.HELPED, "", None, ()),
    (KEEPING, seen(APPLIED, after=5000), KEEPING, Verdict.HELPED, "", None, (Send.RENEW, Send.KEEP)),
    (KEEPING, seen(KEPT), CLOSED, Verdict.HELPED, "", Result.KEPT, ()),
    (KEEPING, seen(REVERTED, by="lease"), CLOSED, Verdict.HELPED, "", Result.REVERTED_BY_LEASE, ()),
    (KEEPING, seen(UNKNOWN, OTHER), CLOSED, Verdict.HELPED, "", Result.TRAINER_GONE, ()),
    (KEEPING, seen(UNKNOWN, None, after=5000), KEEPING, Verdict.HELPED, "", None, (Send.RENEW, Send.KEEP)),
    (KEEPING, seen(UNKNOWN, None, after=CLOSE), CLOSED, Verdict.HELPED, "", Result.KEEP_UNCONFIRMED, ()),
    # not helped; the trainer has to confirm
    (REVERTING, seen(APPLIED), REVERTING, Verdict.DID_NOT_HELP, "", None, ()),
    (REVERTING, seen(APPLIED, after=5000), REVERTING, Verdict.DID_NOT_HELP, "", None, (Send.REVERT,)),
    (REVERTING, seen(REVERTED, by="order"), CLOSED, Verdict.DID_NOT_HELP, "", Result.ROLLED_BACK, ()),
    (REVERTING, seen(REVERTED, by="lease"), CLOSED, Verdict.DID_NOT_HELP, "", Result.REVERTED_BY_LEASE, ()),
    (REVERTING, seen(KEPT), CLOSED, Verdict.DID_NOT_HELP, "", Result.ROLLBACK_REFUSED, ()),
    (REVERTING, seen(REFUSED), CLOSED, Verdict.DID_NOT_HELP, "", Result.NOT_APPLIED, ()),
    (REVERTING, seen(UNKNOWN, OTHER), CLOSED, Verdict.DID_NOT_HELP, "", Result.TRAINER_GONE, ()),
    (REVERTING, seen(APPLIED, OTHER, after=5000), REVERTING, Verdict.DID_NOT_HELP, "", None, (Send.REVERT,)),
    (REVERTING, seen(UNKNOWN, SAME, after=LEASE), REVERTING, Verdict.DID_NOT_HELP, "", None, (Send.REVERT,)),
    (REVERTING, seen(UNKNOWN, SAME, after=LEASE + 5000), CLOSED, Verdict.DID_NOT_HELP, "", Result.NOT_HELD, ()),
    (REVERTING, seen(UNKNOWN, None, after=LEASE + 5000), REVERTING, Verdict.DID_NOT_HELP, "", None, (Send.REVERT,)),
    (REVERTING, seen(UNKNOWN, None, after=CLOSE), CLOSED, Verdict.DID_NOT_HELP, "", Result.ROLLBACK_UNCONFIRMED, ()),
    (REVERTING, seen(APPLIED, SAME, after=CLOSE), CLOSED, Verdict.DID_NOT_HELP, "", Result.ROLLBACK_UNCONFIRMED, ()),
    # over
    (CLOSED, seen(APPLIED), CLOSED, None, "", None, ()),
    (Phase.PLANNED, seen(UNKNOWN), Phase.PLANNED, None, "", None, ()),
]  # fmt: skip


@pytest.mark.parametrize(("phase", "now", "following", "verdict", "reason", "result", "messages"), TRANSITIONS)
def test_each_phase_follows_from_what_is_seen(phase, now, following, verdict, reason, result, messages):
    x, sent = step(experiment(phase), now, POLICY)
    assert (x.phase, x.verdict, x.reason, x.result, sent) == (following, verdict, reason, result, messages)
    if x.phase is not phase:
        assert x.since_ms == now.now_ms


def test_the_table_covers_every_phase_and_every_outcome_in_each_phase_that_has_sent_something():
    covered = {(phase, now.outcome.state) for phase, now, *_ in TRANSITIONS}
    missing = {
        (phase, state) for phase in (KEEPING, REVERTING) for state in (UNKNOWN, APPLIED, REVERTED, KEPT)
    } - covered
    assert not missing - {(REVERTING, KEPT)}
    assert {phase for phase, *_ in TRANSITIONS} >= SENT


@pytest.mark.parametrize("phase", sorted(UNVERIFIED, key=lambda p: p.value))
@pytest.mark.parametrize("state", [APPLIED, UNKNOWN])
def test_a_trainer_that_stays_away_longer_than_its_grace_ends_the_experiment(phase, state):
    x, sent = experiment(phase), ()
    for second in range(1, GONE // 1000 + 2):
        x, sent = step(x, seen(state, None, after=second * 1000), POLICY)
    assert (x.phase, x.verdict, x.reason, sent) == (REVERTING, Verdict.INCONCLUSIVE, "trainer_gone", (Send.REVERT,))


def test_a_trainer_that_comes_back_within_its_grace_goes_on_where_it_was():
    x = experiment(MEASURING)
    for second in range(1, 4):
        x, _ = step(x, seen(UNKNOWN, None, after=second * 1000), POLICY)
    x, _ = step(x, seen(APPLIED, after=4000), POLICY)
    assert x.absent_ms == 0
    for second in range(5, 9):  # the patience begins anew
        x, _ = step(x, seen(UNKNOWN, None, after=second * 1000), POLICY)
    assert x.phase is MEASURING


def test_the_measurement_begins_after_the_settling_time_and_the_step_is_kept():
    x, _ = step(experiment(INTENDED), seen(APPLIED, after=3000), POLICY)
    assert (x.measure_from_ms, x.step) == (T + 3000 + 12_000, 7)


@pytest.mark.parametrize(
    ("phase", "following", "verdict", "result"),
    [
        (Phase.PLANNED, CLOSED, None, Result.INTERRUPTED),
        (Phase.APPROVED, CLOSED, None, Result.INTERRUPTED),
        (INTENDED, REVERTING, Verdict.INCONCLUSIVE, None),
        (SETTLING, REVERTING, Verdict.INCONCLUSIVE, None),
        (MEASURING, REVERTING, Verdict.INCONCLUSIVE, None),
        (KEEPING, KEEPING, Verdict.HELPED, None),
        (REVERTING, REVERTING, Verdict.DID_NOT_HELP, None),
    ],
)
def test_a_new_process_takes_over_in_the_safe_direction(phase, following, verdict, result):
    x = recovered(experiment(phase, messaged_ms=T + 10**9), T + 99)
    assert (x.phase, x.verdict, x.result, x.since_ms) == (following, verdict, result, T + 99)


def test_a_new_process_speaks_at_once_even_where_the_clock_was_set_back():
    x = recovered(experiment(REVERTING, messaged_ms=T + 10**9), T)
    assert step(x, seen(APPLIED, after=0), POLICY)[1] == (Send.REVERT,)


@pytest.mark.parametrize("phase", list(Phase))
def test_an_experiment_survives_the_database(phase):
    x = experiment(phase, result=Result.KEPT, approved_by="ada")
    assert Experiment.from_dict(x.phase.value, x.to_dict()) == x
