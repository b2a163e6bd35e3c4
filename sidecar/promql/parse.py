"""Text to plan: promql-parser reads it, we refuse what Prometheus 3.5 refuses, and keep only our own frozen nodes."""

from __future__ import annotations

import re
from datetime import timedelta
from functools import cache
from typing import Any

import promql_parser as pp

from sidecar.errors import QueryError
from sidecar.promql import text
from sidecar.promql.functions import FUNCTIONS, RENAMED
from sidecar.promql.misplaced import misplaced
from sidecar.promql.plan import (
    Aggregate,
    At,
    Binary,
    Call,
    Card,
    Matcher,
    Matching,
    Negate,
    Node,
    Number,
    Op,
    Range,
    Selector,
    Subquery,
    Text,
)
from sidecar.promql.regex import check
from sidecar.promql.spelling import respelled, without_unary_plus

_MAX_LENGTH = 65_536
_MAX_DEPTH = 300  # the parser and everything after it recurse; it crashes somewhere above 2000
_TIME = re.compile(r"tv_sec: (-?\d+),\s+tv_nsec: (\d+)")
_OPS = {
    "MatchOp.Equal": Op.EQUAL,
    "MatchOp.NotEqual": Op.NOT_EQUAL,
    "MatchOp.Re": Op.MATCH,
    "MatchOp.NotRe": Op.NO_MATCH,
}
_CARDS = {
    "VectorMatchCardinality.ManyToOne": Card.MANY_TO_ONE,
    "VectorMatchCardinality.OneToMany": Card.ONE_TO_MANY,
}


def parse(expr: str) -> Node:
    """Raises QueryError for everything Prometheus 3.5 with default flags does not accept."""
    try:
        return _Reader(expr).node(syntax_tree(expr))
    except RecursionError:
        raise QueryError("nested too deeply", expr) from None
    except (ValueError, OverflowError):  # the parser keeps times that its Python side cannot show
        raise QueryError("duration or time out of range", expr) from None


def syntax_tree(expr: str) -> Any:
    """The parser's own tree. Raises QueryError."""
    if len(expr) > _MAX_LENGTH:
        raise QueryError(f"expression longer than {_MAX_LENGTH} characters", expr)
    if text.depth(expr) > _MAX_DEPTH:
        raise QueryError(f"more than {_MAX_DEPTH} nested operators and brackets", expr)
    if token := text.overflowing_number(expr):
        raise QueryError(f"number out of range: {token.text}", expr, token.offset)
    try:
        tree = _parsed(respelled(expr))
        if (guise := without_unary_plus(expr)) is not None:
            _parsed(respelled(guise))
    except ValueError as e:
        message = str(e).strip() or "invalid promql query"
        if not expr.strip():
            raise QueryError("no expression", expr, 0) from None
        offset = text.locate(expr, message)
        if offset < 0 and (found := misplaced(expr)) is not None:
            offset = found[1]
            message = found[0] if message == "invalid promql query" else message
        raise QueryError(message, expr, offset) from None
    return tree


@cache
def _know_old_names() -> None:
    """The parser keeps its own list of functions, a process's."""
    takes = [pp.ValueType.Matrix, pp.ValueType.Scalar, pp.ValueType.Scalar]
    pp.register_extra_functions([pp.Function(name, takes, pp.ValueType.Vector) for name in RENAMED])


def _parsed(expr: str) -> Any:
    """Raises ValueError."""
    _know_old_names()
    try:
        return pp.parse(expr)
    except BaseException as e:
        if type(e).__name__ != "PanicException":
            raise
        raise ValueError("the parser cannot read this") from None


