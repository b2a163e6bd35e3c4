"""Classic histograms: quantiles and fractions from cumulative `le` buckets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sidecar.model import Labels
from sidecar.promql.frame import NAME, Frame, Vec
from sidecar.promql.operator import Context, Operator, Value, scalar, vector
from sidecar.store.cells import F64, I64, Bools

_TOLERANCE = 1e-12  # relative drops of a bucket below its predecessor that Prometheus takes for rounding


@dataclass(frozen=True, slots=True)
class Buckets:
    """The histograms of a frame: `members[h, b]` is bucket b of histogram h, by upper bound; -1 past the last."""

    frame: Frame
    members: I64
    bounds: F64


def buckets_of(frame: Frame) -> Buckets:
    """The frame's histograms, worked out once. Elements without a number in `le` are left out."""
    return frame.derive("buckets", _buckets)


def _bound(labels: Labels) -> float | None:
    text = dict(labels).get("le", "")
    try:
        return float(text.replace("_", "x"))
    except ValueError:
        return None


def _buckets(frame: Frame) -> Buckets:
    histograms: dict[Labels, list[tuple[float, int]]] = {}
    for i, labels in enumerate(frame.labels):
        bound = _bound(labels)
        if bound is not None:
            key = tuple(pair for pair in labels if pair[0] not in (NAME, "le"))
            histograms.setdefault(key, []).append((bound, i))
    longest = max((len(found) for found in histograms.values()), default=0)
    members = np.full((len(histograms), longest), -1, np.int64)
    bounds = np.full((len(histograms), longest), np.nan)
    for h, found in enumerate(histograms.values()):
        found.sort(key=lambda pair: pair[0])
        members[h, : len(found)] = [i for _, i in found]
        bounds[h, : len(found)] = [bound for bound, _ in found]
    return Buckets(Frame(tuple(histograms)), members, bounds)


@dataclass(frozen=True, slots=True)
class Histogram:
    """One histogram: upper bounds ascending and distinct, cumulative counts that never fall."""

    bounds: list[float]
    counts: list[float]


def assembled(bounds: F64, counts: F64) -> Histogram | None:
    """The histogram as Prometheus mends it; None when it lacks the +Inf bucket or has fewer than two buckets."""
    if not len(bounds) or bounds[-1] != np.inf:
        return None
    merged_bounds: list[float] = []
    merged_counts: list[float] = []
    for bound, count in zip(bounds.tolist(), counts.tolist(), strict=True):
        if merged_bounds and merged_bounds[-1] == bound:
            merged_counts[-1] += count
        else:
            merged_bounds.append(bound)
            merged_counts.append(count)
    previous = merged_counts[0]
    for i in range(1, len(merged_counts)):
        current = merged_counts[i]
        if current == previous:
            continue
        if _almost_equal(previous, current) or current < previous:
            merged_counts[i] = previous
            continue
        previous = current
    if len(merged_bounds) < 2:
        return None
    return Histogram(merged_bounds, merged_counts)


def _almost_equal(a: float, b: float) -> bool:
    difference = abs(a - b)
    size = abs(a) + abs(b)
    if a == 0 or b == 0 or size < np.finfo(float).tiny:
        return difference < _TOLERANCE * np.finfo(float).tiny
    return difference / min(size, np.finfo(float).max) < _TOLERANCE


def quantile(phi: float, histogram: Histogram | None) -> float:
    """The φ-quantile, linear inside the bucket it falls in."""
    if np.isnan(phi):
        return float("nan")
    if phi < 0:
        return float("-inf")
    if phi > 1:
        return float("inf")
    if histogram is None:
        return float("nan")
    bounds, counts = histogram.bounds, histogram.counts
    observations = counts[-1]
    if observations == 0 or np.isnan(observations):
        return float("nan")
    rank = phi * observations
    b = 0
    while b < len(counts) - 1 and not counts[b] >= rank:
        b += 1
    if b == len(counts) - 1:
        return bounds[-2]
    if b == 0 and bounds[0] <= 0:
        return bounds[0]
    start, end, count = 0.0, bounds[b], counts[b]
    if b > 0:
        start = bounds[b - 1]
        count -= counts[b - 1]
        rank -= counts[b - 1]
    return float(start + (end - start) * (np.float64(rank) / np.float64(count)))


def fraction(lower: float, upper: float, histogram: Histogram | None) -> float:
    """The share of observations between two values, linear inside buckets."""
    if histogram is None or not histogram.counts[-1] > 0 or np.isnan(lower) or np.isnan(upper):
        return float("nan")
    if lower >= upper:
        return 0.0
    total = histogram.counts[-1]
    return (_rank(upper, histogram) - _rank(lower, histogram)) / total


def _rank(value: float, histogram: Histogram) -> float:
    """How many observations are below a value."""
    before = 0.0
    start = 0.0 if histogram.bounds[0] > 0 else float("-inf")
    for bound, count in zip(histogram.bounds, histogram.counts, strict=True):
        if value <= start:
            return before
        if value < bound:
            if np.isinf(start) or np.isinf(bound):
                return count if np.isinf(start) else before
            return before + (count - before) * (value - start) / (bound - start)
        before, start = count, bound
    return before


class OfHistograms(Operator):
    """histogram_quantile and histogram_fraction: one element for each classic histogram."""

    def __init__(self, context: Context, vec: Operator, parameters: tuple[Operator, ...]) -> None:
        super().__init__(context, (vec, *parameters))

    def compute(self, t_ms: int, inputs: tuple[Value, ...]) -> Value:
        vec = vector(inputs[0])
        parameters = [scalar(value) for value in inputs[1:]]
        buckets = buckets_of(vec.frame)
        there = buckets.members >= 0
        if vec.mask is not None:
            there &= vec.mask[buckets.members]
        values = np.empty(len(buckets.frame))
        for h, (members, bounds, inside) in enumerate(zip(buckets.members, buckets.bounds, there, strict=True)):
            histogram = assembled(bounds[inside], vec.values[members[inside]])
            if len(parameters) == 1:
                values[h] = quantile(parameters[0], histogram)
            else:
                values[h] = fraction(parameters[0], parameters[1], histogram)
        mask: Bools = there.any(axis=1)
        return Vec(buckets.frame, values, None if mask.all() else mask)
