"""Batch sizes that fit: within bounds, a multiple where one is asked for, dividing what one optimizer step holds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from sidecar.model import Knob

MICRO, ACCUMULATION, LR = "micro_batch_size", "accumulation_steps", "lr_factor"


@dataclass(frozen=True, slots=True)
class Room:
    """Where a micro batch may end up: a multiple of `multiple` in [`low`, `high`].

    With `whole`, the samples of one optimizer step on a rank, only sizes that divide it: the accumulation then makes
    up for the change, and what the optimizer sees stays the same.
    """

    low: int
    high: int
    multiple: int = 1
    whole: int | None = None

    def sizes(self, since: int, until: int) -> Iterable[int]:
        """Every size that fits in [since, until], smallest first."""
        first = max(self.low, since, 1)
        last = min(self.high, until)
        if self.whole is not None:
            return (d for d in divisors(self.whole) if first <= d <= last and d % self.multiple == 0)
        start = -(-first // self.multiple) * self.multiple
        return range(start, last + 1, self.multiple)

    def towards(self, target: int, now: int) -> int | None:
        """The size for a wish: at the target or just beyond it, else the nearest before it; None where none is.

        Never against the direction of the wish, and never `now` itself.
        """
        if target > now:
            beyond = next(iter(self.sizes(target, self.high)), None)
            return beyond if beyond is not None else max(self.sizes(now + 1, target), default=None)
        if target < now:
            beyond = max(self.sizes(self.low, target), default=None)
            return beyond if beyond is not None else min(self.sizes(target, now - 1), default=None)
        return None


def divisors(whole: int) -> list[int]:
    """Of a positive number, smallest first."""
    small = [d for d in range(1, math.isqrt(whole) + 1) if whole % d == 0]
    return small + [whole // d for d in reversed(small) if d * d != whole]


def bounded(low: int, high: int | None, knob: Knob) -> tuple[int, int]:
    """The tighter of a response's bounds and the trainer's own. `high` None: the trainer's own alone."""
    lows, highs = [low], [] if high is None else [high]
    if knob.minimum is not None:
        lows.append(math.ceil(knob.minimum))
    if knob.maximum is not None:
        highs.append(math.floor(knob.maximum))
    return max(lows), min(highs, default=1 << 30)
