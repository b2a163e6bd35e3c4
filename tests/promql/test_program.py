"""Programs: what they need, what they share, what they hand out, and what they refuse to spend."""

from __future__ import annotations

import math

import pytest
from asking import ask, filled, told

from sidecar import promql
from sidecar.errors import QueryError
from sidecar.promql import Limits
from sidecar.store import Store

MINUTE = 60_000


@pytest.mark.parametrize(
    ("expr", "needs"),
    [
        ("m", {"m": 5 * MINUTE}),
        ("rate(m[10m])", {"m": 10 * MINUTE}),
        ("rate(m[1m])", {"m": MINUTE}),
        ("m offset 1h", {"m": 65 * MINUTE}),
        ("m offset -1h", {"m": 5 * MINUTE}),
        ("rate(m[2m] offset 3m)", {"m": 5 * MINUTE}),
        ("max_over_time(rate(m[2m])[1h:1m])", {"m": 62 * MINUTE}),
        ("max_over_time(m[1h:1m] offset 10m)", {"m": 75 * MINUTE}),
        ("rate(a[1m]) + rate(a[7m]) / b", {"a": 7 * MINUTE, "b": 5 * MINUTE}),
        ('{a="1"}', {"": 5 * MINUTE}),
        ('{__name__="m",x="y"}', {"m": 5 * MINUTE}),
        ("time() + 1", {}),
    ],
)
def test_a_program_knows_how_far_back_it_reads(expr, needs):
    assert promql.compile([expr]).needs() == needs


def test_needs_are_those_of_the_greediest_expression():
    assert promql.compile(["m", "rate(m[1h])", "n"]).needs() == {"m": 60 * MINUTE, "n": 5 * MINUTE}


def test_a_program_knows_the_metrics_and_the_longest_window_of_an_expression():
    program = promql.compile(["rate(a[5m]) > max_over_time(sum(b)[1h:1m])", "c"])
    assert program.metrics(program.exprs[0]) == {"a", "b"}
    assert program.longest_range_ms(program.exprs[0]) == 60 * MINUTE
    assert program.longest_range_ms("c") == 0


def test_equal_parts_of_different_expressions_are_one_operator():
    program = promql.compile(["sum(rate(m[5m]))", "max(rate(m[5m])) > 1"])
    evaluator = program.bind(Store())
    one, other = (evaluator._operators[expr] for expr in program.exprs)
    assert one.children[0] is other.children[0].children[0]


def test_what_has_not_changed_is_not_worked_out_again():
    store = filled("m 1 2 3")
    evaluator = promql.compile(["sum(m)", "sum(m) > 0"]).bind(store)
    evaluator.at("sum(m)", 20_000)
    operator = evaluator._operators["sum(m)"]
    before = operator._value
    evaluator.at("sum(m) > 0", 20_000)
    assert operator._value is before


def test_what_is_written_between_two_rules_of_a_tick_is_seen_by_the_second():
    store = filled("m 1 2 3")
    evaluator = promql.compile(["count(m)"]).bind(store)
    assert told(evaluator.at("count(m)", 20_000)) == {"{}": 1}
    handle = store.series("m", {"late": "yes"})
    store.push(handle.block, 20_000, {handle.column: 5.0})
    assert told(evaluator.at("count(m)", 20_000)) == {"{}": 2}


@pytest.mark.parametrize("face", ["naive", "incremental"])
def test_a_result_stays_what_it_was_when_the_store_moves_on(face):
    store = filled("m 1")
    handle = store.series("m", {})
    evaluator = promql.compile(["m", "m > 0", "last_over_time(m[1m])"]).bind(store, face)
    results = [evaluator.at(expr, 0) for expr in ("m", "m > 0", "last_over_time(m[1m])")]
    for i in range(1, 200):
        store.push(handle.block, i * 10_000, {handle.column: float(i)})
    assert [list(r.values) for r in results] == [[1.0]] * 3


