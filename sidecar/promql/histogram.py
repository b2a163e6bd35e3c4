"""Classic histograms: quantiles and fractions from cumulative `le` buckets."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from sidecar.model import Labels
from sidecar.promql.frame import NAME, Frame, Vec
from sidecar.promql.operator import Context, Operator, Value, checked, scalar, vector
from sidecar.store.cells import F64, I64, Bools

_TOLERANCE = 1e-12  # relative differences between neighbouring buckets that Prometheus takes for rounding
_FEW = 4  # so many histograms are faster one by one
_TINIEST = 2.2250738585072014e-308


@dataclass(frozen=True, slots=True)
class Buckets:
    """The histograms of a frame: `members[h, b]` is bucket b of histogram h, by upper bound; -1 past the last."""

    frame: Frame
    members: I64
    bounds: F64
    regular: bool  # all have the same number of buckets, at least two, with distinct bounds up to +Inf


def buckets_of(frame: Frame) -> Buckets:
    """The frame's histograms, worked out once. Elements without a number in `le` are left out."""
    return frame.derive("buckets", _buckets)


def _bound(text: str) -> float | None:
    if not text.isascii() or text != text.strip() or "_" in text:
        return None
    try:
        return float.fromhex(text) if "x" in text.lower() else float(text)
    except (ValueError, OverflowError):
        return None


def _buckets(frame: Frame) -> Buckets:
    histograms: dict[Labels, list[tuple[float, int]]] = {}
    for i, labels in enumerate(frame.labels):
        bound = _bound(dict(labels).get("le", ""))
        if bound is not None:
            key = tuple(pair for pair in labels if pair[0] != "le")
            histograms.setdefault(key, []).append((bound, i))
    longest = max((len(found) for found in histograms.values()), default=0)
    members = np.full((len(histograms), longest), -1, np.int64)
    bounds = np.full((len(histograms), longest), np.nan)
    regular = longest >= 2
    for h, found in enumerate(histograms.values()):
        found.sort(key=lambda pair: pair[0])
        members[h, : len(found)] = [i for _, i in found]
        bounds[h, : len(found)] = [bound for bound, _ in found]
        distinct = len({bound for bound, _ in found})
        regular = regular and len(found) == distinct == longest and found[-1][0] == np.inf
    names = tuple(tuple(pair for pair in labels if pair[0] != NAME) for labels in histograms)
    return Buckets(Frame(names), members, bounds, regular)


def _almost_equal(a: float, b: float) -> bool:
    difference, size = abs(a - b), abs(a) + abs(b)
    if a == 0 or b == 0 or size < _TINIEST:
        return difference < _TOLERANCE * _TINIEST
    return difference / size < _TOLERANCE


def merged(bounds: list[float], counts: list[float]) -> tuple[list[float], list[float]]:
    """Buckets with the same bound added up."""
    out_bounds: list[float] = []
    out_counts: list[float] = []
    for bound, count in zip(bounds, counts, strict=True):
        if out_bounds and out_bounds[-1] == bound:
            out_counts[-1] += count
        else:
            out_bounds.append(bound)
            out_counts.append(count)
    return out_bounds, out_counts


def rising(counts: list[float]) -> list[float]:
    """The counts with every fall, and every rise too small to mean anything, taken back."""
    out = counts[:1]
    previous = counts[0]
    for count in counts[1:]:
        if count != previous and not _almost_equal(previous, count) and not count < previous:
            previous = count
            out.append(count)
        else:
            out.append(previous)
    return out


def quantile(phi: float, bounds: list[float], counts: list[float]) -> float:
    """The φ-quantile of one histogram, linear inside the bucket it falls in."""
    if math.isnan(phi):
        return math.nan
    if not 0 <= phi <= 1:
        return -math.inf if phi < 0 else math.inf
    if bounds[-1] != math.inf:
        return math.nan
    bounds, counts = merged(bounds, counts)
    counts = rising(counts)
    if len(bounds) < 2 or counts[-1] == 0:
        return math.nan
    rank = phi * counts[-1]
    # bisecting as Prometheus does, which matters when a count is NaN
    b = bisect_left(range(len(counts) - 1), True, key=lambda i: counts[i] >= rank)
    if b == len(counts) - 1:
        return bounds[-2]
    if b == 0 and bounds[0] <= 0:
        return bounds[0]
    start, count = 0.0, counts[b]
    if b > 0:
        start, count, rank = bounds[b - 1], count - counts[b - 1], rank - counts[b - 1]
    return float(start + (bounds[b] - start) * (np.float64(rank) / np.float64(count)))


