"""What a tick of the incremental face costs: what entered and left, and now and then a few dozen slots."""

from __future__ import annotations

import pytest

from sidecar import promql
from sidecar.model import STALE
from sidecar.promql.incremental.finish import USES
from sidecar.promql.selection import Part
from sidecar.store import Store

SERIES = 3
BOUND = 140  # slots a tick may read, of a window of 600


@pytest.fixture
def cells_read(monkeypatch):
    """A counter of the ring's cells that readers have asked for."""
    count = {"cells": 0}
    originals = {name: getattr(Part, name) for name in ("row", "rows", "cells")}

    def counting(name):
        def read(self, *args):
            found = originals[name](self, *args)
            count["cells"] += found.size
            return found

        return read

    for name in originals:
        monkeypatch.setattr(Part, name, counting(name))
    return count


def call(name, window_s):
    if name == "quantile_over_time":
        return f"quantile_over_time(0.9, m[{window_s}s])"
    return f"predict_linear(m[{window_s}s], 5)" if name == "predict_linear" else f"{name}(m[{window_s}s])"


def worst_tick(count, name, window_s, odd=None):
    """The most cells that any tick reads, over one and a half windows after the window has filled."""
    store = Store()
    expr = call(name, window_s)
    evaluator = promql.compile([expr]).bind(store, "incremental")
    handles = [store.series("m", {"i": str(i)}) for i in range(SERIES)]
    worst = 0
    for k in range(window_s * 5 // 2):
        row = {h.column: float((k * (i + 3)) % 17) for i, h in enumerate(handles)}
        if odd is not None and k % 97 == 0:
            odd(row, handles)
        store.push(handles[0].block, k * 1000, row)
        count["cells"] = 0
        evaluator.at(expr, k * 1000 + 5)
        if k > window_s:
            worst = max(worst, count["cells"])
    return worst


@pytest.mark.parametrize("name", sorted(USES))
def test_no_tick_reads_the_window(cells_read, name):
    window = 600
    assert worst_tick(cells_read, name, window) <= SERIES * BOUND


def gap(row, handles):
    del row[handles[0].column]


def stale(row, handles):
    row[handles[1].column] = STALE


def not_a_number(row, handles):
    row[handles[2].column] = float("nan")


@pytest.mark.parametrize("odd", [gap, stale])
@pytest.mark.parametrize(
    "name", ["rate", "max_over_time", "stddev_over_time", "deriv", "changes", "quantile_over_time"]
)
def test_not_even_one_with_holes_in_it(cells_read, name, odd):
    window = 600
    assert worst_tick(cells_read, name, window, odd) <= SERIES * (BOUND + 10)


def test_a_sample_that_is_no_number_is_looked_for_once_not_every_tick(cells_read):
    """Whether a sum is undefined because of its samples or has overflowed takes one look at the window."""
    window = 600
    store = Store()
    expr = f"avg_over_time(m[{window}s])"
    evaluator = promql.compile([expr]).bind(store, "incremental")
    handle = store.series("m", {})
    looks = 0
    for k in range(2 * window):
        store.push(handle.block, k * 1000, {handle.column: float("nan") if k == window else 1.0})
        cells_read["cells"] = 0
        evaluator.at(expr, k * 1000)
        looks += cells_read["cells"] > window // 2
    assert looks == 1


def test_an_instant_selector_reads_the_newest_row_only(cells_read):
    store = Store()
    evaluator = promql.compile(["m"]).bind(store, "incremental")
    handles = [store.series("m", {"i": str(i)}) for i in range(SERIES)]
    for k in range(500):
        row = {h.column: 1.0 for h in handles[: SERIES if k < 50 else SERIES - 1]}  # one falls silent
        store.push(handles[0].block, k * 1000, row)
        cells_read["cells"] = 0
        evaluator.at("m", k * 1000)
        assert k < 1 or cells_read["cells"] <= SERIES


def test_a_subquery_evaluates_only_steps_it_has_not_seen():
    store = Store()
    expr = "max_over_time(rate(m[10s])[5m:10s])"
    evaluator = promql.compile([expr]).bind(store, "incremental")
    handle = store.series("m", {})
    inner = evaluator._operators[expr]._steps._inner
    asked = []
    evaluate = inner.compute
    inner.compute = lambda t, inputs: asked.append(t) or evaluate(t, inputs)
    for k in range(700):
        store.push(handle.block, k * 1000, {handle.column: float(k)})
        asked.clear()
        evaluator.at(expr, k * 1000)
        if k > 1:
            assert len(asked) <= 2
    assert evaluator.at(expr, 699_000).values.tolist() == pytest.approx([1.0])


def test_a_sample_that_lands_on_an_old_step_is_not_missed():
    """A second producer may be behind the first: its samples change steps that have been evaluated already."""
    store = Store()
    expr = "sum_over_time(sum(m)[1m:10s])"
    program = promql.compile([expr])
    moving, reading = program.bind(store, "incremental"), program.bind(store, "naive")
    fast, slow = store.series("m", {"p": "fast"}, "fast"), store.series("m", {"p": "slow"}, "slow")
    for k in range(100):
        store.push(fast.block, k * 1000, {fast.column: 1.0})
        if k > 25 and k % 3 == 0:
            store.push(slow.block, (k - 25) * 1000, {slow.column: 1.0})
        assert list(moving.at(expr, k * 1000)) == list(reading.at(expr, k * 1000))
