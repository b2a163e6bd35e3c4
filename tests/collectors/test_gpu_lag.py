"""The lag of one activity behind another, on series whose lag is known."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.collectors.gpu.lag import MIN_SAMPLES, lag_seconds

STEP = 0.2


def times(n=300, step=STEP):
    return [100 + i * step for i in range(n)]


def bursts(t, period=7.0, delay=0.0):
    """Work that comes and goes: 1 for 40 % of the period, with soft edges."""
    return [1 / (1 + math.exp(-12 * (math.sin(2 * math.pi * (x - delay) / period) - 0.3))) for x in t]


def irregular(seed, t, delay=0.0):
    """A sum of sines of unrelated periods, so that no other lag fits as well."""
    draw = np.random.default_rng(seed)
    periods, phases = draw.uniform(1.5, 20, 6), draw.uniform(0, 6, 6)
    waves = np.sin(2 * np.pi * (np.asarray(t)[:, None] - delay) / periods + phases).mean(axis=1)
    return (0.5 + 0.5 * waves).tolist()


@pytest.mark.parametrize("delay", [0.0, 0.2, 0.3, 0.6, 1.0, -0.4])
def test_compute_that_follows_memory_by_so_much_has_that_lag(delay):
    t = times()
    assert lag_seconds(t, bursts(t, delay=delay), bursts(t)) == pytest.approx(delay, abs=0.06)


@pytest.mark.parametrize("step", [0.1, 0.2, 0.4])
def test_the_lag_is_in_seconds_whatever_the_pace_of_the_samples(step):
    t = times(300, step)
    assert lag_seconds(t, bursts(t, delay=0.8), bursts(t)) == pytest.approx(0.8, abs=step / 2)


def test_of_lags_a_period_apart_the_nearest_to_zero_counts():
    t = times()
    assert lag_seconds(t, bursts(t, 1.4, 0.2), bursts(t, 1.4)) == pytest.approx(0.2, abs=0.1)


def test_series_that_do_not_move_together_have_no_lag():
    draw = np.random.default_rng(1)
    t = times()
    assert lag_seconds(t, draw.random(300).tolist(), draw.random(300).tolist()) is None


@pytest.mark.parametrize("steady", [0.0, 0.5, 1.0])
def test_a_series_that_hardly_moves_has_no_lag(steady):
    t = times()
    assert lag_seconds(t, [steady + 0.001 * (i % 2) for i in range(300)], bursts(t)) is None


def test_too_few_samples_have_no_lag():
    t = times(MIN_SAMPLES - 1)
    assert lag_seconds(t, bursts(t), bursts(t)) is None
    assert lag_seconds([], [], []) is None


def test_only_what_came_after_the_last_gap_is_compared():
    before, after = times(200), [200 + x for x in times(200)]
    t = before + after
    late = bursts(before, delay=-0.6) + bursts(after, delay=0.6)
    early = bursts(t)
    assert lag_seconds(t, late, early) == pytest.approx(0.6, abs=0.06)
    assert (
        lag_seconds(t[: 200 + MIN_SAMPLES - 1], late[: 200 + MIN_SAMPLES - 1], early[: 200 + MIN_SAMPLES - 1]) is None
    )


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.floats(-1.2, 1.2), st.floats(0.2, 1.0), st.floats(0, 0.05))
def test_any_shape_and_any_scale_shifted_by_any_delay_gives_that_delay(seed, delay, scale, noise):
    t = times()
    draw = np.random.default_rng(seed + 1)
    late = (scale * np.asarray(irregular(seed, t, delay)) + noise * draw.standard_normal(len(t))).tolist()
    early = irregular(seed, t)
    if min(np.std(late), np.std(early)) < 0.1:
        return  # waves that cancelled out: noise would decide
    found = lag_seconds(t, late, early)
    assert found is not None
    assert found == pytest.approx(delay, abs=0.12)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=120), st.data())
def test_whatever_comes_it_gives_a_lag_within_reach_or_none(pairs, data):
    steps = data.draw(st.lists(st.sampled_from([0.0, 0.2, 0.21, 5.0]), min_size=len(pairs), max_size=len(pairs)))
    t = np.cumsum(steps).tolist() if steps else []
    found = lag_seconds(t, [a for a, _ in pairs], [b for _, b in pairs])
    assert found is None or abs(found) <= 2.2


def test_swapping_the_two_series_turns_the_sign():
    t = times()
    a, b = irregular(3, t, 0.5), irregular(3, t)
    assert lag_seconds(t, a, b) == pytest.approx(-lag_seconds(t, b, a), abs=0.01)
