"""Matching and grouping against the plainest thing that could be right, while elements come and go."""

from __future__ import annotations

import math

import pytest
from asking import told
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar import promql
from sidecar.errors import QueryError
from sidecar.model import STALE, Labels, labels_of
from sidecar.store import Store

LABELS = {"x": "12", "y": "pq", "z": "k"}
label_sets = st.fixed_dictionaries({}, optional={k: st.sampled_from(v) for k, v in LABELS.items()}).map(labels_of)
numbers = st.sampled_from([0.0, 1.0, 2.0, -3.0, 7.5])
instants = st.dictionaries(label_sets, numbers, max_size=6)
names = st.lists(st.sampled_from("xyz"), unique=True, max_size=3)


class Vectors:
    """Two metrics whose elements change from instant to instant."""

    def __init__(self):
        self.store = Store()
        self.now = 0
        self._there: dict[tuple[str, Labels], None] = {}

    def show(self, **metrics: dict[Labels, float]):
        """The elements from now on; those shown before and not now have ended."""
        self.now += 1000
        rows: dict[int, dict[int, float]] = {}
        for metric, labels in self._there:
            if labels not in metrics[metric]:
                self._put(rows, metric, labels, STALE)
        for metric, elements in metrics.items():
            for labels, value in elements.items():
                self._put(rows, metric, labels, value)
        self._there = {(metric, labels): None for metric, elements in metrics.items() for labels in elements}
        for block, row in rows.items():
            self.store.push(block, self.now, row)

    def _put(self, rows, metric, labels, value):
        handle = self.store.series(metric, dict(labels))
        rows.setdefault(handle.block, {})[handle.column] = value


def key(labels: Labels, chosen, on: bool) -> Labels:
    return tuple(pair for pair in labels if (pair[0] in chosen) == on)


def model_binary(op, left, right, chosen, on, group):
    """Element by element, as the documentation says; None for an error."""
    many, one = (right, left) if group == "group_right" else (left, right)
    if not many or not one:
        return {}
    table: dict[Labels, float] = {}
    for labels, value in one.items():
        if key(labels, chosen, on) in table:
            return None
        table[key(labels, chosen, on)] = value
    out: dict[Labels, float] = {}
    for labels, value in many.items():
        sig = key(labels, chosen, on)
        if sig not in table:
            continue
        a, b = (table[sig], value) if group == "group_right" else (value, table[sig])
        if op == ">" and not a > b:
            continue
        result = labels if group else sig
        if result in out:
            return None
        out[result] = a if op == ">" else a + b
    return out


def outcome(evaluator, expr, now):
    try:
        result = evaluator.at(expr, now)
    except QueryError:
        return None
    return {tuple(pair for pair in labels if pair[0] != "__name__"): value for labels, value in result}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(instants, instants), min_size=1, max_size=6),
    st.sampled_from(["+", ">"]),
    names,
    st.booleans(),
    st.sampled_from(["", "group_left", "group_right"]),
)
def test_vector_matching(history, op, chosen, on, group):
    expr = f"l {op} {'on' if on else 'ignoring'} ({', '.join(chosen)}) {group} r"
    vectors = Vectors()
    evaluator = promql.compile([expr]).bind(vectors.store)
    for left, right in history:
        vectors.show(l=left, r=right)
        assert outcome(evaluator, expr, vectors.now) == model_binary(op, left, right, chosen, on, group)


def model_set(op, left, right, chosen, on):
    has = {key(labels, chosen, on) for labels in (left if op == "or" else right)}
    if op == "and":
        return {k: v for k, v in left.items() if key(k, chosen, on) in has}
    if op == "unless":
        return {k: v for k, v in left.items() if key(k, chosen, on) not in has}
    return {**{k: v for k, v in right.items() if key(k, chosen, on) not in has}, **left}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(instants, instants), min_size=1, max_size=6),
    st.sampled_from(["and", "or", "unless"]),
    names,
    st.booleans(),
)
def test_set_operators(history, op, chosen, on):
    expr = f"l {op} {'on' if on else 'ignoring'} ({', '.join(chosen)}) r"
    vectors = Vectors()
    evaluator = promql.compile([expr]).bind(vectors.store)
    for left, right in history:
        vectors.show(l=left, r=right)
        assert outcome(evaluator, expr, vectors.now) == model_set(op, left, right, chosen, on)


REDUCE = {
    "sum": math.fsum,
    "avg": lambda v: math.fsum(v) / len(v),
    "min": min,
    "max": max,
    "count": len,
    "group": lambda v: 1,
    "stdvar": lambda v: math.fsum((x - math.fsum(v) / len(v)) ** 2 for x in v) / len(v),
    "stddev": lambda v: math.sqrt(math.fsum((x - math.fsum(v) / len(v)) ** 2 for x in v) / len(v)),
}


@settings(max_examples=80, deadline=None)
@given(
    st.lists(instants, min_size=1, max_size=6),
    st.sampled_from(sorted(REDUCE)),
    names,
    st.booleans(),
    st.booleans(),
)
def test_aggregations(history, op, chosen, by, filtered):
    """Also over a filtered vector, whose elements are there at one instant and not at the next."""
    expr = f"{op} {'by' if by else 'without'} ({', '.join(chosen)}) (l {'> 0.5' if filtered else ''})"
    vectors = Vectors()
    evaluator = promql.compile([expr]).bind(vectors.store)
    for elements in history:
        vectors.show(l=elements)
        groups: dict[Labels, list[float]] = {}
        for labels, value in elements.items():
            if not filtered or value > 0.5:
                groups.setdefault(key(labels, chosen, by), []).append(value)
        expected = {labels: float(REDUCE[op](values)) for labels, values in groups.items()}
        assert outcome(evaluator, expr, vectors.now) == pytest.approx(expected, rel=1e-12, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.lists(instants, min_size=1, max_size=5), st.sampled_from(["topk", "bottomk"]), st.integers(0, 4), names)
def test_ranking(history, op, k, chosen):
    expr = f"{op} by ({', '.join(chosen)}) ({k}, l)"
    vectors = Vectors()
    evaluator = promql.compile([expr]).bind(vectors.store)
    for elements in history:
        vectors.show(l=elements)
        found = outcome(evaluator, expr, vectors.now)
        groups: dict[Labels, list[float]] = {}
        for labels, value in elements.items():
            groups.setdefault(key(labels, chosen, True), []).append(value)
        best = {g: sorted(v, reverse=op == "topk")[:k] for g, v in groups.items()}
        got: dict[Labels, list[float]] = {}
        for labels, value in found.items():
            assert elements[labels] == value
            got.setdefault(key(labels, chosen, True), []).append(value)
        assert {g: sorted(v, reverse=op == "topk") for g, v in got.items()} == {g: v for g, v in best.items() if v}


@settings(max_examples=40, deadline=None)
@given(st.lists(st.dictionaries(label_sets, numbers, max_size=5), min_size=1, max_size=5))
def test_absent_is_the_opposite_of_there(history):
    vectors = Vectors()
    evaluator = promql.compile(['absent(l{x="1"})', 'count(l{x="1"})', "scalar(l)"]).bind(vectors.store)
    for elements in history:
        vectors.show(l=elements)
        there = told(evaluator.at('count(l{x="1"})', vectors.now))
        assert bool(there) != bool(told(evaluator.at('absent(l{x="1"})', vectors.now)))
        only = evaluator.at("scalar(l)", vectors.now)
        assert only == next(iter(elements.values())) if len(elements) == 1 else math.isnan(only)
