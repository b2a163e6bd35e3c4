"""Public reports of other systems' remediations going wrong, each played against ours.

The repository and number say where the trouble was told; what is asserted is how it should have ended.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from sidecar.errors import ConfigError
from sidecar.model import Change
from sidecar.responses.limits import MAX_BACKOFF
from sidecar.responses.loader import load_responses
from sidecar.responses.response import Limits, Mode
from sidecar.yamlfile import Document


def same(workers):
    return 100.0


def no_limits(kit, **changes):
    return kit.response(limits=Limits("job", 0, 100, 100), **changes)


def test_prometheus_18243_a_reload_while_the_alert_fires_never_runs_an_action_again(world, kit):
    world.start()
    world.fire()
    world.run(60)
    assert world.decisions() == [("feed", "acted")]
    for changed in (no_limits(kit), no_limits(kit, params=kit.Params(to=8)), kit.response(mode=Mode.SUGGEST)):
        world.responder.replace([changed], {}, world.now)
        world.run(60)
    assert [message for message, _ in world.trainer.sent].count("apply") == 1
    assert world.decisions() == [("feed", "acted")]


def test_prometheus_7042_a_misspelt_key_is_an_error_with_its_line_and_the_nearest_name(world, kit):
    text = (
        "responses:\n- name: a\n  match: [x=y]\n  remediation: set_workers\n  verify: {expr: up, gaol: increase}\n"
        "  limts: {}\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_responses(Document("r.yaml", text), {"set_workers": world.remediation})
    said = [str(p) for p in caught.value.problems]
    assert "r.yaml:5:22: error: unknown key 'gaol' (did you mean goal?)" in said
    assert "r.yaml:6:3: error: unknown key 'limts' (did you mean limits?)" in said


def test_kubernaut_722_a_window_without_samples_is_inconclusive_and_rolled_back(world):
    """Also argo-rollouts 4479 and flagger 892: a metric that does not exist counted as success."""
    world.start()
    world.fire()
    world.until_phase("settling")
    world.measure.samples.clear()
    world.alive = False
    world.run(300)
    ((verdict, _),) = world.verdicts()
    assert verdict == "inconclusive"
    assert world.trainer.values()["workers"] == 2
    assert world.responder.breakers("feed") == {"job:job": 1}, "it counts as ineffective"


def test_kubernaut_368_a_windowed_alert_that_still_fires_after_a_good_fix_gets_no_second_one(world, kit):
    world.responses = [no_limits(kit), no_limits(kit, name="more", params=kit.Params(to=8))]
    world.measure.ranges = {"long": 300_000}
    world.start()
    world.fire(replace(kit.alert(active_at_ms=world.now, fired_at_ms=world.now), expr="long"))
    world.run(100, lambda: world.results() == ["kept"])
    world.run(290)
    assert world.trainer.values()["workers"] == 4
    assert [message for message, _ in world.trainer.sent].count("apply") == 1


def test_kubernaut_368_nothing_is_measured_before_the_longest_range_has_left_the_time_before(world):
    world.measure.range_ms = 90_000
    world.start()
    world.fire()
    world.run(200, lambda: world.responder.experiments() != ())
    world.until_phase("settling", 20)
    applied = world.now
    world.until_phase("measuring", 200)
    assert world.now - applied >= 90_000


def test_kubernaut_1090_after_so_many_ineffective_repeats_it_stops_and_says_so(world, kit):
    world.speed = same
    world.responses = [kit.response(limits=Limits("job", 0, 100, 3))]
    world.start()
    for _ in range(39):
        subject = world.fire()
        world.run(55)
        world.responder.on_events([kit.resolved(subject, world.now)], world.now)
    reasons = [reason for _, reason in world.decisions()]
    assert reasons == ["acted"] * 3 + ["breaker_open"] * 36
    assert world.samples()["spikewatch_response_breaker_open", "feed"] == 1


def test_kubernaut_1091_an_inconclusive_one_backs_off_too_and_each_further_one_twice_as_long(world, kit):
    world.responses = [kit.response(limits=Limits("job", 60_000, 100, 100))]
    world.start()
    ends = []
    begins = []
    for _ in range(4):
        subject = world.fire()
        world.run(2000, lambda: len(world.responder.experiments()) == 1)
        begins.append(world.now)
        world.measure.broken = True
        world.run(100, lambda: world.responder.experiments() == ())
        ends.append(world.now)
        world.measure.broken = False
        world.responder.on_events([kit.resolved(subject, world.now)], world.now)
    assert {verdict for verdict, _ in world.verdicts()} == {"inconclusive"}
    pauses = [begin - end for end, begin in zip(ends, begins[1:], strict=False)]
    for pause, least in zip(pauses, (60_000, 120_000, 240_000), strict=True):
        assert least - 3_000 <= pause <= least + 3_000
    assert MAX_BACKOFF == 6


def test_robusta_345_a_resolved_message_never_acts_however_often_it_comes(world, kit):
    world.start()
    subject = kit.alert(active_at_ms=world.now, fired_at_ms=world.now)
    for _ in range(3):
        world.responder.on_events([kit.resolved(subject, world.now)] * 2, world.now)
        world.run(30)
    world.responder.on_events([kit.firing(subject), kit.resolved(subject, world.now)] * 3, world.now)
    world.run(60)
    assert world.trainer.sent == []


def test_robusta_pod_actions_a_limit_whose_key_is_missing_holds(world, kit):
    """There, a missing label skipped the rate limit. A trainer without a job name is one key like any other."""
    world.responses = [kit.response(limits=Limits("job", 3_600_000, 1, 3))]
    world.trainer._job = ""
    world.trainer.restart_trainer()
    world.start()
    for _ in range(3):
        subject = world.fire()
        world.run(60)
        world.responder.on_events([kit.resolved(subject, world.now)], world.now)
    assert [message for message, _ in world.trainer.sent].count("apply") == 1


def test_dlrover_704_repeated_tuning_stays_within_bounds_and_a_kill_for_memory_ends_it(world, kit):
    world.responses = [no_limits(kit)]
    world.facts = {"oom_kills_total": 0}
    world.start()
    for wanted in (8, 16, 32, 64):
        subject = world.fire()
        world.remediation.plans = Change("trainer", {"workers": wanted})
        world.run(55)
        world.responder.on_events([kit.resolved(subject, world.now)], world.now)
    assert max(v["workers"] for v in world.trainer.history) == 16
    assert [reason for _, reason in world.decisions()] == ["acted", "acted", "out_of_bounds", "out_of_bounds"]
    world.fire()
    world.remediation.plans = Change("trainer", {"workers": 12})
    world.until_phase("measuring")
    world.facts = {"oom_kills_total": 1}
    world.run(10)
    assert world.trainer.values()["workers"] == 16, "the last good one"
    world.fire(kit.alert(active_at_ms=world.now, fired_at_ms=world.now, again="1"))
    world.run(3)
    assert world.decisions()[-1] == ("feed", "quarantined")


def test_pytorch_lightning_21903_a_search_that_ran_no_step_is_no_success(world):
    world.start()
    world.fire()
    world.until_phase("measuring")
    world.measure.step_times.clear()
    world.stall = 10**9  # samples come, steps do not
    world.run(300)
    assert world.verdicts() == [("inconclusive", "too_few_steps_in_window")]
    assert world.trainer.values()["workers"] == 2


# --- from the system cards --------------------------------------------------------------------------------------------


def test_nvsentinel_1424_what_somebody_else_has_set_since_is_not_undone(world):
    world.speed = same
    world.start()
    world.fire()
    world.until_phase("measuring")
    world.trainer.set_by_hand("workers", 7)
    world.run(120)
    assert world.trainer.values()["workers"] == 7
    assert world.results() == ["rollback_refused"]


def test_zeus_a_rollback_restores_the_value_found_and_no_default_or_maximum(world):
    world.speed = same
    world.trainer.set_by_hand("workers", 5)
    world.start()
    world.fire()
    world.run(120)
    assert world.trainer.values()["workers"] == 5


def test_nvsentinel_1281_a_cold_start_does_not_act_on_what_was_before_it(world, kit):
    world.start()
    world.responder.on_events([kit.firing(kit.alert(), restored=True)] * 2, world.now)
    world.run(60)
    assert (world.trainer.sent, world.decisions()) == ([], [])


def test_keep_6531_an_execution_that_hangs_does_not_block_the_others_for_ever(world, kit):
    world.responses = [no_limits(kit)]
    world.policy = replace(world.policy, apply_timeout_ms=20_000, close_timeout_ms=50_000)
    world.start()
    first = world.fire(kit.alert(active_at_ms=world.now, fired_at_ms=world.now, pod="a"))
    world.trainer.lose = {"apply", "revert"}
    world.run(200, lambda: world.results() != [])
    assert world.verdicts() == [("inconclusive", "not_acknowledged")]
    world.trainer.lose = set()
    world.responder.on_events([kit.resolved(first, world.now)], world.now)
    world.fire(kit.alert(active_at_ms=world.now, fired_at_ms=world.now, pod="b"))
    world.run(60)
    assert world.verdicts()[-1] == ("helped", "gain_is_real")


def test_st2_4481_two_alerts_in_the_same_instant_do_not_race_past_one_at_a_time(world, kit):
    world.responses = [no_limits(kit)]
    world.start()
    alerts = [kit.alert(active_at_ms=world.now, fired_at_ms=world.now, pod=str(i)) for i in range(20)]
    world.responder.on_events([kit.firing(a) for a in alerts], world.now)
    for _ in range(60):
        world.run(1)
        assert len(world.responder.experiments()) <= 1
        assert len(world.trainer.open_changes()) <= 1


def test_elastalert_2304_a_shorter_cooldown_counts_from_the_reload_on(world, kit):
    world.responses = [kit.response(limits=Limits("job", 3_600_000, 100, 3))]
    world.start()
    subject = world.fire()
    world.run(60)
    world.responder.on_events([kit.resolved(subject, world.now)], world.now)
    world.remediation.plans = Change("trainer", {"workers": 8})
    world.fire()
    world.run(60)
    assert world.kinds("waiting")[-1]["reason"] == "cooldown"
    world.responder.replace([kit.response(limits=Limits("job", 1_000, 100, 3))], {}, world.now)
    world.run(30)
    assert world.decisions() == [("feed", "acted"), ("feed", "acted")]


def test_dlrover_1749_what_was_begun_and_never_ended_does_not_outlive_the_restart(world):
    world.start()
    world.fire()
    world.until_phase("measuring")
    for _ in range(3):
        world.db.close()
        world.start()
        world.run(5)
    assert world.responder.experiments() == ()
    assert world.results() == ["rolled_back"]
    world.run(60)
    assert [message for message, _ in world.trainer.sent].count("apply") == 1
