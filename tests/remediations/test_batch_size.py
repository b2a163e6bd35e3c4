"""The batch size remediation: its four strategies, its bounds, and what keeps the global batch."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError

from remediations import strategies
from remediations.batch_size import BatchSize, Params
from remediations.batches import Room, divisors
from sidecar.model import Change, Skip

FOLLOW = {"global_batch": "follow"}
SCHEDULE = {"strategy": "warmup-decay", "start": 8, "peak": 64, "warmup_steps": 100, "total_steps": 1000, **FOLLOW}


def follow(size):
    """What changes the micro batch alone says of both knobs."""
    return {"micro_batch_size": size, "accumulation_steps": 8}


@pytest.fixture
def plan(situation):
    def make(params, micro=32, accumulation=8, lr=1.0, who=situation.WHO, **series):
        knobs = {"micro_batch_size": micro, "accumulation_steps": accumulation, "lr_factor": lr}
        seen = situation.view(who, series=series, **{k: v for k, v in knobs.items() if v is not None})
        return BatchSize().plan(situation.ALERT, seen, Params(**params))

    return make


@pytest.fixture
def busy(situation):
    """GPU use at each sample, ten steps apart."""

    def make(*use):
        steps, values = situation.series(use)
        return {"steps": steps, "gpu_use": values}

    return make


@pytest.fixture
def norms(situation):
    def make(*values):
        steps, points = situation.series(values)
        return {"steps": steps, "gradient_norm": points}

    return make


# --- utilisation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "larger"),
    [(1, 32), (20, 32), (26, 48), (32, 48), (48, 64), (64, 80), (80, 112), (112, 144), (128, 160), (512, 640)],
)
def test_growing_is_a_quarter_more_rounded_up_to_a_multiple_of_16_and_at_least_32(batch, larger):
    assert strategies.grown(batch) == larger


@given(st.integers(1, 10_000))
def test_a_grown_batch_is_a_multiple_of_16_a_quarter_larger_and_never_a_whole_multiple_more(batch):
    size = strategies.grown(batch)
    assert size % 16 == 0
    assert size >= max(32, 1.25 * batch)
    assert size < max(33, 1.25 * batch + 16)


@given(st.integers(1, 10_000))
def test_the_way_back_leads_to_a_smaller_size_that_grows_to_this_one_or_beyond(batch):
    size = strategies.before_growth(batch)
    if batch <= 32:
        assert size == batch
    else:
        assert 32 <= size < batch <= strategies.grown(size)


def test_three_windows_of_a_hundred_steps_above_85_percent_make_it_grow(plan, busy):
    change = plan({"strategy": "utilisation", **FOLLOW}, **busy(*[0.86] * 31))
    assert change.values == follow(48)
    assert "86%, 86%, 86%" in change.why


def test_exactly_85_percent_is_enough(plan, busy):
    assert isinstance(plan({"strategy": "utilisation", **FOLLOW}, **busy(*[0.85] * 31)), Change)


@pytest.mark.parametrize("low_at", [2, 12, 22])
def test_one_window_below_85_percent_leaves_it_as_it_is(plan, busy, low_at):
    use = [0.9] * 31
    use[low_at : low_at + 8] = [0.5] * 8
    skip = plan({"strategy": "utilisation", **FOLLOW}, **busy(*use))
    assert skip.reason == "steady"


def test_fewer_steps_than_three_windows_are_too_few(plan, busy):
    assert plan({"strategy": "utilisation", **FOLLOW}, **busy(*[0.9] * 30)).reason == "thin_history"


def test_without_gpu_activity_nothing_grows(plan, situation):
    steps, _ = situation.series([0] * 100)
    assert plan({"strategy": "utilisation", **FOLLOW}, steps=steps).reason == "thin_history"
    assert plan({"strategy": "utilisation", **FOLLOW}).reason == "thin_history"


def test_a_window_without_any_sample_is_unknown_and_not_idle(plan, busy):
    seen = busy(*[0.9] * 31)
    seen["gpu_use"] = [p for n, p in enumerate(seen["gpu_use"]) if not 10 < n <= 20]
    assert plan({"strategy": "utilisation", **FOLLOW}, **seen).reason == "thin_history"


def test_steps_of_a_run_that_has_ended_do_not_count(plan, busy):
    seen = busy(*[0.9] * 45)
    seen["steps"] = [(t, s if n < 20 else s - 200) for n, (t, s) in enumerate(seen["steps"])]
    assert plan({"strategy": "utilisation", **FOLLOW}, **seen).reason == "thin_history"


def test_the_size_grows_to_the_trainers_bound_and_then_no_further(plan, busy):
    seen = busy(*[0.9] * 31)
    assert plan({"strategy": "utilisation", **FOLLOW}, micro=(100, 1, 120), **seen).values == follow(112)
    assert plan({"strategy": "utilisation", **FOLLOW}, micro=(112, 1, 120), **seen).reason == "at_limit"


def test_a_loss_that_is_not_finite_takes_the_last_step_back_and_a_tenth_off_the_learning_rate(plan, busy):
    seen = {**busy(*[0.9] * 31), "nonfinite": [(29_000, 0.0), (30_000, 1.0)]}
    change = plan({"strategy": "utilisation", **FOLLOW}, micro=64, lr=0.5, **seen)
    assert change.values == {**follow(48), "lr_factor": pytest.approx(0.45)}


def test_at_the_smallest_size_only_the_learning_rate_is_cut(plan):
    change = plan({"strategy": "utilisation", **FOLLOW}, micro=32, nonfinite=[(0, 2.0)])
    assert change.values == {"lr_factor": pytest.approx(0.9)}


def test_the_learning_rate_is_cut_to_its_bound_at_most(plan):
    params = {"strategy": "utilisation", "lr_cut": 0.5, **FOLLOW}
    assert plan(params, micro=32, lr=(0.3, 0.2, 1), nonfinite=[(0, 1.0)]).values == {"lr_factor": 0.2}
    assert plan(params, micro=32, lr=(0.2, 0.2, 1), nonfinite=[(0, 1.0)]).reason == "at_limit"


def test_without_the_knob_of_the_learning_rate_the_way_back_is_refused(plan):
    assert plan({"strategy": "utilisation", **FOLLOW}, lr=None, nonfinite=[(0, 1.0)]).reason == "knob_missing"


# --- stability --------------------------------------------------------------------------------------------------------


def test_a_high_gradient_variance_shrinks_the_batch(plan, norms):
    change = plan({"strategy": "stability", **FOLLOW}, **norms(*[1.0, 9.0] * 10))
    assert change.values == follow(16)
    assert "variance" in change.why


def test_a_low_gradient_variance_lets_it_grow(plan, norms):
    assert plan({"strategy": "stability", **FOLLOW}, **norms(*[5.0, 5.1] * 10)).values == follow(64)


def test_between_the_two_it_stays(plan, norms):
    assert plan({"strategy": "stability", **FOLLOW}, **norms(*[4.0, 6.5] * 10)).reason == "steady"


@pytest.mark.parametrize(("micro", "values"), [(4, [1.0, 9.0]), (64, [5.0, 5.1])])
def test_it_stays_from_4_to_64(plan, norms, micro, values):
    assert plan({"strategy": "stability", **FOLLOW}, micro=micro, **norms(*values * 10)).reason == "at_limit"


def test_what_stood_out_before_the_window_of_128_steps_is_forgotten(plan, norms):
    wild, calm = [1.0, 9.0] * 10, [5.0, 5.1] * 8
    assert plan({"strategy": "stability", "window_steps": 150, **FOLLOW}, **norms(*wild, *calm)).values == follow(64)


@pytest.mark.parametrize("values", [[5.0] * 10, [5.0] * 19 + [math.inf], [5.0] * 19 + [math.nan]])
def test_too_few_gradients_or_one_that_overflowed_say_nothing(plan, norms, values):
    assert plan({"strategy": "stability", **FOLLOW}, **norms(*values)).reason == "thin_history"


def test_where_a_window_holds_few_samples_as_many_more_steps_are_taken(situation, plan):
    steps, values = situation.series([1.0, 9.0] * 10, step=1000)
    assert isinstance(plan({"strategy": "stability", **FOLLOW}, steps=steps, gradient_norm=values), Change)


def test_gradients_of_zero_have_no_relative_variance(plan, norms):
    assert plan({"strategy": "stability", **FOLLOW}, **norms(*[0.0] * 20)).reason == "steady"


# --- variance-formula -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("variance", "size"), [(0.1, 256), (0.0, 243), (1e9, 384), (0.6, 315)])
def test_the_formula_of_the_requirements(variance, size):
    assert strategies.from_variance(variance) == size
    assert abs(size - 256 * (1 + 0.5 * math.tanh(variance - 0.1))) <= 0.5


@given(st.floats(0, 1e300))
def test_the_formula_stays_within_1_and_512_and_grows_with_the_variance(variance):
    assert 1 <= strategies.from_variance(variance) <= 512
    assert strategies.from_variance(variance) <= strategies.from_variance(variance * 2)


def test_the_formula_sets_what_it_comes_to(plan, norms):
    change = plan({"strategy": "variance-formula", **FOLLOW}, micro=64, **norms(*[5.0] * 20))
    assert change.values == follow(243)


# --- warmup-decay -----------------------------------------------------------------------------------------------------


def at(step):
    return {"steps": [(0, float(step))]}


@pytest.mark.parametrize(
    ("step", "size"),
    [(0, 8), (50, 32), (100, 64), (550, 40), (999, 8), (1000, 8), (1001, 8), (10**9, 8)],
)
def test_up_in_a_line_down_with_the_square_root_and_divisible_by_the_accumulation(plan, step, size):
    answer = plan(SCHEDULE, micro=16, **at(step))
    assert answer.values == follow(size)


@given(
    step=st.floats(-10, 1e12, allow_nan=False),
    start=st.integers(1, 512),
    more=st.integers(0, 4096),
    warmup=st.integers(0, 5000),
    rest=st.integers(1, 100_000),
)
def test_the_schedule_never_leaves_its_range_and_is_safe_past_its_end(step, start, more, warmup, rest):
    peak = start + more
    size = strategies.scheduled(step, start, peak, warmup, warmup + rest)
    assert 0 <= size <= peak
    if step <= warmup and warmup:
        assert size >= start - 1e-9
    if step >= warmup + rest:
        assert size == 0


def test_without_a_step_there_is_no_schedule(plan):
    assert plan(SCHEDULE).reason == "thin_history"


# --- the global batch -------------------------------------------------------------------------------------------------


def test_the_accumulation_makes_up_for_the_micro_batch(plan, norms):
    change = plan({"strategy": "stability"}, micro=32, accumulation=4, **norms(*[1.0, 9.0] * 10))
    assert change.values == {"micro_batch_size": 16, "accumulation_steps": 8}


def test_where_a_quarter_more_does_not_divide_the_global_batch_the_next_size_that_does_is_taken(plan, busy):
    change = plan({"strategy": "utilisation"}, micro=32, accumulation=8, **busy(*[0.9] * 31))
    assert change.values == {"micro_batch_size": 64, "accumulation_steps": 4}


def test_where_no_size_divides_it_nothing_is_done(plan, busy):
    skip = plan({"strategy": "utilisation"}, micro=32, accumulation=1, **busy(*[0.9] * 31))
    assert skip.reason == "at_limit"
    skip = plan({"strategy": "utilisation", "maximum": 60}, micro=32, accumulation=8, **busy(*[0.9] * 31))
    assert skip.reason == "no_fit"


def test_without_the_knob_of_the_accumulation_the_global_batch_cannot_be_kept(plan, busy):
    assert plan({"strategy": "utilisation"}, accumulation=None, **busy(*[0.9] * 31)).reason == "knob_missing"
    assert isinstance(plan({"strategy": "utilisation", **FOLLOW}, accumulation=None, **busy(*[0.9] * 31)), Change)


@given(st.integers(1, 5000))
def test_divisors_are_all_there_and_in_order(whole):
    assert divisors(whole) == [d for d in range(1, whole + 1) if whole % d == 0]


@given(
    now=st.integers(1, 300),
    target=st.integers(1, 600),
    low=st.integers(1, 300),
    high=st.integers(1, 600),
    multiple=st.integers(1, 32),
    accumulation=st.none() | st.integers(1, 40),
)
def test_a_size_is_within_bounds_a_multiple_divides_the_whole_and_lies_on_the_wishs_side(
    now, target, low, high, multiple, accumulation
):
    room = Room(low, high, multiple, None if accumulation is None else now * accumulation)
    size = room.towards(target, now)
    fits = [
        s for s in range(low, high + 1) if s % multiple == 0 and (accumulation is None or now * accumulation % s == 0)
    ]
    side = [s for s in fits if (s > now if target > now else s < now)] if target != now else []
    assert (size is None) == (not side)
    if size is not None:
        assert size in side
        reached = [s for s in side if (s >= target if target > now else s <= target)]
        assert not reached or size == min(reached, key=lambda s: abs(s - target))


@given(
    strategy=st.sampled_from(["utilisation", "stability", "variance-formula", "warmup-decay"]),
    micro=st.integers(1, 600),
    accumulation=st.integers(1, 64),
    keep=st.booleans(),
    low=st.none() | st.integers(1, 100),
    high=st.none() | st.integers(1, 600),
    multiple=st.none() | st.integers(1, 48),
    bounds=st.tuples(st.integers(1, 32), st.integers(1, 800)),
    values=st.lists(st.floats(0, 100) | st.just(math.inf), min_size=0, max_size=60),
    use=st.floats(0.5, 1),
    nonfinite=st.booleans(),
)
def test_no_plan_leaves_the_bounds_or_breaks_what_it_promises(
    situation, strategy, micro, accumulation, keep, low, high, multiple, bounds, values, use, nonfinite
):
    assume(low is None or high is None or low <= high)
    params = Params(
        strategy=strategy,
        global_batch="keep" if keep else "follow",
        minimum=low,
        maximum=high,
        multiple=multiple,
        **({"start": 4, "peak": 128, "warmup_steps": 50, "total_steps": 400} if strategy == "warmup-decay" else {}),
    )
    steps, norms = situation.series(values)
    series = {"steps": steps, "gradient_norm": norms, "gpu_use": [(t, use) for t, _ in steps]}
    if nonfinite:
        series["nonfinite"] = [(0, 1.0)]
    least, most = sorted(bounds)
    seen = situation.view(
        series=series,
        micro_batch_size=(micro, least, max(most, least)),
        accumulation_steps=(accumulation, 1, 64),
        lr_factor=(1.0, 0.95, 1.0),
    )
    answer = BatchSize().plan(situation.ALERT, seen, params)
    assert answer == BatchSize().plan(situation.ALERT, seen, params)
    if isinstance(answer, Skip):
        assert answer.reason in ("steady", "thin_history", "at_limit", "no_fit")
        return
    assert set(answer.values) <= set(BatchSize.knobs)
    for name, value in answer.values.items():
        knob = seen.knobs[name]
        assert knob.minimum <= value <= knob.maximum
        assert value != knob.value or name == "accumulation_steps"
    size = answer.values.get("micro_batch_size")
    if size is None:
        return
    assert size >= (low or 1)
    assert high is None or size <= high
    assert size % (multiple or (16 if strategy == "utilisation" else 1)) == 0
    if strategy == "warmup-decay" and multiple is None:
        assert size % accumulation == 0
    if keep:
        assert size * answer.values["accumulation_steps"] == micro * accumulation
    else:
        assert answer.values["accumulation_steps"] == accumulation


# --- parameters -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "complaint"),
    [
        ({}, "Field required"),
        ({"strategy": "bigger"}, "Input should be"),
        ({"strategy": "stability", "peak": 3}, "peak: not for the strategy stability"),
        ({"strategy": "warmup-decay", "peak": 64}, "needs start, warmup_steps, total_steps"),
        ({**SCHEDULE, "warmup_steps": 1000}, "the warm-up must end before the run"),
        ({**SCHEDULE, "start": 65}, "start must not exceed peak"),
        ({"strategy": "stability", "low_variance": 0.5}, "low_variance must be below"),
        ({"strategy": "stability", "minimum": 9, "maximum": 8}, "minimum must not exceed"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(params, complaint):
    with pytest.raises(ValidationError, match=complaint):
        Params(**params)


def test_nobody_there_and_nothing_to_change_are_reasons_of_their_own(plan, situation):
    assert plan(SCHEDULE, who=None).reason == "no_trainer"
    assert plan(SCHEDULE, micro=None).reason == "knob_missing"
