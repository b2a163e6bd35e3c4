"""From a firing alert to a change that was kept or undone, and what others see of it."""

from __future__ import annotations

import pytest

from sidecar.hooks import Actuator
from sidecar.responses.experiment import Send
from sidecar.responses.response import Mode


def slower(workers):
    return 400.0 / workers


def same(workers):
    return 100.0


# --- the whole path ---


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


# --- the end, and what others see ---


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


def test_metrics_start_at_zero_and_count(world):
    world.start()
    before = world.samples()
    assert before["spikewatch_experiments_total", "set_workers", "helped"] == 0
    assert before["spikewatch_decisions_total", "breaker_open"] == 0
    assert (before["spikewatch_experiment_active",], before["spikewatch_episodes_open",]) == (0, 0)
    world.fire()
    world.until_phase("measuring")
    during = world.samples()
    assert (during["spikewatch_experiment_active",], during["spikewatch_episodes_open",]) == (1, 1)
    world.run(60)
    after = world.samples()
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


def test_every_verdict_says_what_was_measured_also_where_that_was_too_little(world):
    world.start()
    world.fire()
    world.until_phase("measuring")
    world.measure.broken = True
    world.run(1)
    (broken,) = world.kinds("verdict")
    assert set(broken["samples"]) == {"baseline"}
    assert broken["samples"]["baseline"]["samples"] == 20
    assert broken["samples"]["baseline"]["steps"] == 20
    assert 190 < broken["samples"]["baseline"]["mean"] < 210
    world.measure.broken = False
    world.clock.advance(400_000)
    world.fire()
    world.until_phase("measuring")
    world.measure.samples.clear()
    world.alive = False
    world.run(150)
    thin = world.kinds("verdict")[1]
    assert thin["verdict"] == "inconclusive"
    assert thin["samples"]["after"]["samples"] == 0
    assert thin["samples"]["after"]["mean"] is None
