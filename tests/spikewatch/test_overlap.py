"""Shared time of copies and kernels, against counting tick by tick."""

import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spikewatch.overlap import merged, of_profile, overlap

intervals = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=12)


def ticks(spans):
    return {t for begin, end in spans for t in range(begin, end)}


@given(intervals, intervals)
def test_it_is_the_shared_time_over_the_longer_of_the_two(copies, kernels):
    a, b = ticks(copies), ticks(kernels)
    found = overlap(copies, kernels)
    if a and b:
        assert found == pytest.approx(len(a & b) / max(len(a), len(b)))
    else:
        assert math.isnan(found)


@given(intervals)
def test_merged_intervals_are_in_order_apart_and_cover_the_same_time(spans):
    found = merged(spans)
    assert all(before[1] < after[0] for before, after in zip(found, found[1:], strict=False))
    assert ticks(found) == ticks(spans)


def test_one_after_the_other_is_zero_and_at_once_is_one():
    assert overlap([(0, 5)], [(5, 10)]) == 0
    assert overlap([(0, 5)], [(0, 5)]) == 1


def event(name, begin, end, device="CUDA", annotation=False):
    kind = SimpleNamespace(name=device)
    span = SimpleNamespace(start=begin, end=end)
    return SimpleNamespace(name=name, device_type=kind, time_range=span, is_user_annotation=annotation)


def test_a_profile_is_read_by_what_ran_on_the_device():
    events = [
        event("Memcpy HtoD (Pinned -> Device)", 0, 10),
        event("ampere_sgemm_128x64_tn", 5, 25),
        event("Memset (Device)", 0, 100),
        event("ProfilerStep#3", 0, 100, annotation=True),
        event("aten::copy_", 0, 100, device="CPU"),
    ]
    assert of_profile(events) == 5 / 20


@pytest.mark.torch
def test_a_real_profile_without_a_device_has_no_overlap():
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as found:
        torch.ones(8).sum()
    assert math.isnan(of_profile(found.events()))