def quantiles(phi: float, bounds: F64, counts: F64) -> F64:
    """`quantile` of many regular histograms at once: bounds and counts are [histogram, bucket], no NaN among them."""
    before, after = counts[:, :-1], counts[:, 1:]
    odd = (after != before) & (after - before < _TOLERANCE * (np.abs(before) + np.abs(after)))
    if odd.any():
        counts = np.array([rising(row) for row in counts.tolist()])
    total = counts[:, -1]
    rank = phi * total
    b = (counts[:, :-1] < rank[:, None]).sum(axis=1)
    rows, last = np.arange(len(counts)), counts.shape[1] - 1
    inside = np.minimum(b, last - 1)
    below = np.maximum(inside - 1, 0)
    first = inside == 0
    start = np.where(first, 0.0, bounds[rows, below])
    under = np.where(first, 0.0, counts[rows, below])
    out: F64 = start + (bounds[rows, inside] - start) * ((rank - under) / (counts[rows, inside] - under))
    out = np.where(first & (bounds[:, 0] <= 0), bounds[:, 0], out)
    out = np.where(b == last, bounds[:, -2], out)
    return np.where(total == 0, np.nan, out)


def fraction(lower: float, upper: float, bounds: list[float], counts: list[float]) -> float:
    """The share of observations between two values, linear inside buckets; undefined inside the first bucket."""
    if bounds[-1] != math.inf:
        return math.nan
    bounds, counts = merged(bounds, counts)
    total = counts[-1]
    if total == 0 or math.isnan(lower) or math.isnan(upper):
        return math.nan
    if lower >= upper:
        return 0.0
    return float((np.float64(_rank(upper, bounds, counts)) - _rank(lower, bounds, counts)) / total)


def _rank(value: float, bounds: list[float], counts: list[float]) -> float:
    """How many observations are below a value."""
    rank, start = 0.0, -math.inf
    for end, count in zip(bounds, counts, strict=True):
        if start >= value:
            break
        if end > value:
            share = np.float64(value - start) / np.float64(end - start)
            rank = float(rank + (count - rank) * share)
            break
        rank, start = count, end
    else:
        return counts[-1]
    return counts[-1] if rank > counts[-1] else rank


def _of_regular(phi: float, bounds: F64, counts: F64) -> F64:
    if len(counts) > _FEW and 0 <= phi <= 1 and not np.isnan(counts).any():
        return quantiles(phi, bounds, counts)
    rows = zip(bounds.tolist(), counts.tolist(), strict=True)
    return np.array([quantile(phi, *row) for row in rows])


class OfHistograms(Operator):
    """histogram_quantile and histogram_fraction: one element for each classic histogram."""

    def __init__(self, context: Context, vec: Operator, parameters: tuple[Operator, ...]) -> None:
        super().__init__(context, (vec, *parameters))

    def compute(self, t_ms: int, inputs: tuple[Value, ...]) -> Value:
        vec = vector(inputs[0])
        parameters = [scalar(value) for value in inputs[1:]]
        buckets = buckets_of(vec.frame)
        counts = vec.values[buckets.members]
        if len(parameters) == 1 and buckets.regular and (vec.mask is None or vec.mask[buckets.members].all()):
            return checked(Vec(buckets.frame, _of_regular(parameters[0], buckets.bounds, counts)))
        there: Bools = buckets.members >= 0
        if vec.mask is not None:
            there = there & vec.mask[buckets.members]
        values = np.full(len(buckets.frame), np.nan)
        mask = np.asarray(there.any(axis=1))
        for h in np.flatnonzero(mask).tolist():
            own = buckets.bounds[h][there[h]].tolist(), counts[h][there[h]].tolist()
            if len(parameters) == 1:
                values[h] = quantile(parameters[0], *own)
            else:
                values[h] = fraction(parameters[0], parameters[1], *own)
        return checked(Vec(buckets.frame, values, None if mask.all() else mask))