class _Reader:
    """Turns the parser's nodes into ours."""

    def __init__(self, expr: str) -> None:
        self._expr = expr

    def _refuse(self, message: str, word: str = "") -> QueryError:
        return QueryError(message, self._expr, text.first_word(self._expr, word) if word else -1)

    def node(self, tree: Any) -> Node:
        match tree:
            case pp.ParenExpr():
                return self.node(tree.expr)
            case pp.NumberLiteral():
                return Number.of(float(tree.val))
            case pp.StringLiteral():
                return Text(tree.val)
            case pp.VectorSelector():
                return self._selector(tree)
            case pp.MatrixSelector():
                return Range(self._selector(tree.vector_selector), self._length(tree.range))
            case pp.SubqueryExpr():
                step = None if tree.step is None else max(self._length(tree.step), 1)
                return Subquery(
                    self.node(tree.expr), self._length(tree.range), step, self._duration(tree.offset), self._at(tree)
                )
            case pp.UnaryExpr():
                return Negate(self.node(tree.expr))
            case pp.BinaryExpr():
                return self._binary(tree)
            case pp.AggregateExpr():
                return self._aggregate(tree)
            case pp.Call():
                return self._call(tree)
        raise self._refuse(f"unsupported expression {type(tree).__name__}")

    def _length(self, length: timedelta | None) -> int:
        if not length:
            raise self._refuse("duration must be greater than 0", "[")
        return self._duration(length)

    def _duration(self, length: timedelta | None) -> int:
        if length is None:
            return 0
        microseconds = length // timedelta(microseconds=1)
        if abs(microseconds) * 1000 >= 1 << 63:
            raise self._refuse("duration out of range")
        return int(microseconds / 1000)  # towards zero, as Prometheus does

    def _at(self, tree: Any) -> At | None:
        if tree.at is None:
            return None
        if tree.at.type == pp.AtModifierType.Start:
            return "start"
        if tree.at.type == pp.AtModifierType.End:
            return "end"
        # read from the tree as text, whose last time is this one: asked for a time before 1970, the parser panics
        seconds, nanoseconds = _TIME.findall(repr(tree))[-1]
        at_ms = int(seconds) * 1000 + round(int(nanoseconds) / 1e6)
        if abs(at_ms) >= 1 << 63:
            raise self._refuse("timestamp out of bounds for @ modifier", "@")
        return at_ms

    def _selector(self, tree: Any) -> Selector:
        if tree.matchers.or_matchers:
            raise self._refuse("`or` between label matchers is not PromQL", "or")
        metric = tree.name or ""
        matchers = []
        for m in tree.matchers.matchers:
            matcher = Matcher(m.name, _OPS[str(m.op)], m.value)
            if matcher.op in (Op.MATCH, Op.NO_MATCH) and (problem := check(matcher.value)):
                raise self._refuse(f"{matcher.name}{matcher.op.value}{matcher.value!r}: {problem}")
            if matcher.name == "__name__" and matcher.op is Op.EQUAL and matcher.value and not metric:
                metric = matcher.value
            else:
                matchers.append(matcher)
        return Selector(metric, tuple(sorted(matchers, key=repr)), self._duration(tree.offset), self._at(tree))

    def _binary(self, tree: Any) -> Binary:
        op, modifier = str(tree.op), tree.modifier
        left, right = self.node(tree.lhs), self.node(tree.rhs)
        if modifier is None:
            return Binary(op, left, right)
        fill = modifier.fill_values
        if fill is not None and (fill.lhs is not None or fill.rhs is not None):
            raise self._refuse("fill modifiers are not in Prometheus 3.5", "fill")
        labels: tuple[str, ...] = ()
        on = False
        if modifier.matching is not None:
            labels = tuple(sorted(set(modifier.matching.labels)))
            on = modifier.matching.type == pp.LabelModifierType.Include
        card = _CARDS.get(str(modifier.card), Card.ONE_TO_ONE)
        include = tuple(modifier.group_labels or ())
        return Binary(op, left, right, Matching(labels, on, card, include), bool(modifier.return_bool))

    def _aggregate(self, tree: Any) -> Aggregate:
        op = str(tree.op)
        if op in ("limitk", "limit_ratio"):
            raise self._refuse(f"{op}() is experimental in Prometheus", op)
        labels: tuple[str, ...] = ()
        without = False
        if tree.modifier is not None:
            labels = tuple(sorted(set(tree.modifier.labels)))
            without = tree.modifier.type == pp.AggModifierType.Without
        param = None if tree.param is None else self.node(tree.param)
        return Aggregate(op, self.node(tree.expr), param, labels, without)

    def _call(self, tree: Any) -> Call:
        name = tree.func.name
        if name not in FUNCTIONS:
            why = "is experimental in Prometheus" if tree.func.experimental else "is unknown to Prometheus 3.5"
            raise self._refuse(f"function {name!r} {why}", name)
        return Call(name, tuple(self.node(arg) for arg in tree.args), FUNCTIONS[name])