def test_a_vector_is_its_labels_values_and_time():
    vector = promql.evaluate(filled("m{a='1'} 7"), "m", 5000)
    assert vector.labels == ((("__name__", "m"), ("a", "1")),)
    assert list(vector) == [((("__name__", "m"), ("a", "1")), 7.0)]
    assert (len(vector), vector.t_ms, vector.values.dtype) == (1, 5000, "float64")


def test_numbers_and_strings_are_results_of_their_own():
    assert promql.evaluate(Store(), "1 + 1", 0) == 2.0
    assert promql.evaluate(Store(), '"text"', 0) == "text"
    assert math.isnan(promql.evaluate(Store(), "scalar(nothing)", 0))


def test_a_range_vector_comes_as_series_of_samples():
    store = filled("m{a='1'} 1 2 3\nm{a='0'} _ stale 5")
    evaluator = promql.compile(["m[20s]", "(m * 2)[30s:10s]", "m"]).bind(store)
    first, second = evaluator.matrix("m[20s]", 20_000)
    assert (first.labels, first.times, first.values) == ((("__name__", "m"), ("a", "0")), (20_000,), (5.0,))
    assert (second.times, second.values) == ((10_000, 20_000), (2.0, 3.0))
    assert evaluator.matrix("(m * 2)[30s:10s]", 20_000)[1].values == (2.0, 4.0, 6.0)
    with pytest.raises(QueryError, match="range vector"):
        evaluator.at("m[20s]", 0)
    with pytest.raises(QueryError, match="no range vector"):
        evaluator.matrix("m", 0)


def test_a_range_query_is_an_instant_query_at_each_step():
    store = filled("m 0+1x30")
    evaluator = promql.compile(["rate(m[1m])", "m @ end()", "m @ start()"]).bind(store, "naive")
    steps = dict(evaluator.over("rate(m[1m])", 100_000, 200_000, 50_000))
    assert list(steps) == [100_000, 150_000, 200_000]
    assert all(told(v) == {"{}": 0.1} for v in steps.values())
    assert {told(v)["m"] for _, v in evaluator.over("m @ end()", 0, 90_000, 30_000)} == {9.0}
    assert {told(v)["m"] for _, v in evaluator.over("m @ start()", 50_000, 90_000, 20_000)} == {5.0}
    with pytest.raises(QueryError, match="step"):
        list(evaluator.over("m @ end()", 0, 1, 0))


def test_sort_decides_the_order_of_an_instant_query():
    store = filled("m{i='a'} 2\nm{i='b'} NaN\nm{i='c'} 3\nm{i='d'} 1")
    assert [dict(k)["i"] for k, _ in promql.evaluate(store, "sort(m)", 0)] == ["d", "a", "c", "b"]
    assert [dict(k)["i"] for k, _ in promql.evaluate(store, "sort_desc(m)", 0)] == ["c", "a", "d", "b"]
    assert [dict(k)["i"] for k, _ in promql.evaluate(store, "sort_desc(m) * 2 > 2", 0)] == ["c", "a"]
    assert [dict(k)["i"] for k, _ in promql.evaluate(store, "topk(2, m)", 0)] == ["c", "a"]
    assert [dict(k)["i"] for k, _ in promql.evaluate(store, "bottomk(3, m)", 0)] == ["d", "a", "c"]


def test_a_query_that_reads_too_much_is_cut_off():
    store = filled("\n".join(f"m{{i='{i}'}} 0+1x50" for i in range(10)))
    evaluator = promql.compile(["max_over_time(m[5m:1s])"]).bind(store, "naive", limits=Limits(max_samples=100))
    with pytest.raises(QueryError, match="too many samples"):
        evaluator.at("max_over_time(m[5m:1s])", 400_000)
    assert len(promql.evaluate(store, "m", 400_000, limits=Limits(max_samples=100))) == 10


def test_a_query_that_takes_too_long_is_cut_off():
    polls = iter(range(1000))
    limits = Limits(expired=lambda: next(polls) >= 5)
    with pytest.raises(QueryError, match="timed out"):
        promql.evaluate(filled("m 0+1x50"), "max_over_time(m[5m:1s])", 400_000, limits=limits)
    assert next(polls) < 10


