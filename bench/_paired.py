"""Statistics of paired blocks: the same work with and without, in a random order, compared pair by pair.

A machine drifts: clock rate, neighbours, temperature. Two long runs one after the other measure the drift; two short
blocks side by side share it.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

RESAMPLES = 2000
GROUPS = 100


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float

    def at_most(self, limit: float) -> bool | None:
        """None where the interval holds the limit: the machine was too noisy to tell."""
        if self.high <= limit:
            return True
        return False if self.low > limit else None


Pairs = Sequence[tuple[Sequence[float], Sequence[float]]]
"""Times of the steps of blocks that belong together: (with, without)."""


def interleaved(pairs: int, run: Callable[[bool], Sequence[T]], rng: random.Random) -> list[tuple[list[T], list[T]]]:
    """`run(True)` and `run(False)` side by side, `pairs` times, each pair in a random order: [(with, without)]."""
    found = []
    for _ in range(pairs):
        first = rng.random() < 0.5
        blocks = {which: list(run(which)) for which in (first, not first)}
        found.append((blocks[True], blocks[False]))
    return found


def quantile(values: Sequence[float], q: float) -> float:
    """The q-quantile, 0 to 1, nearest rank."""
    ordered = sorted(values)
    return float(ordered[min(len(ordered) - 1, int(q * len(ordered)))])


def added(pairs: Pairs, rng: random.Random) -> Estimate:
    """The median over the pairs of (median with − median without)."""
    differences = [statistics.median(a) - statistics.median(b) for a, b in pairs]
    return _bootstrap(differences, statistics.median, rng)


def added_at(pairs: Pairs, q: float) -> float:
    """The q-quantile of all steps with, less that of all steps without."""
    return quantile([x for a, _ in pairs for x in a], q) - quantile([x for _, b in pairs for x in b], q)


def ratio(pairs: Pairs, rng: random.Random) -> Estimate:
    """Mean time with ÷ mean time without: the geometric mean over the pairs.

    Means, because the client's own thread takes its turn in one step of fifteen, which no median sees. A step over
    three times the median of all steps was preempted by some other program; it counts as three medians, on both sides.
    """
    cap = 3 * statistics.median([x for a, b in pairs for block in (a, b) for x in block])

    def mean(block: Sequence[float]) -> float:
        return statistics.fmean(min(x, cap) for x in block)

    found = _bootstrap([math.log(mean(a) / mean(b)) for a, b in pairs], statistics.fmean, rng)
    return Estimate(math.exp(found.value), math.exp(found.low), math.exp(found.high))


def alternated(
    pairs: int, step: Callable[[bool], T], rng: random.Random, seconds: float = math.inf
) -> list[tuple[T, T]]:
    """`step(True)` and `step(False)` one after the other, `pairs` times, each pair in a random order; fewer where that
    would take longer than `seconds`.
    """
    found: list[tuple[T, T]] = []
    until = time.monotonic() + seconds
    while len(found) < pairs and (not found or time.monotonic() < until):
        first = rng.random() < 0.5
        done = {which: step(which) for which in (first, not first)}
        found.append((done[True], done[False]))
    return found


def ratio_of_steps(pairs: Sequence[tuple[float, float]], rng: random.Random) -> Estimate:
    """Time with ÷ time without of single steps side by side: the geometric mean."""
    found = _mean([math.log(a / b) for a, b in pairs], rng)
    return Estimate(math.exp(found.value), math.exp(found.low), math.exp(found.high))


def added_to_steps(pairs: Sequence[tuple[float, float]], rng: random.Random) -> Estimate:
    """Time with − time without of single steps side by side: the mean."""
    return _mean([a - b for a, b in pairs], rng)


def _mean(values: Sequence[float], rng: random.Random) -> Estimate:
    """The mean, with what lies outside of the middle 90 % drawn to its edge: other programs, on both sides alike.

    The interval comes from the means of groups of neighbours, for what disturbs one pair often disturbs the next.
    """
    low, high = quantile(values, 0.05), quantile(values, 0.95)
    drawn = [min(max(x, low), high) for x in values]
    size = max(1, len(drawn) // GROUPS)
    groups = [statistics.fmean(drawn[n : n + size]) for n in range(0, len(drawn) - size + 1, size)]
    return _bootstrap(groups, statistics.fmean, rng)


def _bootstrap(values: Sequence[float], of: Callable[[Sequence[float]], float], rng: random.Random) -> Estimate:
    resampled = [of(rng.choices(values, k=len(values))) for _ in range(RESAMPLES)]
    return Estimate(of(values), quantile(resampled, 0.025), quantile(resampled, 0.975))
