"""Window functions in exact rational arithmetic: who is right when two floating point algorithms differ."""

from __future__ import annotations

import math
from fractions import Fraction

Sample = tuple[int, float]


def exact(name: str, samples: list[Sample], start_ms: int, end_ms: int, ahead_s: float = 0.0) -> Fraction | None:
    """The function's true value, None where it has none because a sample that matters is not finite."""
    count = len(samples)
    if name in ("rate", "increase", "delta") and count >= 2:
        return _extrapolated(name, samples, start_ms, end_ms)
    if not all(math.isfinite(v) for _, v in samples):
        return None
    values = [Fraction(v) for _, v in samples]
    if name == "sum_over_time":
        return sum(values, Fraction(0))
    if name == "avg_over_time":
        return sum(values, Fraction(0)) / count
    if name in ("stdvar_over_time", "stddev_over_time"):
        mean = sum(values, Fraction(0)) / count
        return sum(((v - mean) ** 2 for v in values), Fraction(0)) / count
    if name in ("deriv", "predict_linear") and count >= 2:
        return _line(name, samples, end_ms, Fraction(ahead_s))
    return None


def _line(name: str, samples: list[Sample], end_ms: int, ahead: Fraction) -> Fraction:
    xs = [Fraction(t - end_ms, 1000) for t, _ in samples]
    ys = [Fraction(v) for _, v in samples]
    n = len(xs)
    x, y = sum(xs, Fraction(0)) / n, sum(ys, Fraction(0)) / n
    slope = sum(((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)), Fraction(0)) / sum(
        ((a - x) ** 2 for a in xs), Fraction(0)
    )
    return slope if name == "deriv" else y + slope * (ahead - x)


def _extrapolated(name: str, samples: list[Sample], start_ms: int, end_ms: int) -> Fraction | None:
    (first_ms, first), (last_ms, last) = samples[0], samples[-1]
    lost = [a for (_, a), (_, b) in zip(samples, samples[1:], strict=False) if b < a] if name != "delta" else []
    if not all(math.isfinite(v) for v in (first, last, *lost)):
        return None
    change = Fraction(last) - Fraction(first) + sum((Fraction(v) for v in lost), Fraction(0))
    sampled = Fraction(last_ms - first_ms, 1000)
    average = sampled / (len(samples) - 1)
    to_start, to_end = Fraction(first_ms - start_ms, 1000), Fraction(end_ms - last_ms, 1000)
    # the threshold is compared in floats, as Prometheus does, for it decides between two different answers
    if float(to_start) >= float(average) * 1.1:
        to_start = average / 2
    if float(to_end) >= float(average) * 1.1:
        to_end = average / 2
    if name != "delta" and change > 0 and first >= 0:
        to_start = min(to_start, sampled * Fraction(first) / change)
    factor = (sampled + to_start + to_end) / sampled
    return change * factor / (Fraction(end_ms - start_ms, 1000) if name == "rate" else 1)


def close(a: float, b: float) -> bool:
    """Equal to 1e-9 relative; NaN equals NaN."""
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    return a == b or abs(a - b) <= 1e-9 * max(abs(a), abs(b))


def at_least_as_good(ours: float, theirs: float, truth: Fraction | None, squared: bool, noise: float) -> bool:
    """Whether `ours` is no further from the truth than `theirs`, or than `noise`.

    With `squared` the truth is that of the square.
    """
    if truth is None or not math.isfinite(ours):
        return False
    if not math.isfinite(theirs):
        return True
    mine, other = Fraction(ours), Fraction(theirs)
    if squared:
        mine, other = mine * mine, other * other
    return abs(mine - truth) <= max(abs(other - truth), abs(truth) * Fraction(1, 10**9), Fraction(noise))


def noise(name: str, samples: list[Sample]) -> float:
    """What rounding alone can make of a line that is level in truth: a few units in the last place of its height."""
    if name not in ("deriv", "predict_linear") or len(samples) < 2:
        return 0.0
    height = max(abs(v) for _, v in samples)
    return 1e-14 * height / ((samples[-1][0] - samples[0][0]) / 1000)
