"""Runs promtool's rule unit tests on our store, our PromQL and our alert state machine."""

from __future__ import annotations

import glob
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sidecar import durations, promql
from sidecar.alerting.group import GroupRunner
from sidecar.alerting.loader import load_rules
from sidecar.alerting.rules import RuleGroup, literal_queries, rule_keys
from sidecar.alerting.runner import Tools, as_samples
from sidecar.alerting.templates import Surroundings
from sidecar.alerting.testfile import AlertCheck, Case, ExprCheck, UnitTestFile, read_test_file
from sidecar.alerting.testreport import Failure, Report, alert_text, sample_text
from sidecar.alerting.writing import StoreWriter
from sidecar.errors import ConfigError, Problem, QueryError
from sidecar.hooks import Handle
from sidecar.model import AlertState, Labels
from sidecar.store import Store

Face = Literal["incremental", "naive"]
Samples = list[tuple[Labels, float]]

MAX_EVALUATIONS = 1_000_000
"""Of one case: more would take hours and is a slip of the pen."""

_RUN_UP = 20  # evaluations before the one that is checked, so that the incremental face has a window to advance


def run_file(path: Path, face: Face = "incremental") -> Report:
    """Runs every test of a file. Never raises for a bad file: its problems are in the report."""
    try:
        file = read_test_file(path)
        paths, warnings = _rule_files(file)
        groups = _ordered(load_rules(paths).groups, file.order)
    except ConfigError as e:
        return Report(str(path), 0, 0, (), e.problems)
    failures: list[Failure] = []
    for number, case in enumerate(file.cases):
        name = case.name or f"unnamed#{number}"
        failures += [replace_case(f, name) for f in _CaseRun(file, case, groups, face).failures()]
    checks = sum(len(case.alerts) + len(case.exprs) for case in file.cases)
    return Report(str(path), len(file.cases), checks, tuple(failures), tuple(warnings))


def replace_case(failure: Failure, case: str) -> Failure:
    """The failure with the name of its case."""
    return Failure(case, failure.line, failure.what, failure.expected, failure.got, failure.message)


def _rule_files(file: UnitTestFile) -> tuple[list[Path], list[Problem]]:
    paths: list[Path] = []
    warnings: list[Problem] = []
    for pattern in file.rule_files:
        found = sorted(glob.glob(str(pattern)))
        if not found:
            warnings.append(Problem(file.path, 0, 0, f"no file matches {pattern}", "warning"))
        paths += [Path(p) for p in found if Path(p) not in paths]
    return paths, warnings


def _ordered(groups: Sequence[RuleGroup], order: Sequence[str]) -> list[RuleGroup]:
    """Groups named in `order` in that order; the others count as first, in file order."""
    position = {name: n for n, name in enumerate(order)}
    return sorted(groups, key=lambda group: position.get(group.name, 0))


