"""What can go wrong in an experiment, and that it always ends with a proved or the found value."""

from __future__ import annotations

import pytest

from sidecar.errors import StateError
from sidecar.responses import matchers
from sidecar.responses.response import Limits, Mode


def same(workers):
    return 100.0


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
