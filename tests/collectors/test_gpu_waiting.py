"""Busy but not computing, and the samples made of readings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.collectors.gpu.reading import Gpus, Reading
from sidecar.collectors.gpu.waiting import Moment, Waiting, waits
from sidecar.model import Availability, Status

SPINNING = {"busy": 1.0, "sm": 0.15, "tensor": 0.0, "dram": 0.01, "link": 1e6}


def test_a_kernel_that_spins_on_a_few_sms_waits():
    assert waits(Moment(0.0, **SPINNING)) is True


@pytest.mark.parametrize(
    "change",
    [
        {"busy": 0.5},  # nothing runs half of the time: waiting for data, or idle
        {"sm": 0.9},  # it computes
        {"tensor": 0.3},
        {"link": 4e10},  # the collective moves data
    ],
)
def test_anything_that_is_at_work_speaks_against_it(change):
    assert waits(Moment(0.0, **{**SPINNING, **change})) is False


@pytest.mark.parametrize("unknown", ["busy", "sm"])
def test_without_busyness_or_sm_activity_nothing_can_be_said(unknown):
    assert waits(Moment(0.0, **{**SPINNING, unknown: None})) is None


def test_without_tensor_and_link_activity_the_other_two_decide():
    assert waits(Moment(0.0, busy=1.0, sm=0.1)) is True


def ratio_of(moments, window_s=10.0):
    waiting = Waiting(window_s)
    for moment in moments:
        waiting.add(moment)
    return waiting.ratio()


def test_the_ratio_counts_the_moments_that_can_tell():
    waiting, working, unknown = Moment(0, **SPINNING), Moment(0, **{**SPINNING, "sm": 0.8}), Moment(0, busy=1.0)
    assert ratio_of([waiting, working, unknown, waiting, waiting]) == 0.75
    assert ratio_of([unknown]) is None
    assert ratio_of([]) is None


ratio = st.none() | st.floats(0, 1)


def moments(times):
    fields = {"busy": ratio, "sm": ratio, "tensor": ratio, "dram": ratio, "link": st.none() | st.floats(0, 1e12)}
    some = st.one_of(st.builds(Moment, times, **fields), st.builds(lambda t: Moment(t, **SPINNING), times))
    return st.lists(some).map(lambda found: sorted(found, key=lambda m: m.t_s))


@given(moments(st.just(0.0)))
def test_it_is_a_ratio_and_more_work_never_raises_it(found):
    before = ratio_of(found)
    assert before is None or 0 <= before <= 1
    harder = [Moment(m.t_s, m.busy, None if m.sm is None else 1.0, m.tensor, m.dram, m.link) for m in found]
    after = ratio_of(harder)
    assert (after is None) == (before is None)
    assert after in (None, 0)


@given(moments(st.integers(0, 50).map(float)))
def test_it_looks_at_the_newest_moments_only(found):
    newest = [waits(m) for m in found if m.t_s > found[-1].t_s - 10]
    known = [w for w in newest if w is not None]
    assert ratio_of(found) == (sum(known) / len(known) if known else None)


# --- readings -------------------------------------------------------------------------------------------------------


def reading(gpu="GPU-a", at=0.0, n=5, up=True, **moment):
    own = [Moment(at + i * 0.2, **{**SPINNING, **moment}) for i in range(n)]
    values = {("memory_used_bytes", ()): 30.0, ("memory_free_bytes", ()): 10.0}
    steady = {("clock_hertz", (("clock", "sm"),)): 2e9}
    return Reading(gpu, "0", values, steady, own, {"name": "H100", "sharing": "none"}, up=up)


def everything(gpus, *readings):
    return [*gpus.quick(readings), *gpus.steady(readings)]


def named(samples):
    return {(s.metric.removeprefix("spikewatch_gpu_"), dict(s.labels)["gpu"]): s for s in samples}


def test_a_reading_becomes_samples_with_the_gpus_uuid_and_number():
    found = named(everything(Gpus(), reading()))
    assert found["memory_used_ratio", "GPU-a"].value == 0.75
    assert found["clock_hertz", "GPU-a"].labels == (("clock", "sm"), ("gpu", "GPU-a"), ("index", "0"))
    assert found["busy_not_computing_ratio", "GPU-a"].value == 1
    assert found["up", "GPU-a"].value == 1
    assert dict(found["info", "GPU-a"].labels)["name"] == "H100"


def test_the_ratio_looks_back_ten_seconds_over_several_readings():
    gpus = Gpus()
    seen = []
    for second in range(15):
        samples = named(everything(gpus, reading(at=second, sm=0.9 if second < 5 else 0.1)))
        seen.append(samples["busy_not_computing_ratio", "GPU-a"].value)
    assert seen[4] == 0
    assert seen[9] == pytest.approx(0.5, abs=0.03)
    assert seen[14] == 1


def test_a_gpu_that_is_down_or_gone_leaves_no_past_behind():
    gpus = Gpus()
    everything(gpus, reading(sm=0.9))
    found = named(everything(gpus, reading(n=0, up=False)))
    assert found["up", "GPU-a"].value == 0
    assert ("busy_not_computing_ratio", "GPU-a") not in found
    assert named(everything(gpus, reading(at=1, n=1)))["busy_not_computing_ratio", "GPU-a"].value == 1
    everything(gpus)
    assert not gpus._gpus
    assert not gpus._series


def test_labels_of_a_gpu_that_was_lost_and_then_taken_away_are_forgotten_too():
    gpus = Gpus()
    for number in range(20):
        everything(gpus, reading(gpu=f"MIG-{number}", n=0, up=False), reading())
    assert set(gpus._series) == {"MIG-19", "GPU-a"}


def test_memory_stays_bounded_however_long_it_runs():
    gpus = Gpus()
    for second in range(300):
        everything(gpus, reading(at=second, n=20))
    assert len(gpus._gpus["GPU-a"].moments) <= 1200


def test_what_cannot_be_had_is_told_beside_the_gpu():
    one = Reading("GPU-a", "0", {}, capabilities={"gpm": Status(Availability.DENIED, "no_permission")})
    (sample,) = [s for s in everything(Gpus(), one) if s.metric == "spikewatch_gpu_capability"]
    assert dict(sample.labels) == {
        **{"gpu": "GPU-a", "index": "0"},
        **{"capability": "gpm", "state": "denied", "reason": "no_permission"},
    }
