"""One rule at work: query, step, write, and the memory of what it wrote and how it went."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from sidecar.alerting import state as machine
from sidecar.alerting.history import Evaluation, Health, History
from sidecar.alerting.rules import Rule, RuleKey
from sidecar.alerting.state import NEVER, Found, Instance, RuleState, Transition
from sidecar.alerting.templates import Query, Scope, Surroundings
from sidecar.alerting.writing import Row, Write
from sidecar.errors import QueryError, SpikewatchError
from sidecar.model import STALE, Alert, AlertState, Labels

QueryFunc = Callable[[str, int], Iterable[tuple[Labels, float]] | float | str]
"""Evaluates an expression at a time in milliseconds. Raises QueryError."""

Stopwatch = Callable[[], int]
"""Nanoseconds since an arbitrary origin."""


@dataclass(frozen=True, slots=True)
class Tools:
    """What every rule of a manager works with."""

    query: QueryFunc  # for rules: times only go forward
    look: QueryFunc  # for templates: any expression at any time
    write: Write
    stopwatch: Stopwatch
    around: Surroundings = field(default_factory=Surroundings)


@dataclass(frozen=True, slots=True)
class At:
    """One evaluation of a group: the slot, and how far back queries look."""

    slot_ms: int
    offset_ms: int = 0
    limit: int = 0

    @property
    def data_ms(self) -> int:
        """The time of the data read and written."""
        return self.slot_ms - self.offset_ms


def as_samples(result: Iterable[tuple[Labels, float]] | float | str) -> Iterable[tuple[Labels, float]]:
    """A scalar is one sample without labels. Raises QueryError for a string."""
    if isinstance(result, int | float):
        return (((), float(result)),)
    if isinstance(result, str):
        raise QueryError("rule result is not a vector or scalar")
    return result


@dataclass(frozen=True, slots=True)
class _Series:
    """The labels of the series one alert is written as."""

    pending: Labels
    firing: Labels
    for_state: Labels


class RuleRunner:
    """Evaluates one rule and owns its state. A failing evaluation leaves the state as it is."""

    def __init__(self, rule: Rule, key: RuleKey) -> None:
        self.rule, self.key = rule, key
        self.state: RuleState = {}
        self.history = History()
        self.written: dict[tuple[str, Labels], None] = {}  # series of the last good evaluation, in order
        self.changed: set[Labels] = set()  # alerts not yet saved as they are now
        self._plain_labels = all(template.text is not None for _, template in rule.labels)
        self._labels: dict[Labels, Labels] = {}  # sample labels → alert labels, where no template depends on a value
        self._series: dict[Labels, _Series] = {}
        self._annotations: dict[Labels, tuple[machine.Reading, tuple[tuple[str, str], ...]]] = {}

    @property
    def health(self) -> Health:
        return self.history.health

    def take_over(self, other: RuleRunner) -> None:
        """Goes on where an equal rule of the previous configuration stopped."""
        self.state, self.history = other.state, other.history
        self.written, self.changed = other.written, other.changed

    # --- evaluating --------------------------------------------------------------------------------------------------

    def evaluate(self, at: At, tools: Tools) -> tuple[Transition, ...]:
        """Never raises: what goes wrong becomes the rule's health."""
        started = tools.stopwatch()
        transitions: tuple[Transition, ...] = ()
        series, error = 0, ""
        rows: list[Row] = []
        try:
            samples = list(as_samples(tools.query(self.rule.expr, at.data_ms)))
            series = len(samples)
            if self.rule.is_alert and (samples or self.state):  # most alerts are quiet nearly always
                transitions, rows, error = self._alert(samples, at, tools)
            elif not self.rule.is_alert:
                rows = self._record(samples, at)
            if not error and (rows or self.written):
                self._write(rows, at, tools)
        except SpikewatchError as e:
            error = str(e)
        except Exception as e:  # noqa: BLE001  a bug in one rule's evaluation must not cost the others their tick
            error = f"internal error: {type(e).__name__}: {e}"
        self.history.add(Evaluation(at.slot_ms, tools.stopwatch() - started, series, error))
        return transitions

    def _record(self, samples: list[tuple[Labels, float]], at: At) -> list[Row]:
        override = self.rule.label_texts
        rows: dict[Labels, Row] = {}
        for labels, value in samples:
            merged = _merged(labels, override)
            if merged in rows:
                raise QueryError("vector contains metrics with the same labelset after applying rule labels")
            rows[merged] = (self.rule.name, merged, value)
        if 0 < at.limit < len(rows):
            raise QueryError(f"exceeded limit of {at.limit} with {len(rows)} series")
        return list(rows.values())

    def _alert(
        self, samples: list[tuple[Labels, float]], at: At, tools: Tools
    ) -> tuple[tuple[Transition, ...], list[Row], str]:
        found: dict[Labels, tuple[Labels, float]] = {}
        for sample, value in samples:
            labels = self._alert_labels(sample, value, at, tools)
            if labels in found:
                raise QueryError("vector contains metrics with the same labelset after applying alert labels")
            found[labels] = (sample, value)
        return self._step(found, at)

    def _step(self, found: Found, at: At) -> tuple[tuple[Transition, ...], list[Row], str]:
        result = machine.step(self.rule, self.state, found, at.slot_ms, at.limit)
        self.state = result.state
        self.changed.update(result.changed)
        for labels in result.changed:
            if labels not in result.state:
                self._annotations.pop(labels, None)
                self._series.pop(labels, None)
        return result.transitions, [] if result.error else self._alert_rows(), result.error

    def _alert_labels(self, sample: Labels, value: float, at: At, tools: Tools) -> Labels:
        known = self._labels.get(sample) if self._plain_labels else None
        if known is not None:
            return known
        scope = self._scope(machine.Reading(sample, value, at.slot_ms), tools)
        override = [(name, template.expand(scope)) for name, template in self.rule.labels]
        labels = _merged(sample, [*override, ("alertname", self.rule.name)])
        if self._plain_labels:
            if len(self._labels) >= 10_000:  # samples whose labels keep changing must not fill the memory
                self._labels.clear()
            self._labels[sample] = labels
        return labels

    def _alert_rows(self) -> list[Row]:
        """ALERTS and ALERTS_FOR_STATE of what is pending or firing."""
        rows: list[Row] = []
        for labels, instance in self.state.items():
            if instance.state is not AlertState.INACTIVE:
                known = self._series.get(labels)
                if known is None:
                    known = self._series[labels] = self._series_of(labels)
                state = known.firing if instance.state is AlertState.FIRING else known.pending
                rows.append(("ALERTS", state, 1.0))
                rows.append(("ALERTS_FOR_STATE", known.for_state, float(instance.active_at_ms // 1000)))
        return rows

    def _series_of(self, labels: Labels) -> _Series:
        """A rule's label shows unexpanded where the alert lost it to an empty value, as in Prometheus."""
        base = _merged(self.rule.label_texts, labels)
        return _Series(
            pending=_merged(base, [("alertstate", AlertState.PENDING.value)]),
            firing=_merged(base, [("alertstate", AlertState.FIRING.value)]),
            for_state=base,
        )

    def _write(self, rows: list[Row], at: At, tools: Tools) -> None:
        now = dict.fromkeys((metric, labels) for metric, labels, _ in rows)
        rows.extend((metric, labels, STALE) for metric, labels in self.written if (metric, labels) not in now)
        self.written = now
        if rows:
            tools.write(self.key, at.data_ms, rows)

    # --- sending -----------------------------------------------------------------------------------------------------

    def take_due(self, slot_ms: int, interval_ms: int, resend_delay_ms: int) -> list[Instance]:
        """The alerts Alertmanager is to hear of after the evaluation at `slot_ms`; from now on they count as sent."""
        if not self.state:
            return []
        due = [i for i in self.state.values() if machine.needs_sending(i, slot_ms, resend_delay_ms)]
        if due:
            due = [machine.sent(i, slot_ms, interval_ms, resend_delay_ms) for i in due]
            self.state = {**self.state, **{i.labels: i for i in due}}
        return due

    # --- showing -----------------------------------------------------------------------------------------------------

    def _scope(self, reading: machine.Reading, tools: Tools) -> Scope:
        query: Query = lambda expr: as_samples(tools.look(expr, reading.at_ms))  # noqa: E731
        return Scope(reading.sample, reading.value, tools.around, query)

    def annotations(self, instance: Instance, tools: Tools) -> tuple[tuple[str, str], ...]:
        """Expanded with the values of the evaluation that saw the alert last; kept until a newer one sees it."""
        known = self._annotations.get(instance.labels)
        if known is not None and known[0] is instance.reading:
            return known[1]
        scope = self._scope(instance.reading, tools)
        expanded = tuple((name, template.expand(scope)) for name, template in self.rule.annotations)
        self._annotations[instance.labels] = (instance.reading, expanded)
        return expanded

    def alerts(self, tools: Tools) -> list[Alert]:
        """Its pending and firing alerts."""
        return [self.alert(i, tools) for i in self.state.values() if i.state is not AlertState.INACTIVE]

    def alert(self, instance: Instance, tools: Tools) -> Alert:
        """The instance for other rooms, annotations expanded."""
        return Alert(
            name=self.rule.name,
            labels=instance.labels,
            annotations=self.annotations(instance, tools),
            state=instance.state,
            value=instance.reading.value,
            active_at_ms=_shown(instance.active_at_ms),
            fired_at_ms=_shown(instance.fired_at_ms),
            resolved_at_ms=_shown(instance.resolved_at_ms),
            keep_firing_since_ms=_shown(instance.keep_firing_since_ms),
            expr=self.rule.expr,
        )


def _shown(ms: int) -> int:
    return 0 if ms == NEVER else ms


def _merged(labels: Iterable[tuple[str, str]], override: Iterable[tuple[str, str]]) -> Labels:
    """Labels with others put over them; an empty value removes a label, and the metric name always goes."""
    merged = dict(labels)
    merged.update(override)
    merged.pop("__name__", None)
    return tuple(sorted([(name, value) for name, value in merged.items() if value]))
