"""Ten thousand alerts in ten seconds: bounded memory, a record of every decision, and a tick that stays short."""

from __future__ import annotations

import time
from dataclasses import replace

from sidecar.responses.response import Mode

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
