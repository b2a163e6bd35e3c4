"""What keeps the responder from acting, for now or for good."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sidecar.errors import ResponseError
from sidecar.model import Change, Knob, Scope, Skip
from sidecar.responses.response import Limits


def same(workers):
    return 100.0


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
    assert world.samples()["spikewatch_response_breaker_open", "feed"] == 1
    world.responder.reset_breaker("feed", "ada", world.now)
    world.fire()
    world.run(60)
    assert world.decisions()[-1] == ("feed", "acted")
    with pytest.raises(ResponseError):
        world.responder.reset_breaker("other", "ada", world.now)
