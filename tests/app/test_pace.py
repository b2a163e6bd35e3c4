"""Ticks come when rules are due, and rules see the samples of the tick that evaluates them."""

import asyncio
import json
from datetime import UTC, datetime

import pytest

from sidecar import app
from sidecar.alerting.group import GroupRunner
from sidecar.alerting.rules import RuleGroup
from sidecar.app.waker import Waker
from sidecar.clock import FakeClock
from sidecar.model import AlertState

RULE = {"alert": "NoTrainer", "expr": 'spikewatch_collector_up{collector="trainer"} == 0'}


@pytest.fixture
def sidecar(tmp_path):
    """A whole sidecar without listeners, with one rule, begun 600 ms before it is due; the test moves its clock."""
    (tmp_path / "one.rules.yaml").write_text(json.dumps({"groups": [{"name": "g", "rules": [RULE]}]}))
    config = {
        "state_dir": "state",
        "run_dir": "run",
        "rules": ["one.rules.yaml"],
        "responses": [],
        "collectors": {"process": {"enabled": False}},
    }
    (tmp_path / "spikewatch.yaml").write_text(json.dumps(config))
    made = app.build(tmp_path / "spikewatch.yaml", FakeClock(10_400), {})
    made.tick()
    yield made
    asyncio.run(made.stop())


def firing(sidecar):
    return [alert.labels for alert in sidecar.manager.alerts() if alert.state is AlertState.FIRING]


@pytest.mark.parametrize("lateness_ms", [-3, 0, 3, 90])
def test_a_tick_about_when_rules_are_due_judges_its_own_samples(sidecar, lateness_ms):
    sidecar.clock.advance(600 + lateness_ms)
    sidecar.tick()
    assert len(firing(sidecar)) == 1


def test_a_tick_that_is_late_stamps_its_samples_with_the_true_time(sidecar):
    sidecar.clock.advance(900)
    sidecar.tick()
    assert sidecar.store.sample_times("spikewatch_collector_up", 0, 20_000) == [10_400, 11_300]
    assert len(firing(sidecar)) == 1  # judged at 11 s, by the sample of 10.4 s


def test_two_ticks_beside_the_same_instant_take_two_samples(sidecar):
    for ms in (590, 20):
        sidecar.clock.advance(ms)
        sidecar.tick()
    assert sidecar.store.sample_times("spikewatch_collector_up", 0, 20_000) == [10_400, 11_000, 11_010]


def test_groups_are_due_only_when_samples_are_taken_whatever_their_name_and_interval():
    for name in map(str, range(20)):
        for interval_ms in (0, 1000, 15_000):
            group = GroupRunner(RuleGroup(name=name, file="f", interval_ms=interval_ms, rules=()), (), 1000)
            group.due(10_400)
            assert group.slots.next_ms % 1000 == 0


def test_the_waker_wakes_at_multiples_of_the_interval_on_our_clock():
    async def main():
        waker = Waker(lambda: None, 60_000, FakeClock(10_400))
        waker.start()
        wait = waker._scheduler.get_job("tick").next_run_time - datetime.now(UTC)
        await waker.stop()
        return wait.total_seconds()

    assert 40 < asyncio.run(main()) <= 49.6


def test_the_waker_arms_itself_anew_once_when_the_machines_clock_is_set():
    async def main():
        clock = FakeClock(10_400)
        waker = Waker(lambda: None, 60_000, clock)
        waker.start()
        waker.look()
        assert waker.rearmed == 0
        clock.step_wall(-3_600_000)
        waker.look()
        waker.look()
        await waker.stop()
        return waker.rearmed

    assert asyncio.run(main()) == 1
