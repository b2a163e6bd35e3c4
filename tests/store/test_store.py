"""The store as producers and readers see it."""

from __future__ import annotations

import pytest

from sidecar.hooks import Sink
from sidecar.model import STALE
from sidecar.store import Store


@pytest.fixture
def store():
    return Store(max_series=6, max_series_per_metric=4, min_keep_ms=10_000)


def push(store, t_ms, metric, value, producer="", **labels):
    handle = store.series(metric, labels, producer)
    store.push(handle.block, t_ms, {handle.column: value})
    return handle


def test_the_store_is_a_sink(store):
    sink: Sink = store
    assert sink.series("m", {}) is not None


def test_a_series_has_one_place_however_often_and_by_whom_it_is_asked_for(store):
    first = store.series("m", {"a": "1", "b": "2"}, "here")
    assert store.series("m", {"b": "2", "a": "1"}, "here") == first
    assert store.series("m", {"a": "1", "b": "2"}, "there") == first
    assert store.stats().series == 1


def test_an_empty_label_is_no_label(store):
    assert store.series("m", {"a": "", "b": "2"}) == store.series("m", {"b": "2"})


def test_each_producer_of_a_metric_has_its_own_clock(store):
    push(store, 5000, "m", 1.0, producer="fast", n="1")
    push(store, 1000, "m", 1.0, producer="slow", n="2")
    assert store.stats().rejected_out_of_order == 0
    assert store.sample_times("m", 0, 9999) == [1000, 5000]


def test_sample_times_are_left_open_and_leave_out_slots_that_only_end_series(store):
    for t in (1000, 2000, 3000):
        push(store, t, "m", 1.0)
    push(store, 4000, "m", STALE)
    assert store.sample_times("m", 1000, 4000) == [2000, 3000]
    assert store.sample_times("nothing", 0, 1) == []


def test_series_beyond_a_metrics_limit_are_refused_and_counted(store):
    handles = [store.series("m", {"i": str(i)}) for i in range(7)]
    assert [h is None for h in handles] == [False] * 4 + [True] * 3
    assert store.stats().refused_series == 3
    assert store.series("other", {}) is not None


def test_a_label_that_utf8_cannot_hold_is_refused_and_counted(store):
    assert store.series("m", {"pod": "\ud800"}) is None
    assert store.series("m", {"pod": "é\U0001f600"}) is not None
    assert store.stats().refused_series == 1
    assert store.stats().series == 1


def test_series_beyond_the_total_are_refused_and_leave_nothing_behind(store):
    for i in range(6):
        store.series(f"m{i}", {})
    assert store.series("seventh", {}) is None
    assert "seventh" not in store.metrics()


def test_room_is_made_of_series_that_ended_when_a_limit_is_reached(store):
    for i in range(4):
        push(store, 1000, "m", 1.0, i=str(i))
    push(store, 2000, "m", STALE, i="0")
    assert store.series("m", {"i": "new"}) is None
    push(store, 60_000, "m", 1.0, i="1")
    assert store.series("m", {"i": "new"}) is not None
    assert store.stats().reused_series == 1


def test_churn_of_series_does_not_grow_the_store():
    store = Store(min_keep_ms=1000)
    for i in range(600):
        t = i * 1000
        push(store, t, "m", 1.0, run=str(i))
        if i:
            push(store, t, "m", STALE, run=str(i - 1))
        if i == 300:
            half_way = store.stats().bytes
    assert store.stats().bytes <= half_way
    assert store.stats().series < 60
    assert store.stats().rejected_duplicate == 0


def test_a_block_left_by_one_producer_serves_the_next(store):
    for i in range(50):
        t = i * 100_000
        push(store, t, "m", 1.0, producer=f"pod-{i}", pod=str(i))
        push(store, t + 1, "m", STALE, producer=f"pod-{i}", pod=str(i))
    assert store.stats().blocks <= 2


def test_reserve_makes_rings_longer_and_keeps_what_they_hold(store):
    handle = store.series("m", {})
    for i in range(30):
        store.push(handle.block, i * 1000, {handle.column: float(i)})
    store.reserve({"m": 120_000})
    for i in range(30, 150):
        store.push(handle.block, i * 1000, {handle.column: float(i)})
    times = store.sample_times("m", -1, 1 << 40)
    assert times[0] <= 149_000 - 120_000
    assert len(times) == (times[-1] - times[0]) // 1000 + 1


def test_an_unnamed_reservation_is_for_every_metric(store):
    store.reserve({"": 300_000})
    handle = store.series("later", {})
    for i in range(400):
        store.push(handle.block, i * 1000, {handle.column: 0.0})
    assert store.sample_times("later", -1, 1 << 40)[0] <= 100_000


def test_nothing_is_kept_shorter_than_the_floor(store):
    store.reserve({"m": 1})
    handle = store.series("m", {})
    for i in range(100):
        store.push(handle.block, i * 1000, {handle.column: 0.0})
    assert store.sample_times("m", -1, 1 << 40)[0] <= 89_000


def test_every_rejection_is_counted_under_its_own_name(store):
    handle = push(store, 2000, "m", 1.0)
    store.push(handle.block, 1000, {handle.column: 1.0})
    store.push(handle.block, 2000, {handle.column: 7.0})
    store.push(handle.block, 3000, {handle.column: 1.0, 99: 1.0})
    stats = store.stats()
    assert (stats.samples, stats.rejected_out_of_order, stats.rejected_duplicate, stats.rejected_unknown) == (
        2,
        1,
        1,
        1,
    )


def test_labels_and_metrics_list_what_there_is(store):
    push(store, 1, "b", 1.0, x="1")
    push(store, 1, "a", 1.0)
    assert store.metrics() == ["b", "a"]
    assert store.labels("b") == [(("__name__", "b"), ("x", "1"))]


def test_a_series_costs_eight_bytes_a_slot_and_little_else():
    store = Store(min_keep_ms=300_000)
    handles = [store.series("m", {"i": str(i)}) for i in range(100)]
    for k in range(700):
        store.push(handles[0].block, k * 1000, {h.column: 1.0 for h in handles})
    assert store.bytes_for(300_000) == 8 * 310
    assert store.stats().bytes / 100 < 1.4 * store.bytes_for(300_000)
