"""Rules over the past: what they read of it, and when each alert would have fired, by the code that runs live."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sidecar import promql
from sidecar.alerting.manager import Manager
from sidecar.alerting.rules import RuleGroup, literal_queries
from sidecar.alerting.writing import StoreWriter
from sidecar.clock import FakeClock
from sidecar.history.source import Feed, Row, Source
from sidecar.model import Alert, AlertEvent, Edge, Labels
from sidecar.promql.plan import Op, Selector, walk
from sidecar.store import Store

_MOST_SERIES = 500_000
_SPARSE_MS = 5_000
"""Evaluated less often than this, rules read their windows from the ring: moving them means to take in every sample.

Measured with samples every second: at 5 s that is half the time, at 15 s a quarter, at 1 s the same.
"""

_WRITTEN = ("ALERTS", "ALERTS_FOR_STATE")


@dataclass(frozen=True, slots=True)
class Reads:
    """What rules read of the past. What they record themselves is not among it: that is computed anew."""

    selectors: tuple[str, ...]  # as PromQL
    metrics: frozenset[str] | None  # None: a selector names no metric, so all may be read
    span_ms: int  # how far back from an evaluation


@dataclass(frozen=True, slots=True)
class Firing:
    """One alert from firing to resolved. `resolved_at_ms` is None while it still fires at the end."""

    alert: Alert  # as it was when it began to fire
    resolved_at_ms: int | None

    def within(self, start_ms: int, end_ms: int) -> tuple[int, int]:
        """The part of it in [start, end], as a pair of times; the second is not after the first where there is none."""
        until = end_ms if self.resolved_at_ms is None else min(self.resolved_at_ms, end_ms)
        return max(self.alert.fired_at_ms, start_ms), until


@dataclass(frozen=True, slots=True)
class Broken:
    """A rule that could not be evaluated: how often, and what it said last."""

    rule: str
    group: str
    failures: int
    error: str


@dataclass(frozen=True, slots=True)
class Total:
    """One alert name over the whole time. Durations are milliseconds."""

    alert: str
    group: str
    severity: str  # empty where the rule has no such label, or a template
    fired: int  # how often any of its instances began to fire
    cleared: int  # how often one was pending and went away before it fired
    firing_ms: int  # time during which at least one instance fired
    longest_ms: int
    first_ms: int | None  # when it first fired
    last_ms: int | None


@dataclass(frozen=True, slots=True)
class Replay:
    """What came of it."""

    start_ms: int
    end_ms: int
    step_ms: int
    samples: int
    evaluations: int
    refused: int  # samples of series beyond what the store takes
    firings: tuple[Firing, ...]  # in order of their beginning
    totals: tuple[Total, ...]  # every alert, in order of the rules, those that never fired too
    broken: tuple[Broken, ...]


def reads(groups: Sequence[RuleGroup]) -> Reads:
    """What the rules' expressions, and the queries in their templates, read."""
    program = promql.compile([*_exprs(groups), *literal_queries(groups)])
    own = recorded(groups)
    selectors: dict[str, None] = {}
    metrics: set[str] = set()
    for expr in program.exprs:
        for node in walk(program.node(expr)):
            if isinstance(node, Selector) and node.metric not in own:
                selectors[_text(node)] = None
                metrics.add(node.metric)
    return Reads(
        tuple(selectors), None if "" in metrics else frozenset(metrics), max(program.needs().values(), default=0)
    )


def recorded(groups: Sequence[RuleGroup]) -> frozenset[str]:
    """The metrics that evaluating the rules writes."""
    return frozenset([*_WRITTEN, *(rule.name for group in groups for rule in group.rules if not rule.is_alert)])


def _exprs(groups: Sequence[RuleGroup]) -> list[str]:
    return [rule.expr for group in groups for rule in group.rules]


def _offset(groups: Sequence[RuleGroup]) -> int:
    """How much further back groups read that are evaluated in the past."""
    return max((group.query_offset_ms for group in groups), default=0)


def _text(selector: Selector) -> str:
    matchers = [f"{m.name}{m.op.value}{json.dumps(m.value, ensure_ascii=False)}" for m in selector.matchers]
    if selector.metric:
        matchers.insert(0, f"__name__{Op.EQUAL.value}{json.dumps(selector.metric, ensure_ascii=False)}")
    return "{" + ",".join(matchers) + "}"


def backtest(
    groups: Sequence[RuleGroup],
    source: Source,
    start_ms: int,
    end_ms: int,
    step_ms: int,
    *,
    external_labels: Labels = (),
    progress: Callable[[int], object] = lambda t_ms: None,
) -> Replay:
    """Evaluates the groups from `start_ms` to `end_ms`, every `step_ms` or at their own interval.

    Rules are also evaluated before the start, for as long as they look back, so that recorded series and the time an
    alert has been waiting are there; what fires then counts from the start on. Raises what the source raises.
    """
    span = reads(groups).span_ms + _offset(groups)
    extent = source.extent()
    begin = start_ms - span - max((rule.for_ms for group in groups for rule in group.rules), default=0)
    begin = min(begin if extent is None else max(begin, extent[0]), start_ms)
    replaying = _Replaying(groups, source.rows(begin - span, end_ms), begin, step_ms, external_labels)
    replaying.run(end_ms, progress)
    return replaying.result(start_ms, end_ms)


