"""Range functions as Prometheus computes them, for many series with the same sample times at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sidecar.errors import QueryError
from sidecar.promql import exact
from sidecar.promql.window import RangeFunction, Result, Samples
from sidecar.store.cells import F64, I64


def extrapolated(s: Samples, counter: bool, per_second: bool) -> Result | None:
    """rate, increase and delta: the change between first and last sample, stretched to the window's borders."""
    if len(s.times) < 2:
        return None
    first, last = s.values[0], s.values[-1]
    change = last - first
    if counter:
        before = s.values[:-1]
        resets = s.values[1:] < before
        for i in np.flatnonzero(resets.any(axis=1)).tolist():
            change = np.where(resets[i], change + before[i], change)
    factor = extrapolation(
        change, first, len(s.times), int(s.times[0]), int(s.times[-1]), s.start_ms, s.end_ms, counter
    )
    if per_second:
        factor = factor / ((s.end_ms - s.start_ms) / 1000)
    return change * factor, None


def extrapolation(
    change: F64,
    first: F64,
    count: int | I64,
    first_ms: int | I64,
    last_ms: int | I64,
    start_ms: int,
    end_ms: int,
    counter: bool,
) -> float | F64:
    """By how much to stretch a change. Counts and times by series or, where all series share them, plain numbers."""
    to_start = (first_ms - start_ms) / 1000
    to_end = (end_ms - last_ms) / 1000
    sampled = (last_ms - first_ms) / 1000
    average = sampled / (count - 1)
    to_start, to_end = _near(to_start, average), _near(to_end, average)
    if counter and not (first * sampled > change * to_start * 1.000001).all():
        # a counter cannot have been below zero: it started no earlier than the line through it says
        to_zero = np.where((change > 0) & (first >= 0), sampled * (first / change), to_start)
        to_start = np.where(to_zero < to_start, to_zero, to_start)
    return (sampled + to_start + to_end) / sampled


def _near(distance: float | F64, average: float | F64) -> float | F64:
    """How far to stretch towards a border: all the way when it is about one sample away, else half a sample."""
    if isinstance(distance, float):
        return average / 2 if distance >= average * 1.1 else distance
    return np.where(distance >= average * 1.1, average / 2, distance)


def instant_change(s: Samples, per_second: bool) -> Result | None:
    """irate and idelta: from the last two samples."""
    if len(s.times) < 2:
        return None
    before, last = s.values[-2], s.values[-1]
    change = np.where(last < before, last, last - before) if per_second else last - before
    if per_second:
        change = change / (int(s.times[-1] - s.times[-2]) / 1000)
    return change, None


def count_over_time(s: Samples) -> Result:
    return np.full(s.values.shape[1], float(len(s.times))), None


def present_over_time(s: Samples) -> Result:
    return np.ones(s.values.shape[1]), None


def last_over_time(s: Samples) -> Result:
    return s.values[-1], None


def sum_over_time(s: Samples) -> Result:
    return exact.total(s.values), None


def avg_over_time(s: Samples) -> Result:
    return exact.mean(s.values), None


def max_over_time(s: Samples) -> Result:
    """NaN only when every sample is."""
    return np.fmax.reduce(s.values, axis=0), None


def min_over_time(s: Samples) -> Result:
    """NaN only when every sample is."""
    return np.fmin.reduce(s.values, axis=0), None


def variance(s: Samples) -> F64:
    """Population variance: Welford's recurrence with both sums compensated."""
    width = s.values.shape[1]
    mean, mean_rest, aux, aux_rest = (np.zeros(width) for _ in range(4))
    for count, value in enumerate(s.values, start=1):
        delta = value - (mean + mean_rest)
        mean, mean_rest = _kahan(delta / count, mean, mean_rest)
        aux, aux_rest = _kahan(delta * (value - (mean + mean_rest)), aux, aux_rest)
    out: F64 = (aux + aux_rest) / len(s.times)
    return out


def _kahan(value: F64, total: F64, rest: F64) -> tuple[F64, F64]:
    after = total + value
    lost = np.where(np.abs(total) >= np.abs(value), (total - after) + value, (value - after) + total)
    return after, np.where(np.isinf(after), 0.0, rest + lost)


def stdvar_over_time(s: Samples) -> Result:
    return variance(s), None


def stddev_over_time(s: Samples) -> Result:
    return np.sqrt(variance(s)), None


def changes(s: Samples) -> Result:
    """Two NaNs in a row are no change."""
    before, after = s.values[:-1], s.values[1:]
    changed = (before != after) & ~(np.isnan(before) & np.isnan(after))
    return changed.sum(axis=0).astype(np.float64), None


