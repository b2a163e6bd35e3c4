"""Who waited for whom: a rank's time less the shortest among the ranks seen here."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidecar.collectors.nccl.waits import Waits


def fill(waits, rows, now_ms=0, op="AllReduce", comm="c", first=1):
    """One collective after another; `rows` hold the seconds of rank 0, 1 …"""
    for number, row in enumerate(rows, first):
        for rank, seconds in enumerate(row):
            waits.add(comm, op, number, rank, seconds, now_ms)


def test_the_last_to_arrive_waited_nothing_and_the_others_what_they_took_beyond_it():
    waits = Waits()
    fill(waits, [(0.150, 0.020, 0.090)])
    assert [(w.rank, round(w.wait_seconds, 6)) for w in waits.settle(0)] == [(0, 0.13), (1, 0), (2, 0.07)]


def test_a_single_rank_says_nothing_about_waiting():
    waits = Waits(patience_ms=1000)
    waits.add("c", "AllReduce", 1, 0, 5.0, 0)
    assert list(waits.settle(0)) == []
    assert list(waits.settle(10_000)) == []
    assert waits.consecutive() == {}


def test_a_collective_waits_for_the_record_of_a_rank_that_comes_later():
    waits = Waits(patience_ms=1000)
    fill(waits, [(0.2, 0.1)])
    assert len(list(waits.settle(0))) == 2
    waits.add("c", "AllReduce", 2, 0, 0.2, 100)
    assert list(waits.settle(200)) == []
    waits.add("c", "AllReduce", 2, 1, 0.05, 300)
    assert [round(w.wait_seconds, 6) for w in waits.settle(300)] == [0.15, 0]


def test_a_rank_whose_record_never_comes_is_not_waited_for_for_ever():
    waits = Waits(patience_ms=1000)
    fill(waits, [(0.2, 0.1, 0.1)])
    list(waits.settle(0))
    fill(waits, [(0.4, 0.1)], now_ms=100, first=2)
    assert list(waits.settle(900)) == []
    assert [w.rank for w in waits.settle(1100)] == [0, 1]


def test_slow_collectives_in_a_row_are_counted_and_a_fast_one_ends_the_row():
    waits = Waits(limit_seconds=0.1)
    fill(waits, [(0.1, 0.0), (0.2, 0.0), (0.095, 0.0)])
    list(waits.settle(0))
    assert waits.consecutive() == {"AllReduce": 3}
    fill(waits, [(0.094, 0.0)], first=4)
    list(waits.settle(0))
    assert waits.consecutive() == {"AllReduce": 3}, "it stood when we last looked"
    assert waits.consecutive() == {"AllReduce": 0}


def test_a_row_that_began_and_ended_between_two_looks_is_told_once():
    waits = Waits(limit_seconds=0.1)
    fill(waits, [(1, 0), (1, 0), (1, 0), (1, 0), (0, 0)])
    list(waits.settle(0))
    assert waits.consecutive() == {"AllReduce": 4}
    assert waits.consecutive() == {"AllReduce": 0}


def test_operations_and_communicators_have_rows_of_their_own():
    waits = Waits(limit_seconds=0.1)
    fill(waits, [(1, 0), (1, 0)], comm="a")
    fill(waits, [(1, 0)], comm="b")
    fill(waits, [(0, 0)], op="AllGather", comm="a")
    list(waits.settle(0))
    assert waits.consecutive() == {"AllReduce": 2, "AllGather": 0}


@pytest.mark.parametrize("count", [5_000, 20_000])
def test_what_is_open_stays_bounded(count):
    waits = Waits(patience_ms=10**9)
    for number in range(count):
        waits.add("c", "AllReduce", number, 0, 0.1, 0)
    assert list(waits.settle(0)) == []
    assert len(waits._open) <= 4096


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.lists(st.floats(0, 10), min_size=2, max_size=4), min_size=1, max_size=8),
    st.randoms(use_true_random=False),
)
def test_the_order_in_which_records_come_does_not_matter(rows, random):
    records = [(n, rank, s) for n, row in enumerate(rows) for rank, s in enumerate(row)]
    shuffled = records[:]
    random.shuffle(shuffled)
    results = []
    for order in (records, shuffled):
        waits = Waits(patience_ms=1000)
        for number, rank, seconds in order:
            waits.add("c", "AllReduce", number, rank, seconds, 0)
        results.append(([(w.rank, w.wait_seconds) for w in waits.settle(1000)], waits.consecutive()))
    assert results[0] == results[1]
    assert all(w >= 0 for _, w in results[0][0])
