"""Compiled programs: expressions with one shared plan, what they need of the store, and evaluators bound to one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from sidecar.errors import QueryError
from sidecar.model import Labels
from sidecar.promql.bind import Binder, Face
from sidecar.promql.frame import Vec
from sidecar.promql.matrix import Series, samples, subquery_samples
from sidecar.promql.operator import Context, Limits, Operator
from sidecar.promql.parse import parse
from sidecar.promql.plan import LOOKBACK_MS, Node, Range, Selector, Subquery, children, walk
from sidecar.store import Store
from sidecar.store.cells import F64

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Vector:
    """The result of an instant query: label sets (with `__name__` where kept) and float64 values, in order."""

    labels: tuple[Labels, ...]
    values: F64
    t_ms: int

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[tuple[Labels, float]]:
        return zip(self.labels, self.values.tolist(), strict=True)


class Program:
    """A set of expressions, parsed once. Knows no store."""

    def __init__(self, roots: dict[str, Node]) -> None:
        self._roots = roots

    @property
    def exprs(self) -> tuple[str, ...]:
        """The expressions, as given."""
        return tuple(self._roots)

    def also(self, exprs: Iterable[str]) -> Program:
        """One with more expressions; what is here already is not parsed again. Raises QueryError as `compile`."""
        more = {expr: parse(expr) for expr in exprs if expr not in self._roots}
        return Program({**self._roots, **more}) if more else self

    def node(self, expr: str) -> Node:
        """The plan of an expression. Raises KeyError for one that was not compiled in."""
        return self._roots[expr]

    def needs(self) -> dict[str, int]:
        """How far back, in milliseconds, each metric is read; "" stands for metrics not named by equality.

        Counts windows, offsets, the look-back of instant selectors, and steps of subqueries. A time pinned with `@`
        counts as the evaluation time.
        """
        spans: dict[str, int] = {}
        for root in self._roots.values():
            _spans(root, 0, spans)
        return spans

    def metrics(self, expr: str) -> frozenset[str]:
        """The metric names an expression reads."""
        return frozenset(node.metric for node in walk(self._roots[expr]) if isinstance(node, Selector) and node.metric)

    def longest_range_ms(self, expr: str) -> int:
        """The longest window in an expression, subqueries included; 0 where there is none."""
        ranges = (node.range_ms for node in walk(self._roots[expr]) if isinstance(node, Range | Subquery))
        return max(ranges, default=0)

    def bind(
        self,
        store: Store,
        face: Face = "incremental",
        interval_ms: int = 1000,
        lookback_ms: int = LOOKBACK_MS,
        limits: Limits | None = None,
    ) -> Evaluator:
        """An evaluator over a store. `interval_ms` is the default step of subqueries."""
        return Evaluator(self, Context(store, interval_ms, lookback_ms, limits or Limits()), face)


def _spans(node: Node, outer_ms: int, spans: dict[str, int]) -> None:
    match node:
        case Range(selector=selector, range_ms=length):
            _spans_of(selector, outer_ms + length, spans)
        case Selector():
            _spans_of(node, outer_ms + LOOKBACK_MS, spans)
        case Subquery(expr=expr):
            _spans(expr, outer_ms + node.range_ms + max(node.offset_ms, 0), spans)
        case _:
            for child in children(node):
                _spans(child, outer_ms, spans)


def _spans_of(selector: Selector, length_ms: int, spans: dict[str, int]) -> None:
    length_ms += max(selector.offset_ms, 0)
    spans[selector.metric] = max(spans.get(selector.metric, 0), length_ms)


class Evaluator:
    """A program bound to a store. The incremental face wants evaluation times that do not go back."""

    def __init__(self, program: Program, context: Context, face: Face) -> None:
        self._program, self._context = program, context
        self._binder = Binder(context, face)
        self._operators: dict[str, Operator] = {}
        self._ranges = frozenset(e for e in program.exprs if isinstance(program.node(e), Range | Subquery))
        for expr in program.exprs:
            node = program.node(expr)
            if isinstance(node, Range):
                self._binder.selection(node.selector)
            else:
                root = node.expr if isinstance(node, Subquery) else node
                self._operators[expr] = _located(expr, partial(self._binder.operator, root))

    def at(self, expr: str, t_ms: int) -> Vector | float | str:
        """The value of an instant query at `t_ms`. Raises QueryError, for a range vector too: see `matrix`."""
        if expr in self._ranges:
            raise QueryError("this is a range vector, not an instant vector or a number", expr)
        self._context.begin(t_ms, t_ms)
        return _located(expr, partial(_public_at, self._operators[expr], t_ms))

    def matrix(self, expr: str, t_ms: int) -> tuple[Series, ...]:
        """The samples of an expression that is a range vector, `x[5m]` or a subquery, at `t_ms`. Raises QueryError."""
        node, context = self._program.node(expr), self._context
        context.begin(t_ms, t_ms)
        if isinstance(node, Range):
            return _located(expr, partial(samples, context, node, self._binder.selection(node.selector), t_ms))
        if isinstance(node, Subquery):
            return _located(expr, partial(subquery_samples, context, node, self._operators[expr], t_ms))
        raise QueryError("this is no range vector", expr)

    def over(self, expr: str, start_ms: int, end_ms: int, step_ms: int) -> Iterator[tuple[int, Vector | float]]:
        """A range query: the value at each step. Raises QueryError."""
        if expr in self._ranges:
            raise QueryError("a range query wants an instant vector or a number, not a range vector", expr)
        operator = self._operators[expr]
        if step_ms <= 0:
            raise QueryError("zero or negative query resolution step widths are not accepted", expr)
        for t in range(start_ms, end_ms + 1, step_ms):
            self._context.begin(start_ms, end_ms)
            value = _located(expr, partial(_public_at, operator, t))
            if isinstance(value, str):
                raise QueryError("a string is no result of a range query", expr)
            yield t, value


def _located(expr: str, work: Callable[[], _T]) -> _T:
    """Runs with floating point warnings off; errors get the expression."""
    try:
        with np.errstate(all="ignore"):
            return work()
    except QueryError as e:
        if not e.expr:
            e.expr = expr
        raise
    except RecursionError:
        raise QueryError("nested too deeply", expr) from None


def _public_at(operator: Operator, t_ms: int) -> Vector | float | str:
    return public(operator.at(t_ms), t_ms)


def public(value: Vec | float | str, t_ms: int) -> Vector | float | str:
    """An engine value as a result."""
    if not isinstance(value, Vec):
        return value
    if value.mask is None and value.order is None:
        return Vector(value.frame.labels, np.array(value.values), t_ms)  # a copy: it may be a view of the ring
    if value.mask is not None and not value.mask.any():
        return Vector((), np.zeros(0), t_ms)
    index = value.present()
    labels = value.frame.labels
    return Vector(tuple([labels[i] for i in index.tolist()]), value.values[index], t_ms)


def compile(exprs: Sequence[str]) -> Program:
    """Parses every expression. Raises QueryError for the first that Prometheus 3.5 would refuse."""
    return Program({expr: parse(expr) for expr in exprs})
