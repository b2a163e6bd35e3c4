"""From a recorded step to its culprit: the operation that first made a value that is not finite.

Pure: a step is a list of operations in the order they ran, each with the smallest and largest value it gave and with
the operations that made its inputs. The search goes back from where the trouble arrived. Minus infinity is also what
attention masks are made of, so an operation that only fills in constants is not blamed for what becomes of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

FILLERS = frozenset(
    {"full", "full_like", "new_full", "fill", "fill_", "masked_fill", "masked_fill_", "where", "scalar_tensor"}
    | {"tril", "triu", "lift_fresh"}
)


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation. `low` and `high` are NaN where any value is NaN."""

    name: str  # e.g. exp
    module: str  # the innermost module it ran in, e.g. encoder.2.attention; empty outside of all
    direction: str  # forward, backward, or outside for what came into the step
    sources: tuple[int, ...]  # positions of the operations that made its inputs
    low: float
    high: float

    @property
    def grade(self) -> int:
        """0 finite, 1 minus infinity, 2 plus infinity, 3 not a number."""
        if self.low != self.low or self.high != self.high:
            return 3
        return 2 if self.high == math.inf else 1 if self.low == -math.inf else 0


def first_bad(operations: Sequence[Operation], arrived: Sequence[int]) -> int | None:
    """The position of the culprit of what is not finite in `arrived`; None where all of that is finite."""
    bad = [n for n in arrived if operations[n].grade]
    if not bad:
        return None
    path = [max(bad, key=lambda n: (operations[n].grade > 1, -n))]
    while True:
        sources = [n for n in operations[path[-1]].sources if n < path[-1] and operations[n].grade]
        if not sources:
            break
        path.append(max(sources, key=lambda n: (operations[n].grade > 1, -n)))
    if not _fills(operations[path[-1]]):
        return path[-1]
    for later, earlier in zip(reversed(path[:-1]), reversed(path), strict=False):
        made = operations[later]
        if made.grade > operations[earlier].grade and made.name not in FILLERS:
            return later
    return path[-1]


def _fills(operation: Operation) -> bool:
    """Whether it only brings a constant in; a mask may also come with the batch or lie in a buffer."""
    return operation.name in FILLERS or (operation.direction == "outside" and operation.grade == 1)
