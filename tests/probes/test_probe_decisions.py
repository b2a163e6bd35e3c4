"""When a sweep may run, what it may cost, what is healthy, and what numbers mean: pure decisions."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes import baseline, budget, gates
from probes.explain import Seen, explain

READY = gates.Situation(
    trainer_attached=True,
    trainer_started=True,
    window_open=False,
    sm_activity=0.9,
    free_bytes=8 << 30,
    recent_xid=False,
)


# --- gates ---


@pytest.mark.parametrize(
    ("change", "gate", "reason"),
    [
        ({"trainer_started": False}, "preflight", ""),
        ({"window_open": True}, "window", ""),
        ({"sm_activity": 0.01}, "idle", ""),
        ({}, "", "skipped_busy"),
        ({"sm_activity": None}, "", "skipped_busy"),
        ({"window_open": True, "recent_xid": True}, "", "skipped_xid"),
        ({"window_open": True, "sharing": gates.Sharing.MPS}, "", "skipped_mps"),
        ({"window_open": True, "free_bytes": 1 << 30}, "", "skipped_memory"),
        ({"window_open": True, "free_bytes": None}, "window", ""),
    ],
)
def test_the_first_open_gate_lets_a_sweep_through(change, gate, reason):
    verdict = gates.decide(replace(READY, **change), gates.Policy())
    assert (verdict.gate, verdict.reason, verdict.open) == (gate, reason, bool(gate))
    assert verdict.open or verdict.why


def test_beside_a_busy_gpu_only_where_it_is_allowed():
    assert gates.decide(READY, gates.Policy(beside_busy=True)).gate == "busy"
    shared = replace(READY, sharing=gates.Sharing.MPS)
    assert gates.decide(shared, gates.Policy(beside_busy=True, under_mps=True)).gate == "busy"


@pytest.mark.parametrize(
    ("gate", "light", "window_only", "allowed"),
    [
        ("busy", True, False, True),
        ("busy", False, False, False),
        ("idle", False, False, True),
        ("idle", False, True, False),
        ("window", False, True, True),
        ("preflight", False, True, True),
    ],
)
def test_what_costs_memory_waits_for_a_window_and_beside_a_trainer_only_light_probes_run(
    gate, light, window_only, allowed
):
    assert gates.allowed(gate, light, window_only) is allowed


@given(st.floats(1e9, 2e9), st.text(min_size=1))
def test_all_ranks_of_a_job_start_in_the_same_second(now, job):
    start = gates.next_start(now, job)
    assert 0 < start - now <= 60
    assert int(start) % 60 == gates.second_of(job)


# --- budget ---


def test_a_bucket_holds_a_minutes_worth_at_first_and_fills_with_time():
    bucket = budget.Bucket().filled(1000.0)
    assert bucket.allows(2e-3)
    after = bucket.spent(2e-3)
    assert not after.allows(1e-3)
    assert after.wait_s(1e-3) == pytest.approx(30)
    assert after.filled(1030.0).allows(1e-3 - 1e-9)


def test_a_sweep_that_took_more_than_expected_is_a_debt():
    after = budget.Bucket().filled(1000.0).spent(8e-3)
    assert after.wait_s(1e-3) == pytest.approx(7e-3 / 2e-3 * 60)


@given(st.lists(st.tuples(st.floats(0, 600), st.floats(0, 5e-3)), max_size=40), st.floats(1e-4, 5e-3))
def test_over_any_time_no_more_is_spent_than_came_in(story, rate):
    bucket, now, spent = budget.Bucket(per_minute_s=rate), 1000.0, 0.0
    bucket = bucket.filled(now)
    for pause, cost in story:
        now += pause
        bucket = bucket.filled(now)
        if bucket.allows(cost):
            bucket, spent = bucket.spent(cost), spent + cost
    assert spent <= rate + (now - 1000.0) / 60 * rate + 1e-9


def test_a_clock_that_goes_back_brings_nothing():
    bucket = budget.Bucket().filled(1000.0).spent(2e-3)
    assert bucket.filled(500.0).tokens_s == bucket.tokens_s


def test_steps_that_suffer_slow_probing_down_and_it_recovers():
    bucket = budget.Bucket().judged(1.05).judged(1.02)
    assert bucket.slower == 4
    assert bucket.judged(None).slower == 4
    assert bucket.judged(1.0).judged(0.99).judged(1.0).slower == 1
    for _ in range(20):
        bucket = bucket.judged(2.0)
    assert bucket.slower == budget.WORST_BACKOFF


def test_what_never_fits_waits_for_ever():
    assert budget.Bucket().wait_s(1.0) == float("inf")


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"tokens_s": "x", "at_s": 1, "slower": 1}', "\x00"])
def test_a_spoilt_file_starts_anew(tmp_path, text):
    (tmp_path / "b.json").write_text(text)
    assert budget.load(tmp_path / "b.json") == budget.Bucket()


def test_a_bucket_survives_a_restart(tmp_path):
    bucket = budget.Bucket().filled(1000.0).spent(1.5e-3).judged(1.5)
    budget.save(tmp_path / "b.json", bucket)
    assert budget.load(tmp_path / "b.json") == bucket


# --- baselines ---

KEY = baseline.Key("GPU-1", "", "550.1", "abc", 700, 3_201_000)


def learned(values):
    found = baseline.Learned()
    for value in values:
        found = found.with_sample(value)
    return found


def test_nothing_is_compared_before_twenty_clean_samples():
    few = learned([100.0] * 19)
    assert baseline.compare(few, 1.0)[0] == baseline.Comparison(None, None, "learning")
    assert few.with_sample(100.0).ready


def test_a_gpu_that_is_a_little_slow_is_degraded_only_when_it_stays_so():
    past = learned([100.0 + 0.1 * (n % 5) for n in range(30)])
    verdicts = []
    for _ in range(3):
        compared, past = baseline.compare(past, 93.0)
        verdicts.append(compared.verdict)
    assert verdicts == ["slow", "slow", "degraded"]
    assert baseline.compare(past, 100.0)[1].slow == 0


def test_a_gpu_that_lost_much_is_degraded_at_once():
    compared, _ = baseline.compare(learned([100.0] * 20), 80.0)
    assert (compared.verdict, compared.ratio) == ("degraded", pytest.approx(0.8))


def test_noise_that_is_usual_for_it_alarms_nobody():
    noisy = learned([100.0 + 10 * (-1) ** n for n in range(40)])
    assert baseline.compare(noisy, 92.0)[0].verdict == "healthy"


def test_of_times_the_longer_ones_are_worse():
    past = learned([2e-6] * 20)
    assert baseline.compare(past, 2.5e-6, higher_is_better=False)[0].verdict == "degraded"
    assert baseline.compare(past, 1.5e-6, higher_is_better=False)[0].verdict == "healthy"
    assert not baseline.higher_is_better("spikewatch_gpu_probe_launch_dispatch_seconds")
    assert baseline.higher_is_better("spikewatch_gpu_probe_memory_read_bytes_per_second")


@pytest.mark.parametrize(
    ("change", "is_clean"),
    [
        ({}, True),
        ({"idle": None}, False),
        ({"idle": False}, False),
        ({"clocks_limited": True}, False),
        ({"clocks_limited": None}, False),
        ({"preempted": True}, False),
        ({"share_of_rated": 0.4}, False),
        ({"share_of_rated": 0.8}, True),
    ],
)
def test_only_samples_of_a_quiet_unlimited_gpu_are_learned_from(change, is_clean):
    assert baseline.clean(replace(baseline.Surroundings(True, False), **change)) is is_clean


def test_baselines_are_kept_by_everything_that_changes_them(tmp_path):
    store = baseline.Store(tmp_path / "b.json")
    store.put(KEY, "read", learned([1.0, 2.0]))
    store.save()
    again = baseline.Store(tmp_path / "b.json")
    assert again.get(KEY, "read").samples == (1.0, 2.0)
    for change in (
        {"driver": "560"},
        {"mig_profile": "1g.10gb"},
        {"ptx": "x"},
        {"power_limit_w": 500},
        {"uuid": "GPU-2"},
    ):
        assert again.get(replace(KEY, **change), "read") == baseline.Learned()


@pytest.mark.parametrize(
    "text", ["[]", "{", json.dumps({KEY.text(): {"read": {"samples": ["x"]}}}), json.dumps({"a": 1})]
)
def test_a_spoilt_file_is_set_aside_or_its_entries_are_not_believed(tmp_path, text):
    (tmp_path / "b.json").write_text(text)
    store = baseline.Store(tmp_path / "b.json")
    assert store.get(KEY, "read") == baseline.Learned()
    store.put(KEY, "read", learned([1.0]))
    store.save()
    assert baseline.Store(tmp_path / "b.json").get(KEY, "read").samples == (1.0,)


# --- explanations ---


@pytest.mark.parametrize(
    ("seen", "finding", "says"),
    [
        (Seen(coalescing=0.5, issue_rate=0.95), "non-contiguous access", "coalescing 0.50"),
        (Seen(coalescing=0.97, issue_rate=0.5), "instruction-bound", "fuse"),
        (Seen(bank_conflict=31.7), "shared-memory bank conflicts", "31.7"),
        (Seen(gemm_baseline=0.9, clocks_limited="SW power cap"), "below its own tensor throughput", "SW power cap"),
        (Seen(memory_baseline=0.8), "below its own memory bandwidth", "0.80"),
        (Seen(launch_share=0.4), "launch-bound", "40%"),
        (Seen(issue_rate=0.9, bytes_rate=0.3), "compute-bound, bandwidth is free", "0.30"),
    ],
)
def test_each_cause_is_told_with_its_number(seen, finding, says):
    (line,) = explain(seen)
    assert finding in line.finding
    assert says in str(line)


@pytest.mark.parametrize(
    "seen",
    [
        Seen(),
        Seen(coalescing=0.9, issue_rate=0.95),
        Seen(coalescing=0.5),
        Seen(coalescing=0.97, issue_rate=0.7),
        Seen(gemm_baseline=0.96, memory_baseline=1.0),
        Seen(issue_rate=0.9, bytes_rate=0.5),
        Seen(launch_share=0.1, bank_conflict=1.0),
    ],
)
def test_numbers_that_say_nothing_are_not_made_to(seen):
    assert explain(seen) == []


@pytest.mark.parametrize("slower", ["0", "-3", "1e999", "4096"])
def test_a_budget_file_that_makes_no_sense_is_a_fresh_budget(tmp_path, slower):
    file = tmp_path / "b.json"
    file.write_text(f'{{"tokens_s": 0.001, "at_s": 5.0, "slower": {slower}}}')
    assert budget.load(file) == budget.Bucket()
    file.write_text('{"tokens_s": NaN, "at_s": 5.0, "slower": 1}')
    assert budget.load(file) == budget.Bucket()
