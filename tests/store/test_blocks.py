"""What one ring promises: order, room, late columns, and columns that outlive their series."""

from __future__ import annotations

import math

import pytest

from sidecar.model import STALE, labels_of
from sidecar.store import Block, cells

KEEP_MS = 60_000


@pytest.fixture
def block():
    return Block(0, "m", "", KEEP_MS, max_slots=1000)


def column(block, name):
    return block.add_column(labels_of({"__name__": "m", "n": name}))


def history(block, index, low=0, high=1 << 40):
    """(time, value) of a column's samples, stale markers as None."""
    first, last = max(block.upto(low), block.first), block.upto(high)
    found = []
    for slot in range(first, last):
        cell = block.rows(slot, slot + 1)[:, index].copy()
        if not cells.missing(cell)[0]:
            found.append((int(block.times_of(slot, slot + 1)[0]), None if cells.stale(cell)[0] else float(cell[0])))
    return found


def test_samples_come_back_as_they_were_pushed(block):
    a, b = column(block, "a"), column(block, "b")
    block.push(1000, {a: 1.0, b: 2.0})
    block.push(2000, {b: 4.0})
    assert history(block, a) == [(1000, 1.0)]
    assert history(block, b) == [(1000, 2.0), (2000, 4.0)]


def test_a_column_left_out_is_missing_and_nan_is_a_value(block):
    a, b = column(block, "a"), column(block, "b")
    block.push(1000, {a: math.nan})
    row = block.rows(0, 1)[0, :2].copy()
    assert cells.absent(row).tolist() == [False, True]
    assert b == 1


def test_the_stale_marker_keeps_its_bits_through_every_copy(block):
    a = column(block, "a")
    block.push(1000, {a: STALE})
    for i in range(40):  # lengthens the ring
        block.push(2000 + i, {a: 0.0})
    for i in range(10):  # widens it
        column(block, str(i))
    assert history(block, a)[0] == (1000, None)


def test_what_is_older_than_the_newest_slot_is_refused_and_counted(block):
    a, b = column(block, "a"), column(block, "b")
    block.push(2000, {a: 1.0})
    assert block.push(1999, {a: 2.0, b: 3.0}) == (2, 0, 0)
    assert history(block, a) == [(2000, 1.0)]


def test_a_second_push_of_an_instant_adds_columns_and_refuses_others_values(block):
    a, b = column(block, "a"), column(block, "b")
    block.push(1000, {a: 1.0})
    assert block.push(1000, {a: 9.0, b: 2.0}) == (0, 1, 0)
    assert history(block, a) == [(1000, 1.0)]
    assert history(block, b) == [(1000, 2.0)]


def test_the_same_value_twice_is_no_conflict(block):
    a = column(block, "a")
    block.push(1000, {a: 1.0})
    assert block.push(1000, {a: 1.0}) == (0, 0, 0)


def test_unknown_columns_are_counted_and_do_no_harm(block):
    a = column(block, "a")
    assert block.push(1000, {a: 1.0, 7: 5.0, -1: 5.0}) == (0, 0, 2)
    assert history(block, a) == [(1000, 1.0)]


@pytest.mark.parametrize("pace_ms", [10, 200, 1000, 7000])
def test_the_ring_keeps_its_time_whatever_the_pace_and_not_much_more(block, pace_ms):
    a = column(block, "a")
    pushed = 4 * KEEP_MS // pace_ms
    block._max_slots = 1 << 20
    for i in range(pushed):
        block.push(i * pace_ms, {a: float(i)})
    newest = (pushed - 1) * pace_ms
    times = [t for t, _ in history(block, a)]
    assert times[0] <= max(0, newest - KEEP_MS + pace_ms)
    assert times == list(range(times[0], newest + 1, pace_ms))
    assert len(block.times) <= max(32, 1.5 * KEEP_MS / pace_ms + 64)


def test_a_ring_that_must_not_grow_drops_its_oldest_slots_and_says_so():
    block = Block(0, "m", "", KEEP_MS, max_slots=50)
    a = column(block, "a")
    for i in range(100):
        block.push(i, {a: float(i)})
    assert [v for _, v in history(block, a)] == [float(i) for i in range(50, 100)]
    assert block.crowded_out == 50


def test_a_longer_time_to_keep_loses_nothing_that_is_there(block):
    a = column(block, "a")
    for i in range(200):
        block.push(i * 1000, {a: float(i)})
    before = history(block, a)
    block.keep_ms = 1_000_000
    for i in range(200, 400):
        block.push(i * 1000, {a: float(i)})
    assert history(block, a)[: len(before)] == before


def test_times_are_found_from_either_end(block):
    a = column(block, "a")
    for i in range(100):
        block.push(i * 1000 + 7, {a: 0.0})
    for t in range(block.first * 1000, 100_000, 500):
        expected = sum(1 for i in range(100) if i * 1000 + 7 <= t)
        assert block.upto(t) == max(expected, block.first)


def test_an_ended_column_is_freed_only_after_its_samples_have_left(block):
    a, b = column(block, "a"), column(block, "b")
    block.push(1000, {a: 1.0, b: 1.0})
    block.push(2000, {a: STALE})
    assert block.collect(2000 + KEEP_MS - 1) == []
    assert [dict(gone)["n"] for gone in block.collect(2000 + KEEP_MS)] == ["a"]
    assert block.labels[b] is not None


def test_a_series_that_came_back_is_not_freed(block):
    a = column(block, "a")
    block.push(1000, {a: STALE})
    block.push(2000, {a: 1.0})
    assert block.collect(10 * KEEP_MS) == []


def test_a_freed_column_starts_empty_and_its_old_id_writes_nowhere(block):
    a, b = column(block, "a"), column(block, "b")
    block.push(1000, {a: 1.0, b: 1.0})
    block.push(2000, {a: STALE, b: 2.0})
    block.push(3000 + KEEP_MS, {b: 3.0})
    block.collect(3000 + KEEP_MS)
    c = column(block, "c")
    assert c not in (a, b)
    assert block.push(4000 + KEEP_MS, {a: 9.0, b: 4.0, c: 5.0}) == (0, 0, 1)
    assert history(block, a) == [(4000 + KEEP_MS, 5.0)]  # the column is c's now
    assert history(block, b)[-1] == (4000 + KEEP_MS, 4.0)


def test_a_ring_without_series_gives_its_memory_back(block):
    a = column(block, "a")
    block._max_slots = 1 << 20
    for i in range(3000):
        block.push(i * 10, {a: 1.0})
    size = block.data.nbytes
    block.push(30_000, {a: STALE})
    block.collect(30_000 + KEEP_MS)
    assert block.idle
    assert block.data.nbytes < size / 10
    d = column(block, "d")
    block.push(31_000 + KEEP_MS, {d: 1.0})
    assert history(block, 0) == [(31_000 + KEEP_MS, 1.0)]


def test_readers_can_follow_which_columns_were_given_out(block):
    column(block, "a")
    column(block, "b")
    assert list(block.assigned) == [0, 1]
    assert block.assigned_count == 2
