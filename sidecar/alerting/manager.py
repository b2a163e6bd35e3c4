"""All groups together: what is due is evaluated, edges come out, state survives reload and restart."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from sidecar import promql
from sidecar.alerting.group import GroupRunner, GroupStatus
from sidecar.alerting.notifications import notification
from sidecar.alerting.orphans import Orphan, Orphans
from sidecar.alerting.persistence import AlertStore, Change, NoStore
from sidecar.alerting.restore import RestoreSettings, restored
from sidecar.alerting.rules import RuleGroup, literal_queries, rule_keys
from sidecar.alerting.runner import QueryFunc, RuleRunner, Stopwatch, Tools
from sidecar.alerting.state import Instance
from sidecar.alerting.templates import Surroundings
from sidecar.alerting.writing import Write, nowhere
from sidecar.errors import StateError
from sidecar.model import Alert, AlertEvent, AlertState, Edge, Labels, Notification

TOUCH_EVERY_MS = 60_000
"""How stale "last seen running" may be on disk: an outage counts up to so much longer than it was."""


@dataclass(frozen=True, slots=True)
class ManagerStats:
    """Counters since start."""

    evaluations: int
    failures: int
    missed: int
    persistence_failures: int


class Manager:
    """Runs rule groups against a query function. `tick` is the only thing that moves it."""

    def __init__(
        self,
        groups: Iterable[RuleGroup],
        query: QueryFunc,
        write: Write = nowhere,
        *,
        look: QueryFunc | None = None,
        default_interval_ms: int = 60_000,
        external_labels: Labels = (),
        external_url: str = "",
        resend_delay_ms: int = 60_000,
        persistence: AlertStore | None = None,
        restore: RestoreSettings | None = None,
        stopwatch: Stopwatch = time.perf_counter_ns,
    ) -> None:
        """`query` evaluates the rules' expressions at times that never go back; `look` any expression at any time.

        `look` serves the template function `query`, which may be expanded long after its evaluation; None: `query`.
        """
        self._tools = Tools(query, look or query, write, stopwatch, Surroundings(external_labels, external_url))
        self._default_interval_ms, self._resend_delay_ms = default_interval_ms, resend_delay_ms
        self._persistence = persistence or NoStore()
        self._restore = restore or RestoreSettings()
        self._groups = self._runners(groups)
        self._orphans = Orphans()
        self._began = False
        self._events: list[AlertEvent] = []  # edges from a reload, told at the next tick
        self._gone: list[Change] = []  # rows of removed rules, deleted at the next tick
        self._due: list[tuple[RuleRunner, Instance]] = []
        self._touched_ms = 0
        self._persistence_failures = 0
        self.persistence_error = ""

    def _runners(self, groups: Iterable[RuleGroup]) -> tuple[GroupRunner, ...]:
        given = tuple(groups)
        keys = rule_keys(given)
        return tuple(GroupRunner(g, k, self._default_interval_ms) for g, k in zip(given, keys, strict=True))

    def _rules(self) -> Iterator[RuleRunner]:
        return (runner for group in self._groups for runner in group.rules)

    # --- time --------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int, tell: Callable[[list[AlertEvent]], object] | None = None) -> list[AlertEvent]:
        """Evaluates the groups that are due, oldest slot first. Never raises for a rule's error: see `rules()`.

        `tell` hears the edges, if there are any, before the new state is on disk: who acts on edges and is killed in
        between finds the old state after the restart, and hears of the edge again. The other way round it were lost.
        """
        events, self._events = self._events, []
        if not self._began:
            self._began = True
            events += self._take_up(now_ms)
        self._due = []
        due = [(slot, n, group) for n, group in enumerate(self._groups) if (slot := group.due(now_ms)) is not None]
        for slot, _, group in sorted(due, key=lambda item: item[:2]):
            for runner, transition in group.evaluate(slot, self._tools):
                alert = runner.alert(transition.instance, self._tools)
                events.append(AlertEvent(transition.edge, alert, slot))
            for runner in group.rules:
                if runner.rule.is_alert and not runner.history.failed:
                    sent = runner.take_due(slot, group.interval_ms, self._resend_delay_ms)
                    self._due += [(runner, instance) for instance in sent]
        if due:
            written = {series for runner in self._rules() for series in runner.written}
            self._orphans.end(now_ms, written, self._tools.write)
        if tell is not None and events:
            tell(events)
        self._save(now_ms)
        return events

    def next_due_ms(self) -> int | None:
        """When the next slot comes; None before the first tick."""
        return min((group.slots.next_ms for group in self._groups if group.slots is not None), default=None)

    # --- looking -----------------------------------------------------------------------------------------------------

    def alerts(self) -> tuple[Alert, ...]:
        """Pending and firing alerts, in rule order."""
        return tuple(alert for runner in self._rules() for alert in runner.alerts(self._tools))

    def sendable(self) -> tuple[Notification, ...]:
        """What Alertmanager is to be told after the last tick: new, resolved, or not repeated for the resend delay."""
        around = self._tools.around
        return tuple(
            notification(
                instance,
                runner.annotations(instance, self._tools),
                promql.canonical(runner.rule.expr),
                around.external_labels,
                around.external_url,
            )
            for runner, instance in self._due
        )

    def rules(self) -> tuple[GroupStatus, ...]:
        """Every group with the health and history of its rules."""
        return tuple(group.status(self._tools) for group in self._groups)

    def exprs(self) -> list[str]:
        """The expressions of all rules, and those that templates query literally: what has to be compiled."""
        out = dict.fromkeys(runner.rule.expr for runner in self._rules())
        out.update(dict.fromkeys(literal_queries(group.group for group in self._groups)))
        return list(out)

    def stats(self) -> ManagerStats:
        """Counters for the sidecar's own metrics."""
        histories = [runner.history for runner in self._rules()]
        return ManagerStats(
            sum(h.evaluations for h in histories),
            sum(h.failures for h in histories),
            sum(group.slots.missed for group in self._groups if group.slots is not None),
            self._persistence_failures,
        )

    # --- reload and restart ------------------------------------------------------------------------------------------

    def adjust(
        self, *, default_interval_ms: int, external_labels: Labels, external_url: str, resend_delay_ms: int
    ) -> None:
        """Other settings, of the same meaning as at the start. The interval takes effect with the next `replace`."""
        self._default_interval_ms, self._resend_delay_ms = default_interval_ms, resend_delay_ms
        self._tools = replace(self._tools, around=Surroundings(external_labels, external_url))

    def replace(self, groups: Iterable[RuleGroup], query: QueryFunc, look: QueryFunc | None = None) -> None:
        """Goes over to other rules. A rule with the same identity keeps its alerts, history and series.

        Alerts of rules that are gone end with the next tick; as in Prometheus, Alertmanager is not told and lets
        them expire.
        """
        before = {runner.key: runner for runner in self._rules()}
        slots = {(g.group.name, g.group.file, g.interval_ms): g for g in self._groups}
        homes = {runner.key: group for group in self._groups for runner in group.rules}
        self._tools = replace(self._tools, query=query, look=look or query)
        self._groups = self._runners(groups)
        names = {group.group.name for group in self._groups}
        for group in self._groups:
            if same := slots.get((group.group.name, group.group.file, group.interval_ms)):
                group.slots, group.last_slot_ms = same.slots, same.last_slot_ms
            for runner in group.rules:
                if (old := before.pop(runner.key, None)) is not None:
                    runner.take_over(old)
        for key, runner in before.items():
            self._remove(runner, homes[key], homes[key].group.name in names)

    def _remove(self, runner: RuleRunner, home: GroupRunner, group_stays: bool) -> None:
        due_ms = home.last_slot_ms + (0 if group_stays else 2 * home.interval_ms)
        self._orphans.add(Orphan(runner.key, tuple(runner.written), due_ms))
        for labels, instance in runner.state.items():
            self._gone.append(Change(runner.key, labels, None))
            if instance.state is not AlertState.INACTIVE:
                edge = Edge.RESOLVED if instance.state is AlertState.FIRING else Edge.CLEARED
                self._events.append(AlertEvent(edge, runner.alert(instance, self._tools), home.last_slot_ms))

    def _take_up(self, now_ms: int) -> list[AlertEvent]:
        """State from before the restart. Its alerts are told as `restored`: others must not take them for news."""
        runners = {runner.key: runner for runner in self._rules() if runner.rule.is_alert}
        try:
            saved = self._persistence.load()
        except StateError as e:
            self._persistence_failed(e)
            return []
        rules = {key: runner.rule for key, runner in runners.items()}
        keys = {row.key for row in saved} & set(rules)
        ranges = {key: _range_ms(rules[key].expr) for key in keys}
        states, obsolete = restored(saved, rules, ranges, now_ms, self._restore)
        self._gone += [Change(row.key, row.instance.labels, None) for row in obsolete]
        self._touched_ms = now_ms
        events = []
        for key, state in states.items():
            runners[key].state = state
            for instance in state.values():
                if instance.state is not AlertState.INACTIVE:
                    edge = Edge.FIRING if instance.state is AlertState.FIRING else Edge.PENDING
                    alert = runners[key].alert(instance, self._tools)
                    events.append(AlertEvent(edge, alert, now_ms, restored=True))
        return events

    def close(self, now_ms: int) -> None:
        """Writes what is unwritten, and that the sidecar ran until now."""
        self._touched_ms = now_ms - TOUCH_EVERY_MS
        self._save(now_ms)

    def _save(self, now_ms: int) -> None:
        changes = list(self._gone)
        for runner in self._rules():
            changes += [Change(runner.key, labels, runner.state.get(labels)) for labels in runner.changed]
        try:
            if changes:
                self._persistence.save(changes, now_ms)
                self._gone.clear()
                for runner in self._rules():
                    runner.changed.clear()
            if now_ms - self._touched_ms >= TOUCH_EVERY_MS and any(runner.state for runner in self._rules()):
                self._persistence.touch(now_ms)
                self._touched_ms = now_ms
        except StateError as e:
            self._persistence_failed(e)

    def _persistence_failed(self, error: StateError) -> None:
        """Alerting goes on without a memory; the changes are kept and tried again with the next tick."""
        self._persistence_failures += 1
        self.persistence_error = str(error)


def _range_ms(expr: str) -> int:
    return promql.compile([expr]).longest_range_ms(expr)
