"""Aggregations with one element a group: sum, avg, min, max, count, group, stddev, stdvar, quantile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sidecar.model import Labels
from sidecar.promql import exact, rangefuncs
from sidecar.promql.frame import NAME, Frame, Vec
from sidecar.promql.operator import Context, Operator, Value, scalar, vector
from sidecar.promql.plan import Aggregate
from sidecar.store.cells import F64, I64


@dataclass(frozen=True, slots=True)
class Bucket:
    """Groups of about the same size: `members[i, j]` is the i-th element of group `groups[j]`, -1 past its end."""

    groups: I64
    members: I64
    ragged: bool


@dataclass(frozen=True, slots=True)
class Groups:
    """How a frame's elements fall into groups."""

    frame: Frame  # one element a group
    ids: I64  # by element
    sizes: I64  # by group
    buckets: tuple[Bucket, ...]


def group_labels(labels: Labels, names: tuple[str, ...], without: bool) -> Labels:
    """The labels of the group an element belongs to."""
    if without:
        return tuple(pair for pair in labels if pair[0] != NAME and pair[0] not in names)
    return tuple(pair for pair in labels if pair[0] in names)


def grouped(frame: Frame, names: tuple[str, ...], without: bool) -> Groups:
    """The groups of a frame, worked out once."""
    return frame.derive(("groups", names, without), lambda f: _group(f, names, without))


def _group(frame: Frame, names: tuple[str, ...], without: bool) -> Groups:
    numbers: dict[Labels, int] = {}
    members: list[list[int]] = []
    for i, labels in enumerate(frame.labels):
        key = group_labels(labels, names, without)
        number = numbers.setdefault(key, len(numbers))
        if number == len(members):
            members.append([])
        members[number].append(i)
    ids = np.zeros(len(frame), np.int64)
    for number, group in enumerate(members):
        ids[group] = number
    # groups within a factor of two of each other share a table, so that padding at most doubles the work
    by_size: dict[int, list[int]] = {}
    for number, group in enumerate(members):
        by_size.setdefault((len(group) - 1).bit_length(), []).append(number)
    buckets = []
    for chosen in by_size.values():
        longest = max(len(members[number]) for number in chosen)
        table = np.full((longest, len(chosen)), -1, np.int64)
        for j, number in enumerate(chosen):
            table[: len(members[number]), j] = members[number]
        buckets.append(Bucket(np.array(chosen, np.int64), table, bool((table < 0).any())))
    sizes = np.array([len(group) for group in members], np.int64)
    return Groups(Frame(tuple(numbers)), ids, sizes, tuple(buckets))


def per_group(groups: Groups, vec: Vec, filler: float, reduce: Callable[[F64], F64]) -> F64:
    """`reduce` along axis 0 of each group's values; elements that are not there are `filler`."""
    out = np.empty(len(groups.frame))
    values = vec.values if vec.mask is None else np.where(vec.mask, vec.values, filler)
    for bucket in groups.buckets:
        table = values[bucket.members]
        if bucket.ragged:
            table[bucket.members < 0] = filler
        out[bucket.groups] = reduce(table)
    return out


def counts(groups: Groups, vec: Vec) -> I64:
    """How many elements of each group are there."""
    if vec.mask is None:
        return groups.sizes
    return np.bincount(groups.ids[vec.mask], minlength=len(groups.frame))


class Folded(Operator):
    """Aggregations that give one element a group."""

    def __init__(self, context: Context, node: Aggregate, child: Operator, param: Operator | None) -> None:
        super().__init__(context, (child,) if param is None else (child, param))
        self._node = node

    def compute(self, t_ms: int, inputs: tuple[Value, ...]) -> Value:
        vec = vector(inputs[0])
        groups = grouped(vec.frame, self._node.labels, self._node.without)
        number = counts(groups, vec)
        values = self._values(groups, vec, number, inputs)
        return Vec(groups.frame, values, None if vec.mask is None or (number > 0).all() else number > 0)

    def _values(self, groups: Groups, vec: Vec, number: I64, inputs: tuple[Value, ...]) -> F64:
        op = self._node.op
        if op == "count":
            return number.astype(np.float64)
        if op == "group":
            return np.ones(len(groups.frame))
        if op == "sum":
            return per_group(groups, vec, 0.0, exact.total)
        if op == "max":
            return per_group(groups, vec, np.nan, lambda x: np.fmax.reduce(x, axis=0))
        if op == "min":
            return per_group(groups, vec, np.nan, lambda x: np.fmin.reduce(x, axis=0))
        if op == "avg":
            return self._mean(groups, vec, number)
        if op in ("stddev", "stdvar"):
            spread = _variance(groups, vec, number)
            return np.sqrt(spread) if op == "stddev" else spread
        return _quantile(groups, vec, scalar(inputs[1]))

    def _mean(self, groups: Groups, vec: Vec, number: I64) -> F64:
        means = per_group(groups, vec, 0.0, exact.total) / number
        for group in np.flatnonzero(~np.isfinite(means) & (number > 0)).tolist():
            means[group] = float(exact.mean(_members(groups, vec, group)[:, None])[0])
        return means


def _members(groups: Groups, vec: Vec, group: int) -> F64:
    inside = groups.ids == group
    members: F64 = vec.values[inside if vec.mask is None else inside & vec.mask]
    return members


def _variance(groups: Groups, vec: Vec, number: I64) -> F64:
    # relative to one member of each group, so that equal values give exactly zero
    anchor = np.zeros(len(groups.frame))
    present = vec.present()[::-1]
    anchor[groups.ids[present]] = vec.values[present]
    away = vec.values - anchor[groups.ids]
    away = away - (per_group(groups, Vec(vec.frame, away, vec.mask), 0.0, exact.total) / number)[groups.ids]
    return per_group(groups, Vec(vec.frame, away * away, vec.mask), 0.0, exact.total) / number


def _quantile(groups: Groups, vec: Vec, phi: float) -> F64:
    out = np.full(len(groups.frame), np.nan)
    for group in range(len(groups.frame)):
        members = _members(groups, vec, group)
        if len(members):
            out[group] = rangefuncs.quantile(members[:, None], phi)[0]
    return out
