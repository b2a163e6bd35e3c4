"""Ten thousand alerts in ten seconds: bounded memory, a record of every decision, and a tick that stays short."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace

import pytest

from sidecar.errors import StateError
from sidecar.responses import journal as journal_module
from sidecar.responses.response import Mode
from sidecar.responses.store_measure import STEPS, StoreMeasure
from sidecar.store import Store

EDGES, SECONDS = 10_000, 10


def test_a_storm_of_alerts_is_recorded_whole_and_holds_up_nothing(world, kit):
    world.responses = [kit.response(), kit.response("second", mode=Mode.SUGGEST)]
    world.policy = replace(world.policy, max_episodes=2000)
    world.start()
    subjects, spent, longest = [], 0.0, 0.0
    for second in range(SECONDS):
        world.pass_second()
        batch = [
            kit.alert(active_at_ms=world.now, fired_at_ms=world.now, pod=f"{second}-{i}")
            for i in range(EDGES // SECONDS)
        ]
        subjects += batch
        began = time.process_time()
        world.responder.on_events([kit.firing(a) for a in batch], world.now)
        ticked = time.process_time()
        world.responder.tick(world.now)
        spent += time.process_time() - began
        longest = max(longest, time.process_time() - ticked)
    assert len(world.responder.episodes()) == 2000
    assert len(world.decisions()) == 2 * (EDGES - 2000)
    assert {reason for _, reason in world.decisions()} == {"episode_limit"}
    # It keeps up: the ten seconds are worth of work for far less than ten seconds.
    assert spent < SECONDS
    assert longest < 1
    world.run(5)
    world.responder.on_events([kit.resolved(a, world.now) for a in subjects], world.now)
    assert world.responder.episodes() == ()
    assert len(world.decisions()) == 2 * EDGES
    assert world.db.connection.execute("SELECT count(DISTINCT episode) FROM decisions").fetchone()[0] == EDGES
    assert len(world.trainer.history) <= 2


def test_each_episode_gets_its_turn_however_many_wait(world, kit):
    world.responses = [kit.response(mode=Mode.OBSERVE)]
    world.policy = replace(world.policy, per_tick=10)
    world.start()
    world.responder.on_events([kit.firing(kit.alert(pod=str(i))) for i in range(100)], world.now)
    for ticks in range(1, 11):
        world.run(1)
        assert len(world.decisions()) == 10 * ticks


class Counting:
    """A measure that counts what is asked of the one inside."""

    def __init__(self, inner):
        self.inner, self.asked = inner, Counter()

    def __getattr__(self, name):
        def ask(*args):
            self.asked[name] += 1
            return getattr(self.inner, name)(*args)

        return ask


def test_a_tick_asks_the_store_once_about_each_expression_however_many_alerts_wait(world, kit):
    """With the real store: what a tick costs must not grow with the alerts that are open."""
    store = Store()
    handles = [store.series("samples_total", {"rank": "0"}), store.series(STEPS, {"rank": "0"})]
    bad = store.series("bad_total", {"rank": "0"})
    world.measure = Counting(StoreMeasure(store))
    # A little is measured only now and then, so that no baseline is ever full and all of them go on waiting.
    world.responses = [kit.response(), kit.response("second", matchers=kit.matchers("alertname=Slow"))]
    world.start()
    for i in range(400):
        name = "Starved" if i % 2 else "Slow"
        world.fire(kit.alert(name, active_at_ms=world.now, fired_at_ms=world.now, pod=str(i)))
    asked = []
    for _ in range(40):
        now = world.clock.advance(1000)
        for handle in handles:
            store.push(handle.block, now, {handle.column: float(now // 10_000)})
        store.push(bad.block, now, {bad.column: 0.0})
        world.measure.asked.clear()
        world.responder.tick(now)
        asked.append(sum(world.measure.asked.values()))
    assert len(world.responder.episodes()) == 400
    assert 0 < max(asked) < 20


@pytest.mark.parametrize("responses", [1, 4])
def test_edges_while_the_disk_refuses_are_bounded_in_memory_and_what_is_lost_is_counted(
    world, kit, monkeypatch, responses
):
    monkeypatch.setattr(journal_module, "MAX_WAITING", 500)
    world.responses = [kit.response(f"r{i}", mode=Mode.SUGGEST) for i in range(responses)]
    world.policy = replace(world.policy, max_episodes=50)
    world.start()
    world.db.connection.execute("PRAGMA query_only=1")
    for i in range(2000):
        with pytest.raises(StateError):
            world.responder.on_events([kit.firing(kit.alert(pod=str(i)))], world.now)
    assert len(world.journal._rows) <= 500
    assert len(world.journal._entries) <= 500
    assert len(world.responder.episodes()) == 50
    assert world.samples()["spikewatch_journal_lost_total", "entry"] > 0
    world.db.connection.execute("PRAGMA query_only=0")
    world.run(2)
    assert not world.journal.pending


def test_thousands_of_open_alerts_end_with_a_record_each_when_the_sidecar_stops(world, kit):
    world.responses = [kit.response(f"r{i}", mode=Mode.SUGGEST) for i in range(3)]
    world.start()
    alerts = [kit.alert(pod=str(i)) for i in range(4000)]
    world.responder.on_events([kit.firing(a) for a in alerts], world.now)
    world.responder.stop(world.now)
    assert len(world.decisions()) == 3 * 4000
    assert {reason for _, reason in world.decisions()} == {"interrupted"}
    assert world.journal.dropped == 0
