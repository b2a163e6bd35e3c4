"""What an experiment needs to know of the measured world, as a Protocol; `app` gives it the store and PromQL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sidecar.model import Labels


@dataclass(frozen=True, slots=True)
class Increments:
    """Non-overlapping increments, (t_ms, value) in order of time; `elements` is the most there were at any one time."""

    samples: Sequence[tuple[int, float]]
    elements: int


class Measure(Protocol):
    """Reads expressions over the past. Every method may raise QueryError."""

    def increments(self, expr: str, after_ms: int, until_ms: int) -> Increments:
        """The newest increment of `expr` at each sample time in (after_ms, until_ms]; no sample where it has none."""
        ...

    def evaluate(self, expr: str, t_ms: int) -> Sequence[tuple[Labels, float]]:
        """The elements of `expr` at `t_ms`."""
        ...

    def seen(self, expr: str, t_ms: int) -> bool:
        """Whether every series name that `expr` reads has a sample that `t_ms` still sees."""
        ...

    def longest_range_ms(self, expr: str) -> int:
        """The longest range selector in `expr`, offsets included; 0 where it has none."""
        ...

    def steps(self, after_ms: int, until_ms: int) -> float | None:
        """Training steps finished in (after_ms, until_ms], by the slowest rank; None where no trainer counts any."""
        ...
