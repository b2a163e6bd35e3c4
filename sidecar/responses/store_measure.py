"""The measured world as it is in the store, read with PromQL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sidecar import promql
from sidecar.model import Labels
from sidecar.responses.measure import Increments
from sidecar.store import Store

STEPS = "spikewatch_trainer_steps_total"
"""Counts steps, one series a rank."""


class StoreMeasure:
    """Implements `measure.Measure` for a fixed set of expressions; make a new one at reload."""

    def __init__(
        self, store: Store, exprs: Iterable[str], *, steps_metric: str = STEPS, interval_ms: int = 1000
    ) -> None:
        """Raises QueryError for an expression that does not compile."""
        self._store, self._steps, self._interval_ms = store, steps_metric, interval_ms
        self._exprs = tuple(dict.fromkeys(exprs))
        self._newest = {expr: promql.increments(expr) for expr in self._exprs}
        compiled = [*self._exprs, *self._newest.values()]
        self._program = promql.compile(compiled)
        names = {metric for expr in self._exprs for metric in self._program.metrics(expr)}
        self._present = promql.compile([_selector(name) for name in names])
        # Times go back and forth here, which the incremental face does not allow.
        self._evaluator = self._program.bind(store, "naive", interval_ms)
        self._presence = self._present.bind(store, "naive", interval_ms)

    def reserve(self, spans: Mapping[str, int]) -> None:
        """Makes the store keep what will be read: `spans` as the responder gives them, expression -> ms."""
        needs = self._program.needs()
        for expr, span in spans.items():
            for metric in self._program.metrics(expr):
                needs[metric] = needs.get(metric, 0) + span
        if spans:
            needs[self._steps] = max(needs.get(self._steps, 0), max(spans.values()))
        self._store.reserve(needs)

    def increments(self, expr: str, after_ms: int, until_ms: int) -> Increments:
        """As in `measure.Measure`."""
        samples: list[tuple[int, float]] = []
        most = 0
        for t in self._times(expr, after_ms, until_ms):
            elements = _elements(self._evaluator.at(self._newest[expr], t))
            most = max(most, len(elements))
            if len(elements) == 1:
                samples.append((t, elements[0][1]))
        return Increments(samples, most)

    def evaluate(self, expr: str, t_ms: int) -> list[tuple[Labels, float]]:
        """As in `measure.Measure`."""
        return _elements(self._evaluator.at(expr, t_ms))

    def seen(self, expr: str, t_ms: int) -> bool:
        """As in `measure.Measure`."""
        names = self._program.metrics(expr)
        return all(_elements(self._presence.at(_selector(name), t_ms)) for name in names)

    def longest_range_ms(self, expr: str) -> int:
        """As in `measure.Measure`."""
        return self._program.longest_range_ms(expr)

    def steps(self, after_ms: int, until_ms: int) -> float | None:
        """As in `measure.Measure`."""
        expr = f"min(increase({_selector(self._steps)}[{max(1, until_ms - after_ms)}ms]))"
        elements = _elements(promql.evaluate(self._store, expr, until_ms, self._interval_ms))
        return elements[0][1] if elements else None

    def _times(self, expr: str, after_ms: int, until_ms: int) -> list[int]:
        """Those of the metric that is sampled most rarely, so that no increment of any is read twice."""
        times = [self._store.sample_times(m, after_ms, until_ms) for m in self._program.metrics(expr)]
        return min(times, key=len, default=[])


def _selector(metric: str) -> str:
    return f'{{__name__="{metric}"}}'


def _elements(value: promql.Vector | float | str) -> list[tuple[Labels, float]]:
    if isinstance(value, promql.Vector):
        return list(value)
    return [((), value)] if isinstance(value, float) else []
