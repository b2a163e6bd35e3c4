"""Keeps what the collectors cost within a share of a core: slows those that are cheapest to lose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

MAX_STRETCH = 32
ROOM = 0.8  # a collector gets its pace back only where the whole then stays under this share of the budget
_TRIFLE = 0.02  # slowing what costs less than this share of the budget would lose data and gain nothing


@dataclass(frozen=True, slots=True)
class Cost:
    """What one collector used lately at its present stretch, as a ratio of a core."""

    name: str
    ratio: float
    worth: int
    stretch: int = 1


def adjust(costs: Iterable[Cost], budget_ratio: float) -> Mapping[str, int]:
    """The stretch (1, 2, 4 … 32) each collector is to have from now on. Pure.

    Over the budget, the collector worth least is slowed first, by doubling, until the sum is expected to fit or it
    is as slow as it gets; then the next. Under it, the collector worth most is sped up by one step, where the whole
    is expected to keep a fifth of the budget in hand: what is given back too soon is taken away again.
    A collector's cost is taken to fall in proportion to its pace.
    """
    found = list(costs)
    stretch = {c.name: c.stretch for c in found}
    ratio = {c.name: c.ratio for c in found}
    total = sum(ratio.values())
    if total > budget_ratio:
        for cost in sorted(found, key=lambda c: (c.worth, -c.ratio)):
            while total > budget_ratio and stretch[cost.name] < MAX_STRETCH:
                if ratio[cost.name] <= _TRIFLE * budget_ratio:
                    break
                ratio[cost.name] /= 2
                total -= ratio[cost.name]
                stretch[cost.name] *= 2
        return stretch
    for cost in sorted(found, key=lambda c: (-c.worth, c.ratio)):
        if cost.stretch > 1 and total + cost.ratio <= ROOM * budget_ratio:
            stretch[cost.name] //= 2
            break
    return stretch
