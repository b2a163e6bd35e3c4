"""How large a batch should be: four strategies, each a pure function of what was measured. Sizes are samples.

The requirements name them; where text and formula of theirs disagree, the text is followed, and the formula is offered
under a name of its own (`variance-formula`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

Points = Sequence[tuple[int, float]]
"""(t_ms, value), in order of time."""

SMALLEST, GROWTH, MULTIPLE = 32, 1.25, 16  # of `utilisation`; requirements
FORMULA_CENTRE, FORMULA_SWING, FORMULA_OFFSET = 256, 0.5, 0.1  # of `variance-formula`; requirements
FORMULA_LIMITS = (1, 512)
STABILITY_LIMITS = (4, 64)  # requirements


def by_steps(values: Points, steps: Points) -> list[tuple[float, float]]:
    """(step, value): at which training step each value was taken, between two counts by interpolation.

    Only values within the time that `steps` covers, and only the part after its last fall: a count that falls is a
    trainer that was restarted.
    """
    restart = max((i for i in range(1, len(steps)) if steps[i][1] < steps[i - 1][1]), default=0)
    counted = steps[restart:]
    times = [t for t, _ in counted]
    found = []
    for t, value in values:
        i = bisect_left(times, t)
        if i == len(times) or (i == 0 and times[0] != t):
            continue
        (t1, s1) = counted[i]
        (t0, s0) = counted[i - 1] if i else counted[i]
        share = (t - t0) / (t1 - t0) if t1 > t0 else 1.0
        found.append((s0 + (s1 - s0) * share, value))
    return found


def full_windows(points: Sequence[tuple[float, float]], length: int, count: int) -> list[float] | None:
    """The means over the newest `count` windows of `length` steps, oldest first; None while one of them is empty or
    the oldest has not been seen from its beginning.
    """
    if not points:
        return None
    last = points[-1][0]
    if points[0][0] > last - length * count:
        return None
    means = []
    for n in range(count, 0, -1):
        since, until = last - length * n, last - length * (n - 1)
        inside = [v for s, v in points if since < s <= until and math.isfinite(v)]
        if not inside:
            return None
        means.append(sum(inside) / len(inside))
    return means


def spread(points: Sequence[tuple[float, float]], length: int, least: int) -> tuple[float, float] | None:
    """(mean, variance) of the values over the newest `length` steps, or over as many more as hold `least` values.

    None where fewer steps or values have been seen, or one is not finite: a gradient that overflowed says nothing.
    """
    if not points or points[0][0] > points[-1][0] - length:
        return None
    inside = [v for s, v in points if s > points[-1][0] - length]
    if len(inside) < least:
        inside = [v for _, v in points[-least:]]
    if len(inside) < least or not all(map(math.isfinite, inside)):
        return None
    mean = sum(inside) / len(inside)
    return mean, sum((v - mean) ** 2 for v in inside) / (len(inside) - 1)


def grown(batch: int, growth: float = GROWTH, multiple: int = MULTIPLE) -> int:
    """`utilisation`, the way up: a quarter more, rounded up to a multiple of 16, at least 32."""
    return max(SMALLEST, math.ceil(batch * growth / multiple - 1e-9) * multiple)


def before_growth(batch: int, growth: float = GROWTH, multiple: int = MULTIPLE) -> int:
    """`utilisation`, the way back: the size from which growing led to this one or beyond it, at least 32."""
    size = SMALLEST
    while (following := grown(size, growth, multiple)) < batch:
        size = following
    return size if size < batch else batch


def steadied(batch: int, relative_variance: float, high: float, low: float) -> int:
    """`stability`: half of it where gradients vary much from step to step, twice where they hardly do."""
    if relative_variance > high:
        return max(1, batch // 2)
    return batch * 2 if relative_variance < low else batch


def from_variance(variance: float) -> int:
    """`variance-formula`: 256·(1 + 0.5·tanh(variance − 0.1)), clipped to 1..512, rounded to a whole number.

    As documented in the requirements, where a higher variance makes the batch larger.
    """
    wanted = FORMULA_CENTRE * (1 + FORMULA_SWING * math.tanh(variance - FORMULA_OFFSET))
    return min(max(round(wanted), FORMULA_LIMITS[0]), FORMULA_LIMITS[1])


def scheduled(step: float, start: int, peak: int, warmup_steps: int, total_steps: int) -> float:
    """`warmup-decay`: from `start` up to `peak` in a line over the warm-up, then down with the square root of what is
    left of the run. Before the first step it is `start`, at and past the end 0: whoever uses it sets the least.
    """
    if warmup_steps and step < warmup_steps:
        return start + (peak - start) * max(0.0, step) / warmup_steps
    left = (total_steps - step) / max(1, total_steps - warmup_steps)
    return peak * math.sqrt(min(1.0, max(0.0, left)))
