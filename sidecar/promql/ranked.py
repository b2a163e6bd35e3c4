"""Aggregations that keep or count elements: topk, bottomk, count_values."""

from __future__ import annotations

import numpy as np

from sidecar.model import Labels
from sidecar.promql.aggregate import group_labels, grouped
from sidecar.promql.frame import Frame, Vec
from sidecar.promql.operator import Context, Operator, Value, scalar, vector
from sidecar.promql.plan import Aggregate
from sidecar.store.cells import F64, I64


class Ranked(Operator):
    """topk and bottomk: the k largest or smallest of each group, with their own labels, best first."""

    def __init__(self, context: Context, node: Aggregate, child: Operator, param: Operator) -> None:
        super().__init__(context, (child, param))
        self._node = node

    def compute(self, t_ms: int, inputs: tuple[Value, ...]) -> Value:
        vec, k = vector(inputs[0]), _whole(scalar(inputs[1]))
        mask = np.zeros(len(vec.frame), bool)
        picked: list[I64] = []
        if k >= 1:
            groups = grouped(vec.frame, self._node.labels, self._node.without)
            present = vec.present()
            key = vec.values[present] if self._node.op == "topk" else -vec.values[present]
            ids = groups.ids[present]
            for group in range(len(groups.frame)):
                inside = np.flatnonzero(ids == group)
                picked.append(present[inside[best(key[inside], k)]])
        chosen = np.concatenate(picked) if picked else np.zeros(0, np.int64)
        mask[chosen] = True
        return Vec(vec.frame, vec.values, mask, np.concatenate((chosen, np.flatnonzero(~mask))))


def best(key: F64, k: int) -> I64:
    """Indexes of the k largest, largest first; NaN loses, and among equals the later series does."""
    order = np.lexsort((np.arange(len(key)), np.where(np.isnan(key), np.inf, -key), np.isnan(key)))
    return order[:k]


def _whole(number: float) -> int:
    if np.isnan(number):
        return 0
    return int(max(min(number, 2**62), -(2**62)))


class CountValues(Operator):
    """count_values: how often each value occurs, the value becoming a label."""

    def __init__(self, context: Context, node: Aggregate, child: Operator, param: Operator) -> None:
        super().__init__(context, (child, param))
        self._node = node

    def compute(self, t_ms: int, inputs: tuple[Value, ...]) -> Value:
        vec, name = vector(inputs[0]), inputs[1]
        assert isinstance(name, str)
        tally: dict[Labels, float] = {}
        for labels, value in vec.items():
            pairs = dict(group_labels(labels, self._node.labels, self._node.without))
            pairs[name] = plain(value)
            key: Labels = tuple(sorted(pairs.items()))
            tally[key] = tally.get(key, 0.0) + 1.0
        return Vec(Frame(tuple(tally)), np.array(list(tally.values()), np.float64))


def plain(value: float) -> str:
    """The shortest decimal text that reads back as the value, never with an exponent."""
    if np.isnan(value):
        return "NaN"
    if np.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return np.format_float_positional(value, trim="-")
