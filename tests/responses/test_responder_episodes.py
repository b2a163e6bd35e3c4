"""Which edges open an episode, in what order its responses are tried, and how far each may go."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sidecar.errors import ResponseError
from sidecar.model import Change, Knob, Scope
from sidecar.responses.response import Mode


def same(workers):
    return 100.0


# --- episodes ---


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


# --- modes ---


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
