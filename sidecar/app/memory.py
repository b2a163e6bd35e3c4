"""The newest value of every series in the store, for the metrics page."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from sidecar import promql
from sidecar.clock import Clock
from sidecar.model import Labels
from sidecar.store import Store


class NewestValues:
    """What an instant selector for every metric would give now: nothing stale, nothing older than the look-back."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._evaluators: dict[str, promql.Evaluator] = {}

    def __call__(self) -> Iterable[tuple[str, Labels, float]]:
        """(metric, labels, value)."""
        return self.of(self._store.metrics())

    def of(self, metrics: Collection[str]) -> Iterable[tuple[str, Labels, float]]:
        """The same of some metrics only."""
        now = self._clock.now_ms()
        for metric in metrics:
            found = self._evaluator(metric).at(metric, now)
            if isinstance(found, promql.Vector):
                for labels, value in found:
                    yield metric, labels, value

    def _evaluator(self, metric: str) -> promql.Evaluator:
        if metric not in self._evaluators:
            self._evaluators[metric] = promql.compile([metric]).bind(self._store, "naive")
        return self._evaluators[metric]
