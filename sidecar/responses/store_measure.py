"""The measured world as it is in the store, read with PromQL."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sidecar import promql
from sidecar.model import Labels
from sidecar.responses.measure import Increments
from sidecar.store import Store

STEPS = "spikewatch_trainer_steps_total"
"""Counts steps, one series a rank."""


@dataclass(frozen=True, slots=True)
class _Compiled:
    metrics: frozenset[str]
    longest_range_ms: int
    newest: str  # the expression reduced to its newest increments
    evaluator: promql.Evaluator  # of the expression, of `newest`, and of each metric's bare selector


class StoreMeasure:
    """Implements `measure.Measure`; an expression is compiled when it is first asked about."""

    def __init__(self, store: Store, interval_ms: int = 1000, *, steps_metric: str = STEPS) -> None:
        """`interval_ms` is the default step of subqueries."""
        self._store, self._interval_ms, self._steps = store, interval_ms, steps_metric
        self._known: dict[str, _Compiled] = {}

    def increments(self, expr: str, after_ms: int, until_ms: int) -> Increments:
        """As in `measure.Measure`."""
        compiled = self._compiled(expr)
        samples: list[tuple[int, float]] = []
        most = 0
        for t in self._times(compiled, after_ms, until_ms):
            elements = _elements(compiled.evaluator.at(compiled.newest, t))
            most = max(most, len(elements))
            if len(elements) == 1:
                samples.append((t, elements[0][1]))
        return Increments(samples, most)

    def evaluate(self, expr: str, t_ms: int) -> list[tuple[Labels, float]]:
        """As in `measure.Measure`."""
        return _elements(self._compiled(expr).evaluator.at(expr, t_ms))

    def values(self, expr: str, after_ms: int, until_ms: int) -> list[tuple[int, float]]:
        """As in `measure.Measure`."""
        compiled = self._compiled(expr)
        found = []
        for t in self._times(compiled, after_ms, until_ms):
            elements = [value for _, value in _elements(compiled.evaluator.at(expr, t))]
            if elements:
                found.append((t, max(elements) if all(v == v for v in elements) else math.nan))
        return found

    def seen(self, expr: str, t_ms: int) -> bool:
        """As in `measure.Measure`."""
        compiled = self._compiled(expr)
        return all(_elements(compiled.evaluator.at(_selector(name), t_ms)) for name in compiled.metrics)

    def longest_range_ms(self, expr: str) -> int:
        """As in `measure.Measure`."""
        return self._compiled(expr).longest_range_ms

    def steps(self, after_ms: int, until_ms: int) -> float | None:
        """As in `measure.Measure`."""
        expr = f"min(increase({_selector(self._steps)}[{max(1, until_ms - after_ms)}ms]))"
        elements = _elements(promql.evaluate(self._store, expr, until_ms, self._interval_ms))
        return elements[0][1] if elements else None

    def _compiled(self, expr: str) -> _Compiled:
        if expr not in self._known:
            metrics = promql.compile([expr]).metrics(expr)
            newest = promql.increments(expr)
            program = promql.compile([expr, newest, *(_selector(name) for name in metrics)])
            # Times go back and forth here, which the incremental face does not allow.
            evaluator = program.bind(self._store, "naive", self._interval_ms)
            self._known[expr] = _Compiled(metrics, program.longest_range_ms(expr), newest, evaluator)
        return self._known[expr]

    def _times(self, compiled: _Compiled, after_ms: int, until_ms: int) -> list[int]:
        """Those of the metric that is sampled most rarely, so that no increment of any is read twice."""
        times = [self._store.sample_times(name, after_ms, until_ms) for name in compiled.metrics]
        return min(times, key=len, default=[])


def _selector(metric: str) -> str:
    return f'{{__name__="{metric}"}}'


def _elements(value: promql.Vector | float | str) -> list[tuple[Labels, float]]:
    if isinstance(value, promql.Vector):
        return list(value)
    return [((), value)] if isinstance(value, float) else []
