"""One change at a time on a trainer, whichever way it goes there; trainers do not wait for each other."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pytest

from sidecar.model import Change, Knob
from sidecar.responses.fake_actuator import FakeActuator
from sidecar.responses.response import Limits


@pytest.fixture
def second(world, kit):
    """Another actuator, with a remediation of its own; `job` and `epoch` say which trainer it changes."""

    class ByHttp(kit.SetWorkers):
        name: ClassVar[str] = "by_http"
        actuator: ClassVar[str] = "http"
        knobs: ClassVar[tuple[str, ...]] = ("replicas",)

        def plan(self, alert, view, params):
            return Change("http", {"replicas": 3})

    def add(job="job"):
        made = FakeActuator(world.clock, {"replicas": Knob("replicas", 1, 0, 8)}, job=job)
        world.others["http"] = made
        world.plugins["by_http"] = ByHttp()
        world.responses = [
            kit.response("feed", matchers=kit.matchers("alertname=Starved"), limits=Limits("job", 0, 9, 9)),
            kit.response(
                "post", matchers=kit.matchers("alertname=Slow"), remediation="by_http", limits=Limits("job", 0, 9, 9)
            ),
        ]
        world.start()
        for name in ("Starved", "Slow"):
            world.fire(kit.alert(name, active_at_ms=world.now, fired_at_ms=world.now))
        return made

    return add


def most_at_once(world, seconds=60):
    most = 0
    for _ in range(seconds):
        world.run(1)
        most = max(most, len(world.responder.experiments()))
    return most


def test_two_actuators_do_not_change_one_trainer_at_the_same_time(world, second):
    second()
    assert most_at_once(world) == 1
    assert "busy" in [d["reason"] for d in world.kinds("waiting")]


def test_the_second_change_of_a_trainer_is_held_against_what_it_did_after_the_first(world, second):
    second()
    world.run(200, lambda: world.results() != [])
    closed = world.now
    world.run(200, lambda: len(world.decisions()) == 2)
    assert world.now - closed >= 20_000 + world.measure.range_ms


def test_two_trainers_are_experimented_with_at_the_same_time(world, second):
    second(job="other")
    assert most_at_once(world) == 2
    assert sorted(world.decisions()) == [("feed", "acted"), ("post", "acted")]


def test_a_trainer_that_left_in_the_middle_of_a_trial_does_not_hold_up_the_one_that_came(world, kit):
    """The pod's next job begins while the first one's experiment still waits for its lease."""
    world.responses = [kit.response(limits=Limits("job", 0, 9, 9))]
    world.policy = replace(world.policy, close_timeout_ms=500_000)
    world.start()
    world.fire()
    world.until_phase("measuring")
    world.trainer.lose = {"revert"}
    left = world.trainer.identity()
    world.trainer.identity = lambda: replace(left, job="next", run_ids=("next-1",))
    world.remediation.plans = Change("trainer", {"workers": 3})
    world.run(3)
    world.fire(kit.alert(active_at_ms=world.now, fired_at_ms=world.now, of="next"))
    world.run(40, lambda: len(world.decisions()) == 2)
    assert [x.job for x in world.responder.experiments()][-1] == "next"


def test_a_crash_leaves_every_trials_end_to_the_next_process(world, second):
    """Two experiments under way: each is taken over by itself, and none hides the other."""
    second(job="other")
    world.run(60, lambda: len(world.responder.experiments()) == 2)
    assert len(world.responder.experiments()) == 2
    world.db.close()
    world.start()
    assert len(world.responder.experiments()) == 2
    world.run(60)
    assert sorted(world.verdicts()) == [("inconclusive", "interrupted")] * 2
    assert world.trainer.values()["workers"] == 2
    assert world.others["http"].values()["replicas"] == 1


def test_an_actuator_that_fails_is_one_that_is_not_there(world, second):
    made = second(job="other")

    def broken():
        raise ZeroDivisionError

    made.knobs = broken
    world.run(60)
    assert ("feed", "acted") in world.decisions()
    assert [x for x in world.decisions() if x[0] == "post"] == []
    assert "no_trainer" in [d["reason"] for d in world.kinds("waiting")]


def test_a_message_that_an_actuators_bug_swallows_is_a_message_that_got_lost(world, second):
    made = second(job="other")

    def broken(order):
        raise ZeroDivisionError("a bug")

    made.apply = broken
    world.run(120)
    assert ("feed", "acted") in world.decisions()
    assert "ZeroDivisionError: a bug" in [c.get("failed") for c in world.kinds("command")]
    assert ("inconclusive", "not_acknowledged") in world.verdicts()
