"""promtool's rule unit-test files, read as strictly as promtool reads them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from sidecar.alerting.fields import Findings, Mapped, column_of
from sidecar.alerting.seriestext import parse_metric, parse_values
from sidecar.errors import ConfigError, QueryError
from sidecar.model import Labels, labels_of
from sidecar.yamlfile import Document

_T = TypeVar("_T")
_FILE = frozenset({"rule_files", "evaluation_interval", "group_eval_order", "tests", "fuzzy_compare"})
_CASE = frozenset(
    {
        "interval",
        "input_series",
        "alert_rule_test",
        "promql_expr_test",
        "external_labels",
        "external_url",
        "name",
    }
)


@dataclass(frozen=True, slots=True)
class InputSeries:
    """A series and its value in each slot of the case's interval; None where there is no sample."""

    metric: str
    labels: Labels  # without __name__
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class ExpectedAlert:
    """A firing alert: its labels (alertname included) and annotations, sorted.

    Empty values are kept: an alert has no empty label, so a test that expects one fails, as with promtool.
    """

    labels: tuple[tuple[str, str], ...]
    annotations: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class AlertCheck:
    """Which alerts of a name must fire at a time, and no others."""

    at_ms: int
    name: str
    expected: tuple[ExpectedAlert, ...]
    line: int


@dataclass(frozen=True, slots=True)
class ExprCheck:
    """What an expression must give at a time: labels with `__name__`, and value."""

    at_ms: int
    expr: str
    expected: tuple[tuple[Labels, float], ...]
    line: int


@dataclass(frozen=True, slots=True)
class Case:
    """One test: input and what must come of it."""

    name: str
    interval_ms: int
    series: tuple[InputSeries, ...]
    alerts: tuple[AlertCheck, ...]
    exprs: tuple[ExprCheck, ...]
    external_labels: Labels
    external_url: str
    line: int

    @property
    def last_ms(self) -> int:
        """The time of the last check."""
        return max([0, *(check.at_ms for check in self.alerts), *(check.at_ms for check in self.exprs)])


@dataclass(frozen=True, slots=True)
class UnitTestFile:
    """A whole file. `rule_files` are globs, made absolute."""

    path: str
    rule_files: tuple[Path, ...]
    interval_ms: int
    order: tuple[str, ...]
    fuzzy: bool
    cases: tuple[Case, ...]


def read_test_file(source: Path | Document) -> UnitTestFile:
    """Raises ConfigError with every problem."""
    document = source if isinstance(source, Document) else Document.read(source)
    found = Findings(document.file)
    file = None if document.node is None else Mapped.of(document.node, found, "unit-test file", _FILE)
    if file is None:
        if not found.problems:
            found.error(None, "an empty file tests nothing")
        raise ConfigError(found.problems)
    folder = Path(document.file).parent
    interval = file.duration("evaluation_interval") or 60_000
    order = tuple(node.value for node in file.items("group_eval_order"))
    for name in {name for name in order if order.count(name) > 1}:
        found.error(file.place("group_eval_order"), f"group name repeated in evaluation order: {name}")
    cases = []
    for node in file.items("tests"):
        fields = Mapped.of(node, found, "test", _CASE)
        if fields is not None:
            cases.append(_case(fields, interval))
    rule_files = tuple(folder / node.value for node in file.items("rule_files") if node.value)
    result = UnitTestFile(document.file, rule_files, interval, order, file.flag("fuzzy_compare"), tuple(cases))
    if found.problems:
        raise ConfigError(found.problems)
    return result


def _case(fields: Mapped, default_interval_ms: int) -> Case:
    return Case(
        name=fields.text("name"),
        interval_ms=fields.duration("interval") or default_interval_ms,
        series=tuple(read_series(fields)),
        alerts=tuple(_alert_checks(fields)),
        exprs=tuple(_expr_checks(fields)),
        external_labels=labels_of(_texts(fields, "external_labels")),
        external_url=fields.text("external_url"),
        line=fields.node.start_mark.line + 1,
    )


def _texts(fields: Mapped, key: str) -> dict[str, str]:
    return {name: value for name, (_, value) in fields.texts(key).items()}


def _mappings(fields: Mapped, key: str, known: frozenset[str]) -> list[Mapped]:
    items = [Mapped.of(node, fields.found, f"{key} item", known) for node in fields.items(key)]
    return [item for item in items if item is not None]


def read_series(fields: Mapped) -> list[InputSeries]:
    """The `input_series` of a test; what is wrong with them goes to its findings."""
    out = []
    for item in _mappings(fields, "input_series", frozenset({"series", "values"})):
        labels, values = _parsed(item, "series", parse_metric), _parsed(item, "values", parse_values)
        if labels is not None and values is not None:
            names = dict(labels)
            metric = names.pop("__name__", "")
            out.append(InputSeries(metric, labels_of(names), tuple(values)))
    return out


def _parsed(item: Mapped, key: str, parse: Callable[[str], _T]) -> _T | None:
    try:
        return parse(item.text(key))
    except QueryError as e:
        node = item.place(key)
        item.found.error(node, str(e), offset=column_of(node, e.offset))
        return None


def _alert_checks(fields: Mapped) -> list[AlertCheck]:
    out = []
    for item in _mappings(fields, "alert_rule_test", frozenset({"eval_time", "alertname", "exp_alerts"})):
        name = item.text("alertname")
        if not name:
            item.found.error(item.node, "an item under alert_rule_test misses required attribute alertname")
        expected = []
        for alert in _mappings(item, "exp_alerts", frozenset({"exp_labels", "exp_annotations"})):
            labels = {**_texts(alert, "exp_labels"), "alertname": name}
            annotations = _texts(alert, "exp_annotations")
            expected.append(ExpectedAlert(tuple(sorted(labels.items())), tuple(sorted(annotations.items()))))
        line = item.node.start_mark.line + 1
        out.append(AlertCheck(item.duration("eval_time"), name, tuple(expected), line))
    return out


def _expr_checks(fields: Mapped) -> list[ExprCheck]:
    out = []
    for item in _mappings(fields, "promql_expr_test", frozenset({"expr", "eval_time", "exp_samples"})):
        expected = []
        for sample in _mappings(item, "exp_samples", frozenset({"labels", "value", "histogram"})):
            if sample.text("histogram"):
                sample.found.error(sample.place("histogram"), "native histograms are not supported")
            labels = _parsed(sample, "labels", parse_metric) if sample.text("labels") else ()
            if labels is not None:
                expected.append((labels, sample.number("value")))
        line = item.node.start_mark.line + 1
        out.append(ExprCheck(item.duration("eval_time"), item.text("expr"), tuple(expected), line))
    return out
