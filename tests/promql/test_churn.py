"""Series that come and go: the engine follows, both faces agree, and nothing piles up."""

from __future__ import annotations

import pytest
from asking import told

from sidecar import promql
from sidecar.model import STALE
from sidecar.store import Store

EXPRS = [
    "m",
    "rate(m[10s])",
    "sum by (kind) (avg_over_time(m[20s]))",
    "count(m)",
    "stddev_over_time(m[20s])",
    "m * on(kind) group_left n",
    "quantile_over_time(0.5, m[20s])",
    'm{run=~"1.*"} or n',
    "changes(m[20s])",
    "deriv(m[20s])",
    "max_over_time(m[20s])",
]


def play(store, ticks, step_ms=1000):
    """A new run of a job every seven ticks, the old one ended two ticks later; yields after each tick."""
    n = store.series("n", {"kind": "a"})
    for k in range(ticks):
        t = k * step_ms
        store.push(n.block, t, {n.column: 2.0})
        rows: dict[int, dict[int, float]] = {}
        for run in range(max(0, k // 7 - 1), k // 7 + 1):
            age = k - run * 7
            if age > 9:
                continue
            handle = store.series("m", {"run": str(run), "kind": "a" if run % 2 else "b"})
            rows.setdefault(handle.block, {})[handle.column] = STALE if age == 9 else float(k * (run % 5 + 1))
        for block, row in rows.items():
            store.push(block, t, row)
        yield t


def test_both_faces_follow_series_that_come_and_go():
    store = Store(min_keep_ms=20_000)
    program = promql.compile(EXPRS)
    moving, reading = program.bind(store, "incremental"), program.bind(store, "naive")
    for t in play(store, 200):
        for expr in EXPRS:
            ours, theirs = told(moving.at(expr, t)), told(reading.at(expr, t))
            assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-12), (expr, t)
    assert store.stats().reused_series > 10


def test_what_an_evaluator_holds_does_not_grow_with_the_series_it_has_seen():
    store = Store(min_keep_ms=1000)
    evaluator = promql.compile(EXPRS).bind(store, "incremental")
    sizes = {}
    for t in play(store, 600):
        for expr in EXPRS:
            evaluator.at(expr, t)
        if t in (200_000, 599_000):
            sizes[t] = [len(s.frame) for s in evaluator._binder._selections.values()]
    assert sizes[599_000] == sizes[200_000]


def test_a_reader_that_missed_more_news_than_are_kept_looks_at_everything():
    store = Store(min_keep_ms=0, max_series=10_000)
    evaluator = promql.compile(["count(m)"]).bind(store, "incremental")
    handles = [store.series("m", {"i": str(i)}) for i in range(5000)]
    store.push(handles[0].block, 1000, {h.column: 1.0 for h in handles})
    assert told(evaluator.at("count(m)", 1000)) == {"{}": 5000}


def test_a_metric_that_appears_later_is_found_by_selectors_without_a_name():
    store = Store()
    evaluator = promql.compile(['{job="x"}']).bind(store, "incremental")
    assert told(evaluator.at('{job="x"}', 0)) == {}
    handle = store.series("late", {"job": "x"})
    store.push(handle.block, 1000, {handle.column: 3.0})
    assert told(evaluator.at('{job="x"}', 1000)) == {'late{job="x"}': 3.0}


@pytest.mark.parametrize("face", ["naive", "incremental"])
def test_a_block_taken_over_by_another_producer_shows_only_its_own_series(face):
    store = Store(min_keep_ms=0)
    evaluator = promql.compile(["last_over_time(m[5s])"]).bind(store, face)
    for pod in range(6):
        t = pod * 100_000
        handle = store.series("m", {"pod": str(pod)}, producer=f"pod-{pod}")
        store.push(handle.block, t, {handle.column: float(pod)})
        assert told(evaluator.at("last_over_time(m[5s])", t)) == {f'm{{pod="{pod}"}}': float(pod)}
        store.push(handle.block, t + 1, {handle.column: STALE})
    assert store.stats().blocks <= 2