def resets(s: Samples) -> Result:
    return (s.values[1:] < s.values[:-1]).sum(axis=0).astype(np.float64), None


def regression(s: Samples, origin_ms: int) -> tuple[F64, F64]:
    """Least squares through the samples: slope per second, and the value at `origin_ms`."""
    seconds = ((s.times - origin_ms) / 1000)[:, None]
    count = len(s.times)
    ones = np.ones(s.values.shape[1])
    x = exact.total(seconds * ones)
    y = exact.total(s.values)
    xy = exact.total(seconds * s.values)
    xx = exact.total(seconds * seconds * ones)
    covariance = xy - x * y / count
    slope = covariance / (xx - x * x / count)
    intercept = y / count - slope * x / count
    constant = (s.values[1:] == s.values[0]).all(axis=0)
    level = np.where(np.isinf(s.values[0]), np.nan, s.values[0])
    slope = np.where(constant, np.where(np.isinf(s.values[0]), np.nan, 0.0), slope)
    return slope, np.where(constant, level, intercept)


def deriv(s: Samples) -> Result | None:
    return None if len(s.times) < 2 else (regression(s, int(s.times[0]))[0], None)


def predict_linear(s: Samples, at_ms: int, ahead_s: float) -> Result | None:
    """The regression line's value `ahead_s` seconds after `at_ms`."""
    if len(s.times) < 2:
        return None
    slope, intercept = regression(s, at_ms)
    return slope * ahead_s + intercept, None


def holt_winters(s: Samples, smoothing: float, trend: float) -> Result | None:
    """Double exponential smoothing, as Prometheus 2 had it by this name. Raises QueryError unless 0 < factor < 1."""
    for what, factor in (("smoothing", smoothing), ("trend", trend)):
        if not 0 < factor < 1:
            raise QueryError(f"invalid {what} factor. Expected: 0 < {what} factor < 1, got: {factor:f}")
    if len(s.times) < 2:
        return None
    before, level, slope = np.zeros(s.values.shape[1]), s.values[0], s.values[1] - s.values[0]
    for number, value in enumerate(s.values[1:]):
        if number:
            slope = trend * (level - before) + (1 - trend) * slope
        before, level = level, smoothing * value + (1 - smoothing) * (level + slope)
    return level, None


def quantile_over_time(s: Samples, phi: float) -> Result:
    return quantile(s.values, phi), None


def quantile(values: F64, phi: float) -> F64:
    """The φ-quantile along axis 0 by linear interpolation; NaN samples sort first."""
    count = len(values)
    if np.isnan(phi):
        return np.full(values.shape[1], np.nan)
    if not 0 <= phi <= 1:
        return np.full(values.shape[1], -np.inf if phi < 0 else np.inf)
    ranked = np.sort(values, axis=0)  # NaN last
    nans = np.isnan(values).sum(axis=0)
    rank = phi * (count - 1)
    low = int(np.floor(rank))
    high = min(count - 1, low + 1)
    weight = rank - low
    columns = np.arange(values.shape[1])
    below = ranked[(low - nans) % count, columns]  # a negative index reaches into the NaNs at the end
    above = ranked[(high - nans) % count, columns]
    out: F64 = below * (1 - weight) + above * weight
    return out


SIMPLE: dict[str, Callable[[Samples], Result | None]] = {
    "avg_over_time": avg_over_time,
    "changes": changes,
    "count_over_time": count_over_time,
    "delta": lambda s: extrapolated(s, counter=False, per_second=False),
    "deriv": deriv,
    "idelta": lambda s: instant_change(s, per_second=False),
    "increase": lambda s: extrapolated(s, counter=True, per_second=False),
    "irate": lambda s: instant_change(s, per_second=True),
    "last_over_time": last_over_time,
    "max_over_time": max_over_time,
    "min_over_time": min_over_time,
    "present_over_time": present_over_time,
    "rate": lambda s: extrapolated(s, counter=True, per_second=True),
    "resets": resets,
    "stddev_over_time": stddev_over_time,
    "stdvar_over_time": stdvar_over_time,
    "sum_over_time": sum_over_time,
}
"""Functions of the window alone; the others also take a parameter."""


def range_function(name: str, t_ms: int, *parameters: float) -> RangeFunction:
    """The named function with its parameters, if it has any, filled in; `t_ms` is the evaluation time."""
    if name == "quantile_over_time":
        return lambda s: quantile_over_time(s, *parameters)
    if name == "predict_linear":
        return lambda s: predict_linear(s, t_ms, *parameters)
    if name == "holt_winters":
        return lambda s: holt_winters(s, *parameters)
    return SIMPLE[name]
