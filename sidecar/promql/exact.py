"""Compensated sums over the rows of an array, bit for bit as Prometheus adds (Kahan with Neumaier's improvement)."""

from __future__ import annotations

import numpy as np

from sidecar.store.cells import F64


def running(values: F64) -> tuple[F64, F64]:
    """All prefix sums along axis 0, as (sum, compensation); the compensation is 0 from where a sum is infinite.

    The error of each addition is recovered exactly from the rounded sums, which gives what the branching algorithm
    gives, one row at a time.
    """
    with np.errstate(all="ignore"):
        sums = np.add.accumulate(values, axis=0)
        before = np.zeros_like(sums)
        before[1:] = sums[:-1]
        added = sums - before
        errors = (before - (sums - added)) + (values - added)
        if not np.isfinite(sums[-1]).all() or not np.isfinite(errors).all():
            return _stepwise(values)
        return sums, np.add.accumulate(errors, axis=0)


def _stepwise(values: F64) -> tuple[F64, F64]:
    sums, rest = np.empty_like(values), np.empty_like(values)
    total, correction = np.zeros(values.shape[1:]), np.zeros(values.shape[1:])
    for i, row in enumerate(values):
        after = total + row
        lost = np.where(np.abs(total) >= np.abs(row), (total - after) + row, (row - after) + total)
        correction = np.where(np.isinf(after), 0.0, correction + lost)
        total = after
        sums[i], rest[i] = total, correction
    return sums, rest


def total(values: F64) -> F64:
    """The sum along axis 0; infinite where a partial sum is, however the rest turns out."""
    sums, rest = running(values)
    last: F64 = sums[-1]
    with np.errstate(all="ignore"):
        out: F64 = np.where(np.isinf(last), last, last + rest[-1])
    return out


def mean(values: F64) -> F64:
    """The mean along axis 0; where the sum overflows, a running mean from there on."""
    count = len(values)
    sums, rest = running(values)
    with np.errstate(all="ignore"):
        out: F64 = sums[-1] / count + rest[-1] / count
        overflown = np.flatnonzero(np.isinf(sums).any(axis=0))
        for column in overflown.tolist():
            out[column] = _running_mean(values[:, column].tolist())
    return out


def _running_mean(values: list[float]) -> float:
    total, correction, average = values[0], 0.0, 0.0
    incremental = False
    for i, value in enumerate(values[1:], start=2):
        count = float(i)
        if not incremental:
            after, lost = kahan(value, total, correction)
            if abs(after) != np.inf:
                total, correction = after, lost
                continue
            incremental = True
            average = total / (count - 1)
            correction /= count - 1
        ratio = (count - 1) / count
        average, correction = kahan(value / count, ratio * average, ratio * correction)
    if incremental:
        return average + correction
    return total / len(values) + correction / len(values)


def kahan(value: float, total: float, correction: float) -> tuple[float, float]:
    """One step of the compensated sum on plain floats."""
    after = total + value
    if abs(after) == np.inf:
        return after, 0.0
    if abs(total) >= abs(value):
        return after, correction + ((total - after) + value)
    return after, correction + ((value - after) + total)
