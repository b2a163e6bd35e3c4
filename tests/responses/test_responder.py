"""From a firing alert to a change that was kept or undone: what the responder does, and what keeps it from it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sidecar.errors import ResponseError, StateError
from sidecar.hooks import Actuator
from sidecar.model import Change, Knob, Scope, Skip
from sidecar.responses import matchers
from sidecar.responses.experiment import Send
from sidecar.responses.response import Limits, Mode


def slower(workers):
    return 400.0 / workers


def same(workers):
    return 100.0


# --- the whole path ---------------------------------------------------------------------------------------------------


def test_a_change_that_helps_is_kept_and_its_whole_story_is_on_record(world):
    world.price = 3.0
    world.start()
    world.fire()
    world.run(60)
    assert world.trainer.values()["workers"] == 4
    assert world.decisions() == [("feed", "acted")]
    assert world.verdicts() == [("helped", "gain_is_real")]
    assert world.results() == ["kept"]
    assert [m for m, _ in world.trainer.sent if m != "renew"] == ["apply", "keep"]
    phases = [d["phase"] for d in world.kinds("experiment")]
    assert phases == ["planned", "intended", "settling", "measuring", "keeping", "closed"]
    (verdict,) = world.kinds("verdict")
    assert verdict["gain_percent"] == pytest.approx(100, abs=2)
    assert verdict["usd_per_hour"] == pytest.approx(3.0, abs=0.1)
    assert verdict["estimate"]["baseline"]["samples"] == verdict["estimate"]["after"]["samples"] == 20
    assert world.responder.episodes() == ()


def test_a_change_that_makes_it_worse_is_undone_and_the_found_value_is_back_exactly(world):
    world.speed = slower
    world.start()
    world.fire()
    world.run(60)
    assert world.trainer.values() == {"workers": 2, "shared": 1}
    assert world.verdicts() == [("did_not_help", "no_gain")]
    assert world.results() == ["rolled_back"]
    assert [m for m, _ in world.trainer.sent if m != "renew"] == ["apply", "revert"]


def test_a_change_that_does_nothing_did_not_help(world):
    world.speed = same
    world.start()
    world.fire()
    world.run(60)
    assert world.verdicts()[0][0] == "did_not_help"
    assert world.trainer.values()["workers"] == 2


def test_the_lease_is_renewed_every_five_seconds_until_the_keep_is_confirmed(world):
    world.start()
    world.fire()
    world.until_phase("settling")
    began = len(world.trainer.sent)
    world.run(20)
    renewals = [m for m, _ in world.trainer.sent[began:] if m == "renew"]
    assert len(renewals) == 4
    world.run(60)
    sent = len(world.trainer.sent)
    world.run(60)
    assert len(world.trainer.sent) == sent


def test_the_intention_is_on_disk_before_the_order_leaves(world):
    seen = []
    apply = world.trainer.apply

    def watched(order):
        rows = world.db.connection.execute("SELECT phase FROM experiments WHERE change_id = ?", (order.change_id,))
        seen.append(([row["phase"] for row in rows], world.decisions(), world.db.connection.in_transaction))
        apply(order)

    world.trainer.apply = watched
    world.start()
    world.fire()
    world.run(40)
    assert seen == [(["intended"], [("feed", "acted")], False)]


def test_the_verdict_is_on_disk_before_the_keep_leaves(world):
    seen = []
    keep = world.trainer.keep

    def watched(change_id):
        seen.append(world.verdicts())
        keep(change_id)

    world.trainer.keep = watched
    world.start()
    world.fire()
    world.run(60)
    assert seen == [[("helped", "gain_is_real")]]


def test_nothing_is_measured_before_the_longest_range_has_passed_the_change(world):
    world.measure.range_ms = 30_000
    world.start()
    world.fire()
    world.until_phase("settling")
    applied = world.now
    world.until_phase("measuring")
    assert world.now - applied == 30_000


def test_an_alert_that_resolves_after_the_change_does_not_end_the_measurement(world, kit):
    world.start()
    subject = world.fire()
    world.until_phase("settling")
    world.responder.on_events([kit.resolved(subject, world.now)], world.now)
    assert len(world.responder.episodes()) == 1
    world.run(60)
    assert world.verdicts() == [("helped", "gain_is_real")]
    assert world.responder.episodes() == ()


# --- episodes ---------------------------------------------------------------------------------------------------------


def test_resolved_before_the_order_means_no_order(world, kit):
    world.start()
    subject = world.fire()
    world.run(15)
    world.responder.on_events([kit.resolved(subject, world.now)], world.now)
    world.run(60)
    assert world.trainer.sent == []
    assert world.decisions() == [("feed", "resolved")]
    (decision,) = world.kinds("decision")
    assert decision["waited"] == ["thin_baseline"]


def test_a_resolved_edge_alone_does_nothing(world, kit):
    world.start()
    world.responder.on_events([kit.resolved(kit.alert(), world.now)] * 3, world.now)
    world.run(60)
    assert (world.trainer.sent, world.decisions(), world.responder.episodes()) == ([], [], ())


def test_the_same_edge_twice_opens_one_episode(world, kit):
    world.start()
    subject = kit.alert()
    world.responder.on_events([kit.firing(subject)] * 2, world.now)
    world.responder.on_events([kit.firing(subject)], world.now)
    world.run(60)
    world.responder.on_events([kit.firing(subject)], world.now)
    world.run(60)
    assert world.decisions() == [("feed", "acted")]


def test_an_alert_that_was_restored_after_a_restart_opens_nothing(world, kit):
    world.start()
    world.responder.on_events([kit.firing(kit.alert(), restored=True)], world.now)
    world.run(60)
    assert (world.trainer.sent, world.decisions()) == ([], [])
    assert world.kinds("edge")[0]["restored"] is True


def test_an_end_that_belongs_to_an_earlier_firing_is_ignored(world, kit):
    world.start()
    subject = world.fire()
    world.responder.on_events([kit.resolved(subject, world.now - 1)], world.now)
    world.run(60)
    assert world.decisions() == [("feed", "acted")]


def test_a_beginning_that_arrives_after_its_end_opens_nothing(world, kit):
    world.start()
    subject = kit.alert()
    world.responder.on_events([kit.resolved(subject, world.now + 1)], world.now)
    world.responder.on_events([kit.firing(subject)], world.now)
    world.run(60)
    assert (world.trainer.sent, world.decisions(), world.responder.episodes()) == ([], [], ())


def test_a_new_firing_ends_the_episode_whose_end_was_lost(world, kit):
    world.responses = [kit.response(mode=Mode.SUGGEST)]
    world.start()
    world.fire()
    world.run(5)
    world.fire()
    assert world.decisions() == [("feed", "resolved")]
    assert len(world.responder.episodes()) == 1


def test_an_alert_that_no_response_answers_is_an_edge_on_record_and_no_episode(world, kit):
    world.start()
    world.fire(kit.alert("Other", instance="x"))
    assert world.responder.episodes() == ()
    (edge,) = world.kinds("edge")
    assert (edge["alert"], edge["labels"], edge["responses"]) == ("Other", {"instance": "x"}, [])


def test_responses_are_tried_in_order_and_each_at_most_once(world, kit):
    world.speed = same
    world.responses = [
        kit.response("first", params=kit.Params(to=3)),
        kit.response("second", params=kit.Params(to=5)),
        kit.response("third", mode=Mode.OBSERVE),
    ]
    world.start()
    world.fire()
    world.run(40)
    assert world.decisions() == [("first", "acted")]
    world.run(300)
    assert world.decisions() == [("first", "acted"), ("second", "acted"), ("third", "observe")]
    assert [v["workers"] for v in world.trainer.history] == [3, 2, 5, 2]
    assert world.responder.episodes() == ()


def test_a_later_response_is_not_even_observed_while_an_earlier_one_is_on_trial(world, kit):
    world.responses = [kit.response(), kit.response("watch", mode=Mode.OBSERVE)]
    world.start()
    world.fire()
    world.until_phase("measuring")
    assert world.decisions() == [("feed", "acted")]
    world.run(60)
    assert world.decisions() == [("feed", "acted"), ("watch", "observe")]


def test_the_next_responses_baseline_begins_after_the_change_before_it(world, kit):
    world.speed = same
    world.responses = [kit.response("first"), kit.response("second")]
    world.start()
    world.fire()
    world.run(100, lambda: world.results() != [])
    closed = world.now
    world.run(100, lambda: len(world.decisions()) == 2)
    assert world.now - closed >= 20_000 + world.measure.range_ms


def test_one_experiment_at_a_time_however_many_alerts(world, kit):
    world.start()
    for name in ("a", "b"):
        world.fire(kit.alert(pod=name))
    most = 0
    for _ in range(60):
        world.run(1)
        most = max(most, len(world.responder.experiments()))
    assert most == 1
    waiting = [d["reason"] for d in world.kinds("waiting")]
    assert waiting == ["thin_baseline", "thin_baseline", "busy", "cooldown"]


# --- modes ------------------------------------------------------------------------------------------------------------


def test_observe_writes_down_the_plan_and_touches_nothing(world, kit):
    world.responses = [kit.response(mode=Mode.OBSERVE)]
    world.start()
    world.fire()
    world.run(60)
    assert world.trainer.sent == []
    (decision,) = world.kinds("decision")
    assert decision["reason"] == "observe"
    assert decision["plan"]["values"] == {"workers": 4}
    assert decision["plan"]["found"] == {"workers": 2}


def test_suggest_waits_for_a_yes_and_then_acts(world, kit):
    world.responses = [kit.response(mode=Mode.SUGGEST)]
    world.start()
    world.fire()
    world.run(60)
    assert world.trainer.sent == []
    (episode,) = world.responder.episodes()
    assert episode.attempts[0].waits_for == "awaiting_approval"
    world.responder.approve(episode.id, "feed", "ada", world.now)
    world.run(60)
    assert world.verdicts() == [("helped", "gain_is_real")]
    assert [d["by"] for d in world.kinds("experiment") if "by" in d] == ["ada", "ada"]


def test_a_no_is_final(world, kit):
    world.responses = [kit.response(mode=Mode.SUGGEST)]
    world.start()
    world.fire()
    world.run(2)
    (episode,) = world.responder.episodes()
    world.responder.reject(episode.id, "feed", "ada", world.now)
    world.run(60)
    assert world.decisions() == [("feed", "rejected")]
    assert world.trainer.sent == []
    assert [row["phase"] for row in world.db.connection.execute("SELECT phase FROM experiments")] == ["closed"]
    with pytest.raises(ResponseError, match="nothing does"):
        world.responder.approve(episode.id, "feed", "ada", world.now)


def test_an_approval_of_something_else_says_what_waits(world, kit):
    world.responses = [kit.response(mode=Mode.SUGGEST)]
    world.start()
    world.fire()
    world.run(2)
    (episode,) = world.responder.episodes()
    with pytest.raises(ResponseError, match=f"{episode.id} feed"):
        world.responder.approve(episode.id, "other", "ada", world.now)


def test_an_approval_expires(world, kit):
    world.responses = [kit.response(mode=Mode.SUGGEST)]
    world.policy = replace(world.policy, approval_ttl_ms=30_000)
    world.start()
    world.fire()
    world.run(40)
    assert world.decisions() == [("feed", "approval_expired")]


def test_an_approval_does_not_cover_another_plan_than_the_one_shown(world, kit):
    world.responses = [kit.response(mode=Mode.SUGGEST)]
    world.start()
    world.fire()
    world.run(2)
    (episode,) = world.responder.episodes()
    world.responder.approve(episode.id, "feed", "ada", world.now)
    world.trainer.set_by_hand("workers", 3)
    world.run(60)
    assert world.trainer.sent == []
    assert episode.attempts[0].waits_for == "awaiting_approval"


def test_the_platforms_cap_lowers_a_mode_and_never_raises_one(world, kit):
    world.responses = [kit.response("act"), kit.response("watch", mode=Mode.OBSERVE)]
    world.caps = {"set_workers": Mode.SUGGEST}
    world.start()
    world.fire()
    world.run(60)
    assert world.trainer.sent == []
    world.caps = {"set_workers": Mode.ACT}
    world.responder.replace([kit.response("watch", mode=Mode.OBSERVE)], world.caps, world.now)
    world.run(60)
    assert world.decisions() == [("act", "response_removed"), ("watch", "observe")]
    assert world.trainer.sent == []


def test_what_all_ranks_share_is_not_changed_unattended_without_the_platforms_word(world, kit):
    knob = Knob("shared", 1, 0, 8, scope=Scope.ALL_RANK)
    world.trainer._knobs["shared"] = knob
    world.remediation.plans = Change("trainer", {"shared": 2})
    world.start()
    world.fire()
    world.run(40)
    assert world.trainer.sent == []
    assert world.kinds("waiting")[0]["reason"] == "awaiting_approval"
    world.responder.replace(world.responses, {"set_workers": Mode.ACT}, world.now)
    world.run(5)
    assert world.trainer.sent[0][0] == "apply"


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (Skip("at_limit", "enough already"), "at_limit"),
        (Change("trainer", {"workers": 2}), "no_change"),
        (Change("trainer", {"workers": 17}), "out_of_bounds"),
        (Change("trainer", {"workers": -1}), "out_of_bounds"),
        (Change("trainer", {"secret": 1}), "undeclared_knob"),
        (Change("cluster", {"workers": 4}), "undeclared_knob"),
        (ZeroDivisionError("division by zero"), "plugin_error"),
    ],
)
def test_a_plan_that_cannot_be_carried_out_is_refused_for_good(world, plan, reason):
    world.remediation.plans = plan
    world.start()
    world.fire()
    world.run(60)
    assert world.decisions() == [("feed", reason)]
    assert world.trainer.sent == []


def test_a_knob_the_trainer_does_not_have_is_refused_for_good(world):
    del world.trainer._knobs["shared"]
    world.remediation.plans = Change("trainer", {"shared": 2})
    world.start()
    world.fire()
    world.run(2)
    assert world.decisions() == [("feed", "knob_missing")]


def test_an_actuator_that_is_not_there_is_refused_for_good(world):
    world.remediation.actuator = "cluster"
    world.start()
    world.fire()
    world.run(2)
    assert world.decisions() == [("feed", "no_actuator")]


def test_without_a_trainer_it_waits_for_one(world):
    world.trainer.detach()
    world.start()
    world.fire()
    world.run(30)
    assert world.kinds("waiting")[0]["reason"] == "no_trainer"
    world.trainer.attach()
    world.run(60)
    assert world.decisions() == [("feed", "acted")]


def test_only_the_sidecar_of_rank_zero_changes_what_all_ranks_share(world):
    world.trainer._knobs["shared"] = Knob("shared", 1, 0, 8, scope=Scope.ALL_RANK)
    world.remediation.plans = Change("trainer", {"shared": 2})
    identity = world.trainer.identity
    world.trainer.identity = lambda: replace(identity(), ranks=(1,))
    world.start()
    world.fire()
    world.run(2)
    assert world.decisions() == [("feed", "not_leader")]


def test_the_baseline_holds_nothing_from_before_the_alert_was_active(world):
    world.start()
    world.run(100)
    fired = world.now
    world.fire()
    world.run(60, lambda: world.trainer.sent != [])
    assert world.now - fired == 20_000 + world.measure.range_ms


def test_a_baseline_waits_for_steps_and_grows_with_them(world):
    world.stall = 4  # 5 steps in the configured 20 s, 10 are asked for
    world.start()
    world.fire()
    world.run(90, lambda: world.trainer.sent != [])
    (decision,) = world.kinds("decision")
    assert decision["waited"] == ["thin_baseline"]
    world.run(90)
    (verdict,) = world.kinds("verdict")
    assert verdict["estimate"]["baseline"]["steps"] >= 10
    assert verdict["estimate"]["after"]["steps"] >= 10
    assert verdict["estimate"]["after"]["seconds"] > 30


def test_an_expression_with_several_elements_is_never_judged_by(world):
    world.measure.elements = 2
    world.start()
    world.fire()
    world.run(60)
    assert world.decisions() == [("feed", "not_one_element")]


@pytest.mark.parametrize(
    ("attribute", "reason"), [("unseen", "guard_absent"), ("broken", "guard_broken"), ("failing", "query_error")]
)
def test_it_does_not_begin_while_its_guard_is_broken_or_blind(world, attribute, reason):
    setattr(world.measure, attribute, True)
    world.start()
    world.fire()
    world.run(60)
    assert world.trainer.sent == []
    assert world.kinds("waiting")[-1]["reason"] == reason
    setattr(world.measure, attribute, False)
    world.run(3)
    assert world.decisions() == [("feed", "acted")]


def test_a_response_cools_down_between_episodes(world, kit):
    world.responses = [kit.response(limits=Limits("job", 100_000, 4, 3))]
    world.start()
    subject = world.fire()
    world.run(60)
    world.responder.on_events([kit.resolved(subject, world.now)], world.now)
    world.remediation.plans = Change("trainer", {"workers": 8})
    world.fire()
    world.run(50)
    assert [d["reason"] for d in world.kinds("waiting")] == ["thin_baseline", "cooldown"]
    world.run(120)
    assert world.decisions() == [("feed", "acted"), ("feed", "acted")]


def test_no_more_orders_an_hour_than_allowed(world, kit):
    world.responses = [kit.response(limits=Limits("job", 0, 1, 3))]
    world.start()
    subject = world.fire()
    world.run(60)
    world.responder.on_events([kit.resolved(subject, world.now)], world.now)
    world.remediation.plans = Change("trainer", {"workers": 8})
    world.fire()
    world.run(60)
    assert [d["reason"] for d in world.kinds("waiting")] == ["thin_baseline", "per_hour"]
    world.clock.advance(3_600_000)
    world.run(60)
    assert world.decisions() == [("feed", "acted"), ("feed", "acted")]


def test_after_so_many_ineffective_experiments_the_breaker_opens_until_somebody_resets_it(world, kit):
    world.speed = same
    world.responses = [kit.response(limits=Limits("job", 0, 10, 2))]
    world.start()
    for _ in range(4):
        subject = world.fire()
        world.run(60)
        world.responder.on_events([kit.resolved(subject, world.now)], world.now)
    assert [reason for _, reason in world.decisions()] == ["acted", "acted", "breaker_open", "breaker_open"]
    assert samples(world)["spikewatch_response_breaker_open", "feed"] == 1
    world.responder.reset_breaker("feed", "ada", world.now)
    world.fire()
    world.run(60)
    assert world.decisions()[-1] == ("feed", "acted")
    with pytest.raises(ResponseError):
        world.responder.reset_breaker("other", "ada", world.now)


# --- what can go wrong in an experiment -------------------------------------------------------------------------------


def test_a_broken_guard_undoes_the_change_at_once(world):
    world.start()
    world.fire()
    world.until_phase("measuring")
    world.measure.broken = True
    world.run(1)
    assert world.verdicts() == [("inconclusive", "guard_broken")]
    assert world.trainer.values()["workers"] == 2


def test_a_guard_that_disappears_is_missed_after_its_grace(world):
    world.start()
    world.fire()
    world.until_phase("measuring")
    world.measure.unseen = True
    world.run(9)
    assert world.verdicts() == []
    world.run(3)
    assert world.verdicts() == [("inconclusive", "guard_absent")]
    assert world.trainer.values()["workers"] == 2


def test_an_expression_that_fails_while_measuring_is_inconclusive(world):
    world.start()
    world.fire()
    world.until_phase("measuring")
    world.measure.failing = True
    world.run(5)
    assert world.verdicts() == [("inconclusive", "query_error")]
    assert world.trainer.values()["workers"] == 2


def test_no_data_in_the_window_is_inconclusive_and_undone(world):
    world.start()
    world.fire()
    world.until_phase("settling")
    world.alive = False
    world.run(60)
    assert world.verdicts() == [("inconclusive", "too_few_steps_in_window")]
    assert world.trainer.values()["workers"] == 2


def test_a_steps_counter_that_disappears_is_inconclusive(world):
    world.start()
    world.fire()
    world.until_phase("measuring")
    world.measure.stepless = True
    world.run(60)
    assert world.verdicts() == [("inconclusive", "missing_data_in_window")]


def test_an_expression_that_splits_while_measuring_is_inconclusive(world):
    world.start()
    world.fire()
    world.until_phase("measuring")
    world.measure.elements = 2
    world.run(60)
    assert world.verdicts() == [("inconclusive", "not_one_element")]


def test_a_refused_order_is_inconclusive_and_leaves_nothing_behind(world):
    world.trainer.refuse = "unsupported"
    world.start()
    world.fire()
    world.run(40)
    assert world.verdicts() == [("inconclusive", "refused")]
    assert world.results() == ["not_applied"]
    assert world.kinds("experiment")[-1]["actuator_says"] == "unsupported"


def test_an_order_that_is_lost_is_given_up_and_called_back(world):
    world.trainer.lose = {"apply"}
    world.start()
    world.fire()
    world.run(120)
    assert world.verdicts() == [("inconclusive", "not_acknowledged")]
    assert world.results() == ["not_held"]
    assert ("revert", world.trainer.sent[0][1]) in world.trainer.sent


def test_a_trainer_that_restarts_is_not_judged_by(world):
    world.start()
    world.fire()
    world.until_phase("measuring")
    world.trainer.restart_trainer()
    world.run(3)
    assert world.verdicts() == [("inconclusive", "trainer_restarted")]
    assert world.results() == ["trainer_gone"]
    assert world.trainer.values()["workers"] == 2


def test_a_trainer_that_is_away_for_a_moment_does_not_end_the_experiment(world):
    world.start()
    world.fire()
    world.until_phase("measuring")
    world.trainer.detach()
    world.trainer.attach(after_ms=3000)
    world.run(60)
    assert world.verdicts() == [("helped", "gain_is_real")]


def test_a_trainer_that_stays_away_falls_back_by_its_lease(world):
    world.start()
    world.fire()
    world.until_phase("measuring")
    world.trainer.detach()
    world.run(60)
    assert world.trainer.values()["workers"] == 2
    assert world.verdicts() == [("inconclusive", "trainer_gone")]
    assert world.results() == ["rollback_unconfirmed"]


def test_a_lost_rollback_is_repeated_until_it_is_confirmed(world):
    world.speed = same
    world.trainer.lose = {"revert"}
    world.start()
    world.fire()
    world.until_phase("reverting")
    world.run(8)
    assert world.results() == []
    world.trainer.lose = set()
    world.run(5)
    assert world.results() == ["rolled_back"]


def test_a_lost_keep_is_repeated_and_the_proven_change_survives_its_lease(world):
    world.trainer.lose = {"keep"}
    world.start()
    world.fire()
    world.until_phase("keeping")
    world.run(40)
    assert world.trainer.values()["workers"] == 4
    world.trainer.lose = set()
    world.run(6)
    assert world.results() == ["kept"]


def test_a_value_that_somebody_else_has_set_stands(world):
    world.speed = same
    world.start()
    world.fire()
    world.until_phase("measuring")
    world.trainer.set_by_hand("workers", 7)
    world.run(60)
    assert world.trainer.values()["workers"] == 7
    assert world.results() == ["rollback_refused"]


def test_a_connection_that_breaks_while_sending_is_on_record_and_ends_inconclusive(world):
    world.trainer.broken = True
    world.start()
    world.fire()
    world.run(40, lambda: world.trainer.sent != [])
    assert "connection is broken" in world.kinds("command")[-1]["failed"]
    world.run(90)
    assert world.verdicts() == [("inconclusive", "not_acknowledged")]


def test_an_out_of_memory_kill_puts_the_knob_out_of_use_for_the_job(world, kit):
    world.facts = {"oom_kills_total": 3.0}
    world.responses = [kit.response(limits=Limits("job", 0, 10, 5))]
    world.start()
    subject = world.fire()
    world.until_phase("measuring")
    world.facts = {"oom_kills_total": 4.0}
    world.run(5)
    assert world.verdicts() == [("inconclusive", "oom_kill")]
    world.responder.on_events([kit.resolved(subject, world.now)], world.now)
    world.fire()
    world.run(60)
    assert world.decisions()[-1] == ("feed", "quarantined")


def test_after_a_pause_of_the_whole_process_nothing_is_called_helped(world):
    world.start()
    world.fire()
    world.until_phase("measuring")
    world.clock.advance(3_600_000)
    world.run(10)
    assert world.verdicts() == [("inconclusive", "lease_expired")]
    assert world.trainer.values()["workers"] == 2


def test_a_full_disk_stops_new_orders_and_the_trainer_falls_back(world):
    world.start()
    world.fire()
    world.until_phase("measuring")
    world.db.connection.execute("PRAGMA query_only=1")
    for _ in range(60):
        world.pass_second()
        try:
            world.responder.tick(world.now)
        except StateError:
            continue
    assert "keep" not in [m for m, _ in world.trainer.sent]
    assert world.trainer.values()["workers"] == 2
    world.db.connection.execute("PRAGMA query_only=0")
    world.run(3)
    assert world.results() == ["reverted_by_lease"]


def test_the_way_back_is_open_even_while_the_disk_is_full(world):
    world.start()
    world.fire()
    world.until_phase("measuring")
    world.db.connection.execute("PRAGMA query_only=1")
    world.measure.broken = True
    world.pass_second()
    with pytest.raises(StateError):
        world.responder.tick(world.now)
    assert world.trainer.values()["workers"] == 2


def test_nothing_new_begins_while_the_disk_is_full(world, kit):
    world.responses = [
        kit.response(),
        kit.response("watch", mode=Mode.OBSERVE, matchers=matchers.parse("alertname=Other")),
    ]
    world.start()
    world.db.connection.execute("PRAGMA query_only=1")
    with pytest.raises(StateError):
        world.fire(kit.alert("Other"))
    for _ in range(5):
        world.pass_second()
        with pytest.raises(StateError):
            world.responder.tick(world.now)
    assert [a.decided for e in world.responder.episodes() for a in e.attempts] == [""]
    world.db.connection.execute("PRAGMA query_only=0")
    world.run(2)
    assert world.decisions() == [("watch", "observe")]


def test_an_order_that_could_not_be_journalled_is_never_sent(world):
    world.start()
    world.fire()
    world.run(23)
    world.db.connection.execute("PRAGMA query_only=1")
    world.pass_second()
    with pytest.raises(StateError):
        world.responder.tick(world.now)
    world.pass_second()
    with pytest.raises(StateError):
        world.responder.tick(world.now)
    assert world.trainer.sent == []


# --- the end, and what others see -------------------------------------------------------------------------------------


def test_sigterm_sends_nothing_more_and_says_so(world):
    world.start()
    world.fire()
    world.until_phase("measuring")
    sent = len(world.trainer.sent)
    world.responder.stop(world.now)
    world.responder.stop(world.now)
    world.run(60)
    world.fire()
    assert len(world.trainer.sent) == sent
    assert world.trainer.values()["workers"] == 2  # the lease
    assert [d["event"] for d in world.kinds("sidecar")] == ["interrupted"]


def test_sigterm_decides_what_was_waiting(world, kit):
    world.responses = [kit.response(mode=Mode.SUGGEST), kit.response("second")]
    world.start()
    world.fire()
    world.run(5)
    world.responder.stop(world.now)
    assert world.decisions() == [("feed", "interrupted"), ("second", "interrupted")]


def samples(world):
    return {(s.metric, *(v for _, v in s.labels)): s.value for s in world.responder.samples()}


def test_metrics_start_at_zero_and_count(world):
    world.start()
    before = samples(world)
    assert before["spikewatch_experiments_total", "set_workers", "helped"] == 0
    assert before["spikewatch_decisions_total", "breaker_open"] == 0
    assert (before["spikewatch_experiment_active",], before["spikewatch_episodes_open",]) == (0, 0)
    world.fire()
    world.until_phase("measuring")
    during = samples(world)
    assert (during["spikewatch_experiment_active",], during["spikewatch_episodes_open",]) == (1, 1)
    world.run(60)
    after = samples(world)
    assert after["spikewatch_experiments_total", "set_workers", "helped"] == 1
    assert after["spikewatch_decisions_total", "acted"] == 1


def test_the_listener_hears_every_entry_in_the_order_of_the_journal(world):
    world.start()
    world.fire()
    world.run(60)
    assert world.entries == [e for _, e in world.journal.entries()]
    assert len(world.lines) == len(world.entries)


def test_it_says_what_it_will_read_and_how_far_back(world, kit):
    world.start()
    assert world.responder.exprs() == (kit.EXPR, kit.GUARD)
    assert world.responder.spans() == {kit.EXPR: 5 * 20_000}


def test_a_reload_lets_a_running_experiment_end(world):
    world.start()
    world.fire()
    world.until_phase("measuring")
    world.responder.replace([], {}, world.now)
    world.run(60)
    assert world.verdicts() == [("helped", "gain_is_real")]
    assert world.results() == ["kept"]


def test_the_fake_is_used_as_an_actuator(world):
    assert isinstance(world.trainer, Actuator)
    assert {s.value for s in Send} == {"apply", "renew", "keep", "revert"}