def test_an_error_names_its_expression():
    with pytest.raises(QueryError) as caught:
        promql.evaluate(filled("m{a='1'} 1\nm{a='2'} 1"), "m * on() m", 0)
    assert caught.value.expr == "m * on() m"


def test_an_error_passes_when_its_cause_does():
    store = filled("l{a='1'} 1 1 1 1\nr{a='1',x='1'} 1 2 stale\nr{a='1',x='2'} _ 3 3 3")
    evaluator = promql.compile(["l + on(a) r"]).bind(store)
    assert told(evaluator.at("l + on(a) r", 0)) == {'{a="1"}': 2.0}
    with pytest.raises(QueryError, match="many-to-many"):
        evaluator.at("l + on(a) r", 10_000)
    assert told(evaluator.at("l + on(a) r", 20_000)) == {'{a="1"}': 4.0}


def test_an_evaluation_back_in_time_is_answered_too():
    store = filled("m 0+1x60")
    evaluator = promql.compile(["sum_over_time(m[30s])"]).bind(store, "incremental")
    asked = [500, 300, 510, 310, 50, 40, 30, 20, 520, 600, 10]
    assert [told(evaluator.at("sum_over_time(m[30s])", t * 1000))["{}"] for t in asked] == [
        sum(range(max(t // 10 - 2, 0), t // 10 + 1)) for t in asked
    ]


def test_two_groups_a_minute_apart_each_keep_a_moving_window():
    """As rules with a query offset do beside rules without."""
    store = Store()
    handle = store.series("m", {})
    evaluator = promql.compile(["sum_over_time(m[5m])"]).bind(store, "incremental")
    windows = next(iter(evaluator._binder._windows.values()))
    for i in range(400):
        store.push(handle.block, i * 1000, {handle.column: 1.0})
        evaluator.at("sum_over_time(m[5m])", i * 1000)
        if i > 100:
            evaluator.at("sum_over_time(m[5m])", (i - 60) * 1000)
    assert len(windows._lanes._lanes) == 2


@pytest.mark.parametrize(
    ("expr", "increments"),
    [
        ("sum(rate(m[5m]))", "sum(irate(m[5m]))"),
        ("increase(m[1m])", "(irate(m[1m]) * 60)"),
        ("delta(m[1m])", "idelta(m[1m])"),
        ("avg_over_time(m[5m] offset 1m)", "last_over_time(m[5m] offset 1m)"),
        ("quantile_over_time(0.9, m[5m])", "last_over_time(m[5m])"),
        ("max_over_time(rate(m[1m])[1h:])", "(irate(m[1m]))"),
        ("m / rate(n[1m])", "m / irate(n[1m])"),
        ("m > 1", "m > 1"),
    ],
)
def test_increments_read_only_the_newest_part_of_every_window(expr, increments):
    assert promql.canonical(promql.increments(expr)) == promql.canonical(increments)


def test_canonical_text_is_one_way_of_writing():
    assert promql.canonical("sum( rate(m{ a = 'b' }[ 5m ]) )by(x)") == 'sum by (x) (rate(m{a="b"}[5m]))'
    assert promql.canonical("m @ -5") == "m @ -5"
    with pytest.raises(QueryError):
        promql.canonical("sum(")


def test_two_producers_of_a_metric_are_one_metric():
    store = Store()
    for producer, offset in (("a", 0), ("b", 137)):
        handle = store.series("m", {"p": producer}, producer)
        for i in range(20):
            store.push(handle.block, i * 1000 + offset, {handle.column: float(i)})
    assert ask(store, "sum(m)", 10, "incremental") == {"{}": 10.0 + 9.0}
    assert ask(store, "count_over_time(m[5s])", 10, "incremental") == {'{p="a"}': 5.0, '{p="b"}': 5.0}
    assert ask(store, "timestamp(m)", 10, "incremental") == {'{p="a"}': 10.0, '{p="b"}': 9.137}
