"""Operators between scalars and vectors: arithmetic, comparisons, matching, and the set operators."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sidecar.errors import QueryError
from sidecar.model import Labels
from sidecar.promql.frame import Frame, Vec, both, keep
from sidecar.promql.matching import Table, signatures
from sidecar.promql.operator import Context, Operator, Value, checked, scalar, vector
from sidecar.promql.plan import Binary
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
            self._table = _table(left.frame, right.frame, self._node)
            self._frames = (left.frame, right.frame)
        table = self._table
        if table is None:
            # some label sets clash: what counts is which of them are there now
            left, right = compacted(left), compacted(right)
            if not len(left) or not len(right):
                return Vec(Frame(()), np.zeros(0))
            table = Table.of(left.frame, right.frame, self._node)
        a, b = left.values[table.left], right.values[table.right]
        mask = both(
            None if left.mask is None else left.mask[table.left],
            None if right.mask is None else right.mask[table.right],
        )
        if self._arithmetic is not None:
            values = self._arithmetic(a, b)
        else:
            assert self._compare is not None
            holds = self._compare(a, b)
            if self._node.returns_bool:
                values = holds.astype(np.float64)
            else:
                values, mask = a, keep(mask, holds)
        out = Vec(table.frame, values, mask)
        if table.ambiguous:
            table.verify(out.present())
            checked(out)
        return out


def _table(left: Frame, right: Frame, node: Binary) -> Table | None:
    try:
        return Table.of(left, right, node)
    except QueryError:
        return None  # an error only while the elements that clash are there at the same time


def compacted(vec: Vec) -> Vec:
    """The vector with only the elements that are there."""
    if vec.mask is None:
        return vec
    index = np.flatnonzero(vec.mask)
    labels = vec.frame.labels
    return Vec(Frame(tuple(labels[i] for i in index.tolist())), vec.values[index])


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
