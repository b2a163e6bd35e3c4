"""Selections and tracks: how series of a block become positions, and a window's slots become first and last samples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.model import STALE
from sidecar.promql.incremental.track import Track
from sidecar.promql.parse import parse
from sidecar.promql.selection import Selection
from sidecar.store import Store, cells


def selection(store, text):
    return Selection.of(store, parse(text))


def names(frame):
    return [dict(labels).get("n") for labels in frame.labels]


def test_the_frame_stays_the_same_object_while_no_series_is_made():
    store = Store()
    handle = store.series("m", {"n": "1"})
    picked = selection(store, "m")
    frame = picked.refresh()
    store.push(handle.block, 1000, {handle.column: 1.0})
    store.series("other", {})
    assert picked.refresh() is frame
    store.series("m", {"n": "2"})
    assert names(picked.refresh()) == ["1", "2"]


def test_only_matching_series_have_a_position():
    store = Store()
    handles = [store.series("m", {"n": str(i), "k": "even" if i % 2 == 0 else "odd"}) for i in range(6)]
    store.push(handles[0].block, 1000, {h.column: float(i) for i, h in enumerate(handles)})
    picked = selection(store, 'm{k="odd"}')
    assert names(picked.refresh()) == ["1", "3", "5"]
    assert picked.parts[0].row(0).tolist() == [1.0, 3.0, 5.0]
    assert picked.parts[0].rows(0, 1).tolist() == [[1.0, 3.0, 5.0]]


def test_the_pattern_of_who_has_a_sample_is_one_object_until_it_changes():
    store = Store()
    handles = [store.series("m", {"n": str(i)}) for i in range(3)]
    picked = selection(store, "m")
    picked.refresh()
    part = picked.parts[0]
    rows = [{0: 1.0, 1: 1.0, 2: 1.0}, {0: 1.0, 2: 1.0}, {0: 2.0, 2: 2.0}, {0: 1.0, 1: STALE, 2: 1.0}, {0: 1.0}]
    patterns = []
    for k, row in enumerate(rows):
        store.push(handles[0].block, k * 1000, row)
        patterns.append(part.valid(k))
    assert patterns[0] is None
    assert patterns[1].tolist() == [True, False, True]
    assert patterns[1] is patterns[2] is patterns[3]
    assert patterns[4].tolist() == [True, False, False]


def test_positions_are_void_when_a_column_comes_to_mean_another_series():
    store = Store(min_keep_ms=0)
    first = store.series("m", {"n": "1"})
    picked = selection(store, 'm{n!="9"}')
    picked.refresh()
    generation = picked.parts[0].generation
    store.push(first.block, 1000, {first.column: STALE})
    store.push(store.series("clock", {}).block, 100_000, {0: 1.0})
    for n in ("9", "2", "3", "4", "5"):  # the fifth column would be one too many: 4 takes the place of 1
        store.series("m", {"n": n})
    assert names(picked.refresh()) == ["4", "2", "3", "5"]
    assert picked.parts[0].generation > generation


cell = st.sampled_from([1.0, 2.0, float("nan"), None, None, STALE])


@settings(max_examples=120, deadline=None)
@given(st.lists(st.lists(cell, min_size=3, max_size=3), min_size=1, max_size=40), st.integers(1, 12), st.data())
def test_a_track_knows_first_last_and_how_many_of_every_series(rows, window, data):
    """Whatever the holes, and whatever comes late, in plain numbers or by series."""
    store = Store()
    handles = [store.series("m", {"n": str(i)}) for i in range(3)]
    picked = selection(store, "m")
    picked.refresh()
    track = Track(picked.parts[0])
    history: list[list[int]] = [[], [], []]  # slots with a sample, by series
    for k, row in enumerate(rows):
        given_late = data.draw(st.sampled_from([None, None, 0, 1, 2]))
        now = {
            h.column: v for i, (h, v) in enumerate(zip(handles, row, strict=True)) if v is not None and i != given_late
        }
        store.push(handles[0].block, k * 1000, now)
        if data.draw(st.booleans()):
            track.advance((k - window) * 1000, k * 1000)
        if given_late is not None and row[given_late] is not None:
            store.push(handles[0].block, k * 1000, {handles[given_late].column: row[given_late]})
        for i, value in enumerate(row):
            if value is not None and not cells.stale(np.array([value]))[0]:
                history[i].append(k)
        if data.draw(st.booleans()):
            track.advance((k - window) * 1000, k * 1000)
            check(track, [[s for s in slots if s > k - window] for slots in history])


def check(track, expected):
    count, first, last, before = track.count(), track.first_slot(), track.last_slot(), track.before_slot()
    one, two = track.having(1), track.having(2)
    for i, slots in enumerate(expected):
        assert (one is None or one[i]) == (len(slots) >= 1)
        assert (two is None or two[i]) == (len(slots) >= 2)
        if slots:
            at = [(each if isinstance(each, int) else int(each[i])) for each in (count, first, last, before)]
            assert at[:3] == [len(slots), slots[0], slots[-1]]
            assert len(slots) < 2 or at[3] == slots[-2]


@pytest.mark.parametrize("window", [3, 50])
def test_a_window_that_has_been_passed_over_is_taken_afresh(window):
    store = Store()
    handle = store.series("m", {})
    picked = selection(store, "m")
    picked.refresh()
    track = Track(picked.parts[0])
    for k in range(10):
        store.push(handle.block, k * 1000, {handle.column: float(k)})
    track.advance(0, 9000)
    for k in range(200, 220):
        store.push(handle.block, k * 1000, {handle.column: float(k)})
    track.advance((219 - window) * 1000, 219_000)
    assert track.count() == min(window, 20)
    assert track.uniform