class _Replaying:
    def __init__(
        self, groups: Sequence[RuleGroup], rows: Iterator[Row], begin_ms: int, step_ms: int, external: Labels
    ) -> None:
        self._groups, self._step_ms = groups, step_ms
        store = Store(_MOST_SERIES, _MOST_SERIES, min_keep_ms=0)
        program = promql.compile(_exprs(groups))
        needs = promql.compile([*program.exprs, *literal_queries(groups)]).needs()
        store.reserve({metric: span + _offset(groups) for metric, span in needs.items()})
        self._feed = Feed(store, rows, recorded(groups))
        self._clock = FakeClock(begin_ms - 1)
        self._manager = Manager(
            groups,
            program.bind(store, "naive" if step_ms >= _SPARSE_MS else "incremental", step_ms).at,
            StoreWriter(store),
            look=lambda expr, t_ms: promql.evaluate(store, expr, t_ms, step_ms),
            default_interval_ms=step_ms,
            external_labels=external,
            stopwatch=lambda: 0,
        )
        self._open: dict[tuple[str, Labels, str], Alert] = {}
        self._firings: list[Firing] = []
        self._cleared: dict[str, list[int]] = {}
        self._failures = 0
        self._broken: dict[tuple[str, str], Broken] = {}

    def run(self, end_ms: int, progress: Callable[[int], object]) -> None:
        self._manager.tick(self._clock.now_ms())  # before the first slot: from here on it is known when they are due
        while (due := self._manager.next_due_ms()) is not None and due <= end_ms:
            self._feed.until(due)
            self._clock.advance(due - self._clock.now_ms())
            for event in self._manager.tick(due):
                self._note(event)
            if self._manager.stats().failures > self._failures:
                self._note_failures()
            progress(due)

    def _note(self, event: AlertEvent) -> None:
        alert = event.alert
        key = alert.name, alert.labels, alert.expr
        if event.edge is Edge.FIRING:
            self._open[key] = alert
        elif event.edge is Edge.CLEARED:
            self._cleared.setdefault(alert.name, []).append(event.at_ms)
        elif event.edge is Edge.RESOLVED and key in self._open:
            self._firings.append(Firing(self._open.pop(key), event.at_ms))

    def result(self, start_ms: int, end_ms: int) -> Replay:
        found = [*self._firings, *(Firing(alert, None) for alert in self._open.values())]
        firings = [f for f in found if f.resolved_at_ms is None or f.resolved_at_ms > start_ms]
        firings.sort(key=lambda f: (f.alert.fired_at_ms, f.alert.name, f.alert.labels))
        return Replay(
            start_ms,
            end_ms,
            self._step_ms,
            self._feed.samples,
            self._manager.stats().evaluations,
            self._feed.refused,
            tuple(firings),
            tuple(self._totals(firings, start_ms, end_ms)),
            tuple(self._broken.values()),
        )

    def _note_failures(self) -> None:
        self._failures = self._manager.stats().failures
        for status in self._manager.rules():
            for rule in status.rules:
                if rule.last_error:
                    key = status.group.name, rule.key
                    self._broken[key] = Broken(rule.rule.name, status.group.name, rule.failures, rule.last_error)

    def _totals(self, firings: Sequence[Firing], start_ms: int, end_ms: int) -> Iterator[Total]:
        rules = [(rule, group.name) for group in self._groups for rule in group.rules if rule.is_alert]
        names = {rule.name: (dict(rule.labels).get("severity"), group) for rule, group in reversed(rules)}
        for name in dict.fromkeys(rule.name for rule, _ in rules):
            severity, group = names[name]
            spans = [f.within(start_ms, end_ms) for f in firings if f.alert.name == name]
            yield Total(
                name,
                group,
                (severity.text or "") if severity else "",
                fired=len(spans),
                cleared=sum(start_ms <= t <= end_ms for t in self._cleared.get(name, ())),
                firing_ms=_covered(spans),
                longest_ms=max((until - since for since, until in spans), default=0),
                first_ms=spans[0][0] if spans else None,
                last_ms=spans[-1][0] if spans else None,
            )


def _covered(spans: Sequence[tuple[int, int]]) -> int:
    """How long at least one of them lasts; `spans` in order of their beginning."""
    total = reached = 0
    for since, until in spans:
        since = max(since, reached) if total else since
        if until > since:
            total += until - since
            reached = until
    return total
