"""Operators between scalars and vectors: arithmetic, comparisons, matching, and the set operators."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sidecar.errors import QueryError
from sidecar.model import Labels
from sidecar.promql.frame import NAME, Frame, Vec, both, keep
from sidecar.promql.operator import Context, Operator, Value, checked, scalar, vector
from sidecar.promql.plan import COMPARISONS, Binary, Card, Matching
from sidecar.store.cells import F64, I64, Bools

Arithmetic = Callable[[F64, F64], F64]

ARITHMETIC: dict[str, Arithmetic] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "%": np.fmod,
    "^": np.power,
    "atan2": np.arctan2,
}
COMPARE: dict[str, Callable[[F64, F64], Bools]] = {
    "==": np.equal,
    "!=": np.not_equal,
    ">": np.greater,
    "<": np.less,
    ">=": np.greater_equal,
    "<=": np.less_equal,
}


class Scalars(Operator):
    """Two numbers."""

    def __init__(self, context: Context, op: str, left: Operator, right: Operator) -> None:
        super().__init__(context, (left, right))
        self._op = op

    def compute(self, t_ms: int, inputs: tuple[Value, ...]) -> Value:
        left, right = np.float64(scalar(inputs[0])), np.float64(scalar(inputs[1]))
        function = COMPARE.get(self._op) or ARITHMETIC[self._op]
        return float(function(left, right))  # type: ignore[arg-type]


class VectorScalar(Operator):
    """A vector and a number, in either order."""

    def __init__(self, context: Context, node: Binary, left: Operator, right: Operator, swapped: bool) -> None:
        super().__init__(context, (left, right))
        self._node, self._swapped = node, swapped
        self._compare = COMPARE.get(node.op)
        self._arithmetic = ARITHMETIC.get(node.op)

    def compute(self, t_ms: int, inputs: tuple[Value, ...]) -> Value:
        vec = vector(inputs[self._swapped])
        number = scalar(inputs[1 - self._swapped])
        left, right = (number, vec.values) if self._swapped else (vec.values, number)
        if self._arithmetic is not None:
            values = self._arithmetic(left, right)  # type: ignore[arg-type]
            return checked(Vec(vec.frame.nameless(), values, vec.mask, vec.order))
        assert self._compare is not None
        holds = self._compare(left, right)  # type: ignore[arg-type]
        if self._node.returns_bool:
            return checked(Vec(vec.frame.nameless(), holds.astype(np.float64), vec.mask, vec.order))
        return Vec(vec.frame, vec.values, keep(vec.mask, holds), vec.order)


def signature(labels: Labels, matching: Matching) -> Labels:
    """The part of a label set by which elements find each other."""
    names = matching.labels
    if matching.on:
        return tuple(pair for pair in labels if pair[0] in names)
    return tuple(pair for pair in labels if pair[0] != NAME and pair[0] not in names)


def signatures(frame: Frame, matching: Matching) -> tuple[Labels, ...]:
    """The signature of each element."""
    return frame.derive(
        ("signatures", matching.on, matching.labels),
        lambda f: tuple(signature(labels, matching) for labels in f.labels),
    )


class VectorVector(Operator):
    """Arithmetic or comparison between two vectors, element by matching element."""

    def __init__(self, context: Context, node: Binary, left: Operator, right: Operator) -> None:
        super().__init__(context, (left, right))
        self._node = node
        self._compare = COMPARE.get(node.op)
        self._arithmetic = ARITHMETIC.get(node.op)
        self._frames: tuple[Frame, Frame] | None = None
        self._table: Table | None = None

    def compute(self, t_ms: int, inputs: tuple[Value, ...]) -> Value:
        left, right = vector(inputs[0]), vector(inputs[1])
        if self._frames is None or self._frames[0] is not left.frame or self._frames[1] is not right.frame:
            self._table = Table.of(left.frame, right.frame, self._node)
            self._frames = (left.frame, right.frame)
        table = self._table
        if table is None:
            # some label sets clash: what counts is which of them are there now
            left, right = compacted(left), compacted(right)
            table = Table.of(left.frame, right.frame, self._node, strict=True)
            assert table is not None
        a, b = left.values[table.left], right.values[table.right]
        mask = both(
            None if left.mask is None else left.mask[table.left],
            None if right.mask is None else right.mask[table.right],
        )
        if self._arithmetic is not None:
            return Vec(table.frame, self._arithmetic(a, b), mask)
        assert self._compare is not None
        holds = self._compare(a, b)
        if self._node.returns_bool:
            return Vec(table.frame, holds.astype(np.float64), mask)
        return Vec(table.frame, b if self._node.matching.card is Card.ONE_TO_MANY else a, keep(mask, holds))


def compacted(vec: Vec) -> Vec:
    """The vector with only the elements that are there."""
    if vec.mask is None:
        return vec
    index = np.flatnonzero(vec.mask)
    labels = vec.frame.labels
    return Vec(Frame(tuple(labels[i] for i in index.tolist())), vec.values[index])


class Table:
    """Which element of the left meets which of the right, and the labels of what comes out."""

    __slots__ = ("frame", "left", "right")

    def __init__(self, left: I64, right: I64, frame: Frame) -> None:
        self.left, self.right, self.frame = left, right, frame

    @classmethod
    def of(cls, left: Frame, right: Frame, node: Binary, strict: bool = False) -> Table | None:
        """None where label sets clash, or with `strict` a QueryError."""
        matching = node.matching
        flipped = matching.card is Card.ONE_TO_MANY
        many, one = (right, left) if flipped else (left, right)
        side = "left" if flipped else "right"
        lookup: dict[Labels, int] = {}
        for i, sig in enumerate(signatures(one, matching)):
            if sig in lookup:
                if not strict:
                    return None
                raise QueryError(_duplicate(one, lookup[sig], i, side, sig))
            lookup[sig] = i
        pairs_many: list[int] = []
        pairs_one: list[int] = []
        labels: list[Labels] = []
        used: set[Labels] = set()
        made: set[Labels] = set()
        for i, sig in enumerate(signatures(many, matching)):
            j = lookup.get(sig)
            if j is None:
                continue
            out = _result(many.labels[i], one.labels[j], node)
            if matching.card is Card.ONE_TO_ONE:
                if sig in used:
                    if not strict:
                        return None
                    raise QueryError(
                        "multiple matches for labels: many-to-one matching must be explicit (group_left/group_right)"
                    )
                used.add(sig)
            elif out in made:
                if not strict:
                    return None
                raise QueryError("multiple matches for labels: grouping labels must ensure unique matches")
            made.add(out)
            pairs_many.append(i)
            pairs_one.append(j)
            labels.append(out)
        if len(made) < len(labels):
            if not strict:
                return None
            raise QueryError("vector cannot contain metrics with the same labelset")
        a, b = np.array(pairs_many, np.int64), np.array(pairs_one, np.int64)
        return cls(b, a, Frame(tuple(labels))) if flipped else cls(a, b, Frame(tuple(labels)))


def _duplicate(frame: Frame, first: int, second: int, side: str, sig: Labels) -> str:
    def show(labels: Labels) -> str:
        return "{" + ", ".join(f'{name}="{value}"' for name, value in labels) + "}"

    return (
        f"found duplicate series for the match group {show(sig)} on the {side} hand-side of the operation: "
        f"[{show(frame.labels[second])}, {show(frame.labels[first])}];"
        "many-to-many matching not allowed: matching labels must be unique on one side"
    )


def _result(many: Labels, one: Labels, node: Binary) -> Labels:
    matching = node.matching
    if node.op not in COMPARISONS or node.returns_bool:
        many = tuple(pair for pair in many if pair[0] != NAME)
    if matching.card is Card.ONE_TO_ONE:
        if matching.on:
            return tuple(pair for pair in many if pair[0] in matching.labels)
        return tuple(pair for pair in many if pair[0] not in matching.labels)
    if not matching.include:
        return many
    given = dict(one)
    kept = [pair for pair in many if pair[0] not in matching.include]
    kept += [(name, given[name]) for name in set(matching.include) if given.get(name)]
    return tuple(sorted(kept))


class SetOperator(Operator):
    """`and`, `or`, `unless`: elements of one side by what the other side has."""

    def __init__(self, context: Context, node: Binary, left: Operator, right: Operator) -> None:
        super().__init__(context, (left, right))
        self._node = node
        self._frames: tuple[Frame, Frame] | None = None
        self._ids: tuple[I64, I64, int] = (np.zeros(0, np.int64), np.zeros(0, np.int64), 0)
        self._joined = Frame(())

    def compute(self, t_ms: int, inputs: tuple[Value, ...]) -> Value:
        left, right = vector(inputs[0]), vector(inputs[1])
        if self._frames is None or self._frames[0] is not left.frame or self._frames[1] is not right.frame:
            self._number(left.frame, right.frame)
        left_ids, right_ids, count = self._ids
        has = np.zeros(count, bool)
        if self._node.op == "or":
            has[left_ids if left.mask is None else left_ids[left.mask]] = True
            extra = keep(right.mask, ~has[right_ids])
            mask = np.concatenate((_full(left), np.ones(len(right.frame), bool) if extra is None else extra))
            values = np.concatenate((left.values, right.values))
            order = (
                np.concatenate((left.order, len(left.frame) + np.arange(len(right.frame))))
                if (left.order is not None)
                else None
            )
            return checked(Vec(self._joined, values, mask, order))
        has[right_ids if right.mask is None else right_ids[right.mask]] = True
        met = has[left_ids]
        return Vec(left.frame, left.values, keep(left.mask, met if self._node.op == "and" else ~met), left.order)

    def _number(self, left: Frame, right: Frame) -> None:
        numbers: dict[Labels, int] = {}
        matching = self._node.matching
        a, b = (
            np.array([numbers.setdefault(sig, len(numbers)) for sig in signatures(side, matching)], np.int64)
            for side in (left, right)
        )
        self._ids = (a, b, len(numbers))
        self._frames = (left, right)
        if self._node.op == "or":
            self._joined = Frame(left.labels + right.labels)


def _full(vec: Vec) -> Bools:
    return np.ones(len(vec.frame), bool) if vec.mask is None else vec.mask
