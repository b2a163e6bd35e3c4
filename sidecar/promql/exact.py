"""Compensated sums over the rows of an array, bit for bit as Prometheus adds (Kahan with Neumaier's improvement).

Callers keep floating point warnings off: overflow and undefined sums are part of the game.
"""

from __future__ import annotations

import numpy as np

from sidecar.store.cells import F64


def running(values: F64) -> tuple[F64, F64]:
    """All prefix sums along axis 0, as (sum, compensation); the compensation is 0 from where a sum is infinite.

    The error of each addition is recovered exactly from the rounded sums, which gives what the branching algorithm
    gives, one row at a time.
    """
    sums = np.add.accumulate(values, axis=0)
    sums += 0.0  # Prometheus begins at +0, so even the sum of nothing but -0 is +0
    before = np.zeros_like(sums)
    before[1:] = sums[:-1]
    added = sums - before
    rest = np.add.accumulate((before - (sums - added)) + (values - added), axis=0)
    # whatever is not finite on the way leaves a compensation that is not either
    return (sums, rest) if np.isfinite(rest[-1]).all() else _stepwise(values)


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
    out: F64 = sums[-1] + rest[-1]
    return out


def mean(values: F64) -> F64:
    """The mean along axis 0; where the sum overflows, a running mean from there on."""
    count = len(values)
    sums, rest = running(values)
    out: F64 = sums[-1] / count + rest[-1] / count
    if not np.isfinite(out).all():
        for column in np.flatnonzero(np.isinf(sums).any(axis=0)).tolist():
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
