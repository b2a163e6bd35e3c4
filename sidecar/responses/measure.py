"""What an experiment needs to know of the measured world, as a Protocol; `app` gives it the store and PromQL."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from sidecar.errors import QueryError
from sidecar.model import Labels

_T = TypeVar("_T")


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

    def values(self, expr: str, after_ms: int, until_ms: int) -> Sequence[tuple[int, float]]:
        """The largest element of `expr` at each sample time in (after_ms, until_ms], not a number where one is none."""
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


class OneTick:
    """A Measure that asks another one once about each thing: within one tick hundreds of episodes ask the same."""

    def __init__(self, measure: Measure) -> None:
        self._measure = measure
        self._known: dict[Hashable, Any] = {}

    def increments(self, expr: str, after_ms: int, until_ms: int) -> Increments:
        """As in `Measure`."""
        return self._once(("increments", expr, after_ms, until_ms), self._measure.increments, expr, after_ms, until_ms)

    def evaluate(self, expr: str, t_ms: int) -> Sequence[tuple[Labels, float]]:
        """As in `Measure`."""
        return self._once(("evaluate", expr, t_ms), self._measure.evaluate, expr, t_ms)

    def values(self, expr: str, after_ms: int, until_ms: int) -> Sequence[tuple[int, float]]:
        """As in `Measure`."""
        return self._once(("values", expr, after_ms, until_ms), self._measure.values, expr, after_ms, until_ms)

    def seen(self, expr: str, t_ms: int) -> bool:
        """As in `Measure`."""
        return self._once(("seen", expr, t_ms), self._measure.seen, expr, t_ms)

    def longest_range_ms(self, expr: str) -> int:
        """As in `Measure`."""
        return self._once(("range", expr), self._measure.longest_range_ms, expr)

    def steps(self, after_ms: int, until_ms: int) -> float | None:
        """As in `Measure`."""
        return self._once(("steps", after_ms, until_ms), self._measure.steps, after_ms, until_ms)

    def _once(self, key: Hashable, ask: Callable[..., _T], *args: Any) -> _T:
        if key not in self._known:
            try:
                self._known[key] = ask(*args)
            except QueryError as e:
                self._known[key] = e
        found = self._known[key]
        if isinstance(found, QueryError):
            raise found
        answer: _T = found
        return answer
