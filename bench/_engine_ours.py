"""Our engine in this process: the rule manager over the store, the same rules and data, replayed."""

from __future__ import annotations

import gc
import statistics
import time
from dataclasses import dataclass

import numpy as np

from bench._engine_load import Metric, metrics, rules
from sidecar import promql
from sidecar.alerting.manager import Manager
from sidecar.alerting.rules import Rule, RuleGroup
from sidecar.store import Store

START_MS = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class Replay:
    """What one replay took. Microseconds, by tick."""

    rules: dict[str, list[float]]
    ticks: np.ndarray
    pushes: np.ndarray
    cpu_s: float  # of pushing and evaluating, for all ticks
    bytes_per_series: float


class World:
    """A store, its series, and a manager over it."""

    def __init__(self, n: int, window: str) -> None:
        self.rules = rules(window)
        program = promql.compile(list(self.rules.values()))
        # exactly the windows, to count bytes fairly
        self.store = Store(max_series=100_000, max_series_per_metric=50_000, min_keep_ms=0)
        self.store.reserve(program.needs())
        evaluator = program.bind(self.store, "incremental")
        found = tuple(Rule(name=name, expr=expr, is_alert=True) for name, expr in self.rules.items())
        group = RuleGroup(name="bench", file="bench", rules=found, interval_ms=1000)
        self.manager = Manager((group,), evaluator.at, default_interval_ms=1000)
        self._places: list[tuple[int, list[int]]] = []

    def place(self, metric: Metric) -> None:
        """Makes the series of a metric."""
        handles = [self.store.series(metric.name, labels) for labels in metric.labels]
        assert all(handles)
        self._places.append((handles[0].block, [h.column for h in handles]))

    def push(self, t_ms: int, rows: list[np.ndarray]) -> None:
        """One second of every metric."""
        for (block, columns), row in zip(self._places, rows, strict=True):
            self.store.push(block, t_ms, dict(zip(columns, row.tolist(), strict=True)))


def replay(n: int, window: str, history_s: int, ticks: int) -> Replay:
    """Fills the window without evaluating, then pushes and evaluates once a second of data time."""
    world = World(n, window)
    load = list(metrics(n, history_s + ticks))
    for metric in load:
        world.place(metric)
    for k in range(history_s):
        world.push(START_MS + k * 1000, [metric.values[k] for metric in load])
    warm_up = 5  # the first evaluation reads the whole window
    took, pushes = [], []
    by_rule: dict[str, list[float]] = {name: [] for name in world.rules}
    gc.collect()
    cpu = 0.0
    for k in range(history_s, history_s + ticks):
        t_ms = START_MS + k * 1000
        rows = [metric.values[k] for metric in load]
        started, cpu_started = time.perf_counter(), time.process_time()
        world.push(t_ms, rows)
        pushed = time.perf_counter()
        world.manager.tick(t_ms + 5)
        done = time.perf_counter()
        if k >= history_s + warm_up:
            cpu += time.process_time() - cpu_started
            took.append(done - pushed)
            pushes.append(pushed - started)
            for status in world.manager.rules()[0].rules:
                by_rule[status.rule.name].append(status.history[-1].duration_ns / 1e3)
    assert not any(status.failures for status in world.manager.rules()[0].rules)
    stats = world.store.stats()
    return Replay(by_rule, np.array(took) * 1e6, np.array(pushes) * 1e6, cpu, stats.bytes / stats.series)


def medians(replays: list[Replay]) -> dict[str, float]:
    """Median microseconds of each rule, the best of the replays: others on the machine only add."""
    return {name: min(statistics.median(each.rules[name]) for each in replays) for name in replays[0].rules}


def worst_tick_ms(replays: list[Replay]) -> float:
    """The longest tick, each tick being the shortest of its replays: what the work takes, not what the machine did."""
    return float(np.min([each.ticks for each in replays], axis=0).max() / 1e3)