class _CaseRun:
    """One case on a fresh store."""

    def __init__(self, file: UnitTestFile, case: Case, groups: Sequence[RuleGroup], face: Face) -> None:
        self._file, self._case = file, case
        # nothing may leave the rings: expressions are checked after the last evaluation, at any time
        self._store = Store(min_keep_ms=case.last_ms + file.interval_ms)
        self._feed = _Feed(self._store, case)
        self._rules = self._program(groups).bind(self._store, face, file.interval_ms)
        self._face = face
        keys = rule_keys(groups)
        self._groups = [GroupRunner(g, k, file.interval_ms) for g, k in zip(groups, keys, strict=True)]
        around = Surroundings(case.external_labels, case.external_url)
        self._tools = Tools(self._rules.at, self._look, StoreWriter(self._store), lambda: 0, around)

    def _program(self, groups: Sequence[RuleGroup]) -> promql.Program:
        """Every rule's expression; the store keeps what they and literal template queries need."""
        program = promql.compile([rule.expr for group in groups for rule in group.rules])
        needs = promql.compile([*program.exprs, *literal_queries(groups)]).needs()
        last = self._case.last_ms
        self._store.reserve({metric: span + last for metric, span in needs.items()})
        return program

    def _look(self, expr: str, t_ms: int) -> promql.Vector | float | str:
        return promql.evaluate(self._store, expr, t_ms, self._file.interval_ms)

    def failures(self) -> Iterator[Failure]:
        interval, last = self._file.interval_ms, self._case.last_ms
        if last // interval > MAX_EVALUATIONS:
            what = f"{last // interval} evaluations"
            yield Failure("", self._case.line, what, message=f"more than {MAX_EVALUATIONS} would take hours")
            return
        for at_ms in range(0, last + 1, interval):
            self._feed.until(at_ms)
            broken = list(self._evaluate(at_ms))
            if broken:
                yield from broken
                return
            for check in self._case.alerts:
                if at_ms <= check.at_ms < at_ms + interval:
                    yield from self._check_alerts(check)
        yield from self._check_exprs()

    def _evaluate(self, at_ms: int) -> Iterator[Failure]:
        for group in self._groups:
            group.evaluate(at_ms, self._tools)
            for runner in group.rules:
                if runner.history.failed and (latest := runner.history.last):
                    what = f"rule: {runner.rule.name}, time: {durations.text(at_ms)}"
                    yield Failure("", self._case.line, what, message=latest.error)

    def _check_alerts(self, check: AlertCheck) -> Iterator[Failure]:
        got = [
            (instance.labels, runner.annotations(instance, self._tools))
            for group in self._groups
            for runner in group.rules
            if runner.rule.is_alert and runner.rule.name == check.name
            for instance in runner.state.values()
            if instance.state is AlertState.FIRING
        ]
        expected = [(alert.labels, alert.annotations) for alert in check.expected]
        if sorted(got) != sorted(expected):
            yield Failure(
                "",
                check.line,
                f"alertname: {check.name}, time: {durations.text(check.at_ms)}",
                tuple(alert_text(*alert) for alert in sorted(expected)),
                tuple(alert_text(*alert) for alert in sorted(got)),
            )

    # --- expressions -------------------------------------------------------------------------------------------------

    def _check_exprs(self) -> Iterator[Failure]:
        """After all evaluations, as promtool does; in order of time, for the incremental face cannot go back."""
        for check, outcome in self._results():
            what = f"expr: {check.expr!r}, time: {durations.text(check.at_ms)}"
            if isinstance(outcome, QueryError):
                yield Failure("", check.line, what, message=str(outcome))
            elif not _same(outcome, list(check.expected), self._file.fuzzy):
                expected = tuple(sample_text(*s) for s in sorted(check.expected, key=lambda s: s[0]))
                got = tuple(sample_text(*s) for s in sorted(outcome, key=lambda s: s[0]))
                yield Failure("", check.line, what, expected, got)

    def _results(self) -> list[tuple[ExprCheck, Samples | QueryError]]:
        at = _evaluators(self._store, self._case.exprs, self._face, self._file.interval_ms)
        results: dict[int, Samples | QueryError] = {}
        for at_ms, number, final in sorted(self._appointments()):
            check = self._case.exprs[number]
            try:
                samples = list(as_samples(at(check.expr, at_ms)))
            except QueryError as e:
                if final:
                    results[number] = e
            else:
                if final:
                    results[number] = samples
        return [(check, results[number]) for number, check in enumerate(self._case.exprs)]

    def _appointments(self) -> Iterator[tuple[int, int, bool]]:
        interval = self._file.interval_ms
        for number, check in enumerate(self._case.exprs):
            if self._face == "incremental":
                first = max(0, check.at_ms // interval - _RUN_UP)
                for slot in range(first, -(-check.at_ms // interval)):
                    yield slot * interval, number, False
            yield check.at_ms, number, True


Evaluate = Callable[[str, int], promql.Vector | float | str]


def _evaluators(store: Store, checks: Sequence[ExprCheck], face: Face, interval_ms: int) -> Evaluate:
    """One program for all expressions, but for those that are refused: they must not hide the others."""
    refused: dict[str, QueryError] = {}
    for expr in {check.expr for check in checks}:
        try:
            promql.compile([expr])
        except QueryError as e:
            refused[expr] = e
    exprs = list(dict.fromkeys(check.expr for check in checks if check.expr not in refused))
    evaluator = promql.compile(exprs).bind(store, face, interval_ms)

    def at(expr: str, t_ms: int) -> promql.Vector | float | str:
        if expr in refused:
            raise refused[expr]
        return evaluator.at(expr, t_ms)

    return at


def _same(got: Samples, expected: Samples, fuzzy: bool) -> bool:
    """Equal label sets with equal values; `fuzzy` allows the two neighbouring floats. NaN equals nothing."""
    if len(got) != len(expected):
        return False
    pairs = zip(sorted(got, key=lambda s: s[0]), sorted(expected, key=lambda s: s[0]), strict=True)
    return all(a == b and (x == y or (fuzzy and _adjacent(x, y))) for (a, x), (b, y) in pairs)


def _adjacent(x: float, y: float) -> bool:
    return math.nextafter(x, -math.inf) == y or math.nextafter(x, math.inf) == y


@dataclass(slots=True)
class _Due:
    """A series on its way into the store."""

    handle: Handle
    values: tuple[float | None, ...]


class _Feed:
    """The case's input, put into the store as time goes on."""

    def __init__(self, store: Store, case: Case) -> None:
        self._store, self._interval_ms = store, case.interval_ms
        self._series: list[_Due] = []
        for series in case.series:
            handle = store.series(series.metric, dict(series.labels), "input")
            if handle is None:
                raise QueryError(f"too many series for one test: {series.metric}")
            self._series.append(_Due(handle, series.values))
        self._next = 0
        self._slots = max((len(due.values) for due in self._series), default=0)

    def until(self, at_ms: int) -> None:
        """Everything with a time up to `at_ms`."""
        while self._next < self._slots and self._next * self._interval_ms <= at_ms:
            blocks: dict[int, dict[int, float]] = {}
            for due in self._series:
                value = due.values[self._next] if self._next < len(due.values) else None
                if value is not None:
                    blocks.setdefault(due.handle.block, {})[due.handle.column] = value
            for block, values in blocks.items():
                self._store.push(block, self._next * self._interval_ms, values)
            self._next += 1
