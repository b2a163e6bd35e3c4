"""Several responses to one alert, approvals and their time, the share of jobs, memory kills."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.errors import ResponseError
from sidecar.model import Change
from sidecar.responses.limits import in_rollout
from sidecar.responses.response import Approval, Limits, Mode

NO_LIMITS = Limits("job", 0, 100, 100)


# --- escalation -------------------------------------------------------------------------------------------------------


def two(kit, **second):
    return [
        kit.response("first", limits=NO_LIMITS),
        kit.response("second", params=kit.Params(to=8), limits=NO_LIMITS, **second),
    ]


def test_the_next_response_has_its_turn_when_the_first_did_not_help(world, kit):
    world.speed = lambda workers: 100.0
    world.responses = two(kit)
    world.start()
    world.fire()
    world.run(150)
    assert world.decisions() == [("first", "acted"), ("second", "acted")]
    assert [v for v, _ in world.verdicts()] == ["did_not_help", "did_not_help"]


def test_after_one_that_helped_the_next_waits_until_the_alert_cannot_look_back_any_more(world, kit):
    """The public case of a windowed alert that still fires after a good fix, and got a second one."""
    world.responses = two(kit)
    world.measure.ranges = {"rate(waits_total[2m]) > 1": 120_000}
    world.start()
    subject = replace(kit.alert(active_at_ms=world.now, fired_at_ms=world.now), expr="rate(waits_total[2m]) > 1")
    world.fire(subject)
    world.run(100, lambda: world.results() == ["kept"])
    kept = world.now
    world.run(100)
    assert world.decisions() == [("first", "acted")]
    assert world.kinds("waiting")[-1]["reason"] == "alert_settling"
    world.run(60, lambda: len(world.decisions()) == 2)
    assert world.decisions()[1] == ("second", "acted")
    assert 120_000 <= world.now - kept < 125_000


def test_an_alert_that_resolves_meanwhile_needs_no_second_response(world, kit):
    world.responses = two(kit)
    world.start()
    subject = world.fire()
    world.run(100, lambda: world.results() == ["kept"])
    world.run(30)
    world.responder.on_events([kit.resolved(subject, world.now)], world.now)
    world.run(700)
    assert world.decisions() == [("first", "acted"), ("second", "resolved")]


def test_an_alert_whose_expression_is_not_known_here_settles_for_as_long_as_the_policy_says(world, kit):
    world.policy = replace(world.policy, unknown_range_ms=40_000)
    world.responses = two(kit)
    world.start()
    world.fire()
    world.run(100, lambda: world.results() == ["kept"])
    kept = world.now
    world.run(60, lambda: len(world.decisions()) == 2)
    assert 40_000 <= world.now - kept < 45_000


# --- approvals --------------------------------------------------------------------------------------------------------


def suggested(world, kit, **changes):
    world.responses = [kit.response(mode=Mode.SUGGEST, **changes)]
    world.start()
    world.fire()
    world.run(2)
    ((episode, attempt, _),) = world.responder.waiting()
    return episode, attempt


def test_what_waits_is_listed_with_its_plan_and_whom_to_ask(world, kit):
    episode, attempt = suggested(world, kit, approval=Approval("ml-platform", 60_000))
    assert world.kinds("waiting") == [{"reason": "awaiting_approval", "detail": "ml-platform"}]
    assert (attempt.response, dict(attempt.plan.change.values)) == ("feed", {"workers": 4})
    assert world.samples()["spikewatch_approvals_waiting",] == 1
    world.responder.reject(episode.id, "feed", "ada", world.now)
    assert world.responder.waiting() == ()
    assert world.samples()["spikewatch_approvals_waiting",] == 0


def test_a_plan_that_nobody_answers_in_the_responses_own_time_expires(world, kit):
    suggested(world, kit, approval=Approval("", 60_000))
    world.run(57)
    assert world.decisions() == []
    world.run(3)
    assert world.decisions() == [("feed", "approval_expired")]


def test_a_yes_counts_as_long_as_it_was_given_for(world, kit):
    episode, _ = suggested(world, kit)
    world.measure.unseen = True  # a guard is blind: it cannot begin yet
    world.responder.approve(episode.id, "feed", "ada", world.now, valid_ms=10_000)
    world.run(9)
    assert world.decisions() == []
    world.run(2)
    assert world.decisions() == [("feed", "approval_expired")]
    assert world.kinds("decision")[0]["detail"] == "ada"
    assert world.trainer.sent == []


def test_a_yes_can_be_taken_back_until_it_begins(world, kit):
    episode, _ = suggested(world, kit)
    world.responder.approve(episode.id, "feed", "ada", world.now)
    assert world.responder.waiting() == ()
    world.run(5)
    world.responder.reject(episode.id, "feed", "bob", world.now)
    world.run(60)
    assert world.decisions() == [("feed", "rejected")]
    assert world.trainer.sent == []


def test_a_yes_stands_in_the_journal_with_its_end_and_beside_the_change(world, kit):
    episode, _ = suggested(world, kit)
    world.responder.approve(episode.id, "feed", "ada", world.now, valid_ms=50_000)
    (approved,) = [d for d in world.kinds("experiment") if d["phase"] == "approved"]
    assert (approved["by"], approved["until_ms"]) == ("ada", world.now + 50_000)
    world.run(40)
    assert world.kinds("decision")[0]["by"] == "ada"


def test_an_answer_after_the_decision_is_refused_and_the_decision_is_known(world, kit):
    episode, _ = suggested(world, kit)
    world.responder.reject(episode.id, "feed", "ada", world.now)
    with pytest.raises(ResponseError):
        world.responder.approve(episode.id, "feed", "bob", world.now)
    assert world.responder.decision(episode.id, "feed") == "rejected"
    assert world.responder.decision(episode.id, "other") == ""


# --- scope and rollout ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scope", "second"), [("job", "acted"), ("pod", None), ("fleet", None)])
def test_limits_count_for_the_job_the_pod_or_everything(world, kit, scope, second):
    world.responses = [kit.response(limits=Limits(scope, 3_600_000, 100, 100))]
    world.start()
    subject = world.fire()
    world.run(60)
    world.responder.on_events([kit.resolved(subject, world.now)], world.now)
    world.trainer._job = "next"
    world.trainer.restart_trainer()
    world.fire()
    world.run(60)
    assert [reason for _, reason in world.decisions()] == ["acted"] + ([second] if second else [])
    if second is None:
        assert world.kinds("waiting")[-1]["reason"] == "cooldown"


def test_a_job_outside_the_rollout_is_left_alone_for_good(world, kit):
    world.responses = [kit.response(limits=replace(NO_LIMITS, rollout=0.0))]
    world.start()
    world.fire()
    world.run(60)
    assert world.decisions() == [("feed", "not_in_rollout")]
    assert world.trainer.sent == []


@given(job=st.text(min_size=1), small=st.floats(0, 1), large=st.floats(0, 1))
def test_a_larger_rollout_only_adds_jobs(job, small, large):
    small, large = sorted((small, large))
    assert in_rollout("feed", job, small) <= in_rollout("feed", job, large)


def test_a_rollout_picks_its_share_of_jobs_and_not_the_same_ones_for_every_response():
    jobs = [f"llm-{i}" for i in range(10_000)]
    feed, post = ({j for j in jobs if in_rollout(name, j, 0.1)} for name in ("feed", "post"))
    assert 900 < len(feed) < 1100
    assert len(feed & post) < 200


def test_a_job_without_a_name_is_in_no_share_but_all():
    assert in_rollout("feed", "", 1.0)
    assert not in_rollout("feed", "", 0.999)


# --- memory -----------------------------------------------------------------------------------------------------------


def test_a_kill_for_memory_on_trial_takes_the_change_back_and_its_knob_out_of_use(world, kit):
    world.facts = {"oom_kills_total": 2}
    world.responses = [kit.response(limits=NO_LIMITS)]
    world.start()
    subject = world.fire()
    world.until_phase("measuring")
    world.facts = {"oom_kills_total": 3}
    world.run(10)
    assert world.verdicts() == [("inconclusive", "oom_kill")]
    assert world.trainer.values()["workers"] == 2
    world.responder.on_events([kit.resolved(subject, world.now)], world.now)
    world.fire()
    world.run(5)
    assert world.decisions()[-1] == ("feed", "quarantined")


def test_a_trainer_that_was_killed_for_memory_and_restarted_is_quarantined_too(world, kit):
    world.facts = {"oom_kills_total": 0}
    world.responses = [kit.response(limits=NO_LIMITS)]
    world.start()
    world.fire()
    world.until_phase("measuring")
    world.facts = {"oom_kills_total": 1}
    world.trainer.restart_trainer()
    world.run(10)
    assert world.verdicts() == [("inconclusive", "oom_kill")]
    assert [d["knobs"] for d in world.kinds("sidecar") if d["event"] == "quarantined"] == [["workers"]]


def test_a_kill_that_also_ended_the_sidecar_is_seen_by_the_next_one(world, kit):
    world.facts = {"oom_kills_total": 5}
    world.responses = [kit.response(limits=NO_LIMITS)]
    world.start()
    subject = world.fire()
    world.until_phase("measuring")
    world.db.close()
    world.facts = {"oom_kills_total": 6}
    world.start()
    world.run(10)
    assert world.verdicts() == [("inconclusive", "oom_kill")]
    world.responder.on_events([kit.resolved(subject, world.now)], world.now)
    world.fire()
    world.run(5)
    assert world.decisions()[-1] == ("feed", "quarantined")


def test_a_kill_from_before_the_change_means_nothing(world, kit):
    world.facts = {"oom_kills_total": 7}
    world.start()
    world.fire()
    world.run(60)
    assert world.verdicts() == [("helped", "gain_is_real")]


def test_another_knob_is_not_quarantined(world, kit):
    world.facts = {"oom_kills_total": 0}
    world.responses = [kit.response(limits=NO_LIMITS)]
    world.start()
    subject = world.fire()
    world.until_phase("measuring")
    world.facts = {"oom_kills_total": 1}
    world.run(10)
    world.responder.on_events([kit.resolved(subject, world.now)], world.now)
    world.remediation.plans = Change("trainer", {"shared": 2})
    world.fire()
    world.run(60)
    assert world.decisions()[-1] == ("feed", "acted")
