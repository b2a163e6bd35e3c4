"""What two windows of increments say, and how often it is wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.responses.statistics import Goal, Verdict, Window, judge, lacks, student_quantile


def window(values, *, start_ms=0, every_ms=1000, steps=None):
    samples = [(start_ms + (i + 1) * every_ms, float(v)) for i, v in enumerate(values)]
    return Window(start_ms, start_ms + len(samples) * every_ms, samples, steps)


def verdict_of(before, after, *, goal=Goal.INCREASE, by=0.05, min_steps=20, min_samples=8):
    return judge(before, after, goal=goal, by=by, min_steps=min_steps, min_samples=min_samples)


def noise(rng, runs, length, rho, cv):
    """AR(1) around 1 with that marginal coefficient of variation; one row a run."""
    steps = rng.standard_normal((length + 100, runs))
    x, rows = steps[0], []
    for i in range(1, length + 100):
        x = rho * x + math.sqrt(1 - rho * rho) * steps[i]
        rows.append(x)
    return 1 + cv * np.array(rows[-length:]).T


def share_helped(rho, seconds, gain, runs, by=0.05):
    rng = np.random.default_rng(20240601)
    before, after = (100 * noise(rng, runs, seconds, rho, 0.05) for _ in range(2))
    verdicts = [
        verdict_of(window(b), window(a * (1 + gain)), by=by).verdict for b, a in zip(before, after, strict=True)
    ]
    return verdicts.count(Verdict.HELPED) / runs


@pytest.mark.parametrize("rho", [0.0, 0.6, 0.9])
@pytest.mark.parametrize("seconds", [180, 60])
def test_nothing_done_is_called_helped_in_at_most_two_percent(rho, seconds):
    assert share_helped(rho, seconds, gain=0.0, runs=400) <= 0.02


@pytest.mark.parametrize("rho", [0.0, 0.6, 0.9])
def test_ten_percent_more_is_found_in_at_least_ninety_percent(rho):
    assert share_helped(rho, 180, gain=0.10, runs=400) >= 0.90


def test_half_as_much_again_is_found_in_a_minute_of_calm_data():
    assert share_helped(0.6, 60, gain=0.5, runs=100) == 1.0


def lumps(rng, step_s, seconds, start_ms=0):
    """A trainer with steps of about `step_s`, sampled each second: samples per second, nearly always 0."""
    ends = np.cumsum(step_s * (1 + 0.05 * rng.standard_normal(3 * seconds))) - rng.uniform(0, step_s)
    per_second, _ = np.histogram(ends, bins=np.arange(seconds + 1))
    return window(32.0 * per_second, start_ms=start_ms, steps=float(per_second.sum()))


@pytest.mark.parametrize("step_s", [40, 3, 1.4])
def test_a_doubled_pace_of_slow_steps_is_seen_and_a_steady_one_is_not_called_better(step_s):
    rng = np.random.default_rng(7)
    seconds = 900 if step_s == 40 else 180
    steady = [verdict_of(lumps(rng, step_s, seconds), lumps(rng, step_s, seconds)) for _ in range(50)]
    double = [verdict_of(lumps(rng, step_s, seconds), lumps(rng, step_s / 2, seconds)) for _ in range(50)]
    assert sum(j.verdict is Verdict.HELPED for j in steady) <= 1
    assert sum(j.verdict is Verdict.HELPED for j in double) >= 47
    assert np.mean([j.estimate.gain for j in double]) == pytest.approx(1.0, abs=0.05)


def test_steps_of_forty_seconds_are_judged_by_bins_and_not_by_zeros():
    rng = np.random.default_rng(3)
    judgement = verdict_of(lumps(rng, 40, 900), lumps(rng, 40, 900))
    assert judgement.estimate.baseline.samples == 900
    assert 8 <= judgement.estimate.baseline.bins <= 14
    assert judgement.estimate.error < 0.15  # one of 900 samples of which 98 % are zero would be three times that


def test_a_stall_at_the_end_of_the_window_counts():
    judgement = verdict_of(window([100.0] * 180, steps=180), window([100.0] * 90 + [0.0] * 90, steps=90))
    assert judgement.verdict is Verdict.DID_NOT_HELP
    assert judgement.estimate.gain == pytest.approx(-0.5, abs=0.02)


def test_less_than_asked_for_did_not_help_however_sure_it_is():
    rng = np.random.default_rng(1)
    before, after = (window(100 * noise(rng, 1, 180, 0, 0.01)[0] * k) for k in (1.0, 1.03))
    judgement = verdict_of(before, after)
    assert (judgement.verdict, judgement.reason) == (Verdict.DID_NOT_HELP, "gain_too_small")
    assert judgement.estimate.lower > 0.02


def test_a_gain_that_noise_could_explain_is_inconclusive():
    rng = np.random.default_rng(2)
    before, after = (window(100 * np.exp(rng.normal(m, 0.8, 60))) for m in (0, 0.25))
    judgement = verdict_of(before, after)
    assert (judgement.verdict, judgement.reason) == (Verdict.INCONCLUSIVE, "cannot_be_told_from_noise")
    assert judgement.estimate.gain > 0.05 > 0 > judgement.estimate.lower


def test_a_decrease_is_a_gain_where_that_is_the_goal():
    rng = np.random.default_rng(4)
    slow, fast = (window(k * noise(rng, 1, 60, 0, 0.02)[0]) for k in (2.0, 1.0))
    helped = verdict_of(slow, fast, goal=Goal.DECREASE)
    assert helped.verdict is Verdict.HELPED
    assert helped.estimate.gain == pytest.approx(0.5, abs=0.02)
    assert helped.estimate.speedup == pytest.approx(1.0, abs=0.05)
    assert verdict_of(fast, slow, goal=Goal.DECREASE).verdict is Verdict.DID_NOT_HELP


def test_three_events_that_do_not_come_again_prove_nothing():
    rare = [1.0 if i in (20, 90, 150) else 0.0 for i in range(180)]
    judgement = verdict_of(window(rare), window([0.0] * 180), goal=Goal.DECREASE)
    assert judgement.verdict is Verdict.INCONCLUSIVE


STEADY = [100.0, 101.0, 99.0, 100.5] * 15


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (window([]), window(STEADY), "too_few_samples_in_baseline"),
        (window(STEADY), window([]), "too_few_samples_in_window"),
        (window(STEADY), window(STEADY[:7]), "too_few_samples_in_window"),
        (window(STEADY), window([math.nan] * 60), "too_few_samples_in_window"),
        (window(STEADY), window([100.0] * 20 + [math.nan] * 40), "missing_data_in_window"),
        (window(STEADY, steps=60), window(STEADY, steps=19), "too_few_steps_in_window"),
        (window(STEADY, steps=0), window(STEADY, steps=60), "too_few_steps_in_baseline"),
        (window([0.0] * 60), window(STEADY), "baseline_not_positive"),
        (window([-1.0] * 60), window(STEADY), "baseline_not_positive"),
        (window(STEADY), window([-1.0] * 60), "negative_value"),
    ],
)
def test_too_little_to_judge_by_is_inconclusive_and_says_which(before, after, reason):
    judgement = verdict_of(before, after)
    assert (judgement.verdict, judgement.reason) == (Verdict.INCONCLUSIVE, reason)
    assert judgement.estimate is None


def test_a_few_missing_samples_do_not_spoil_a_window():
    holes = [math.nan if i % 10 == 5 else v for i, v in enumerate(STEADY)]
    assert verdict_of(window(STEADY), window([v * 1.5 for v in holes])).verdict is Verdict.HELPED


def test_samples_outside_the_window_do_not_count():
    outside = Window(10_000, 40_000, [(t * 1000, 100.0 if 10 < t <= 40 else 1e9) for t in range(1, 60)])
    assert verdict_of(window(STEADY), outside).estimate.after.mean == pytest.approx(100.0)


def test_a_thin_or_worthless_baseline_is_known_beforehand():
    assert lacks(window(STEADY), min_steps=20, min_samples=8) is None
    assert lacks(window(STEADY[:3]), min_steps=20, min_samples=8) == "too_few_samples"
    assert lacks(window(STEADY, steps=3), min_steps=20, min_samples=8) == "too_few_steps"
    assert lacks(window([0.0] * 30), min_steps=20, min_samples=8) == "not_positive"


@pytest.mark.parametrize(
    ("degrees", "table"), [(1, 31.821), (2, 6.965), (3, 4.541), (5, 3.365), (10, 2.764), (30, 2.457), (120, 2.358)]
)
def test_students_quantile_agrees_with_the_printed_tables(degrees, table):
    assert student_quantile(0.99, degrees) == pytest.approx(table, abs=0.0006)


finite = st.floats(min_value=0, max_value=1e9) | st.just(0.0) | st.sampled_from([math.nan, math.inf])
series = st.lists(finite, max_size=60)


@given(series, series, st.sampled_from(Goal), st.none() | st.integers(0, 100))
def test_helped_always_means_the_wanted_gain_and_a_bound_above_zero_over_enough_data(before, after, goal, steps):
    judgement = verdict_of(window(before), window(after, steps=steps), goal=goal)
    if judgement.verdict is Verdict.HELPED:
        estimate = judgement.estimate
        assert estimate.gain >= 0.05
        assert 0 < estimate.lower <= estimate.gain
        assert min(estimate.baseline.bins, estimate.after.bins) >= 8
        assert steps is None or steps >= 20


@given(series, series, st.floats(1e-3, 1e3), st.sampled_from(Goal))
def test_the_unit_of_the_expression_does_not_matter(before, after, factor, goal):
    plain = verdict_of(window(before), window(after), goal=goal)
    scaled = verdict_of(window([v * factor for v in before]), window([v * factor for v in after]), goal=goal)
    if plain.estimate is None:
        assert plain.reason == scaled.reason
    else:
        assert scaled.estimate.gain == pytest.approx(plain.estimate.gain, rel=1e-6, abs=1e-9)
