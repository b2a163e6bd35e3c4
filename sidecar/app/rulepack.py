"""Rule files as people ask about them: by signal, with thresholds, the metrics at the bottom, and what answers them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from sidecar import promql
from sidecar.alerting.loader import load_rules
from sidecar.alerting.rules import Rule, RuleGroup
from sidecar.alerting.thresholds import Threshold, comments, thresholds
from sidecar.app.files import shipped_folder
from sidecar.app.trust import may_answer
from sidecar.errors import ConfigError, Problem
from sidecar.responses.response import Response
from sidecar.yamlfile import Document

PLACES = ("pod", "job", "cluster")
"""Where a group may be evaluated, from narrow to wide: every sidecar, that of global rank 0, the cluster's process."""

SEVERITIES = ("info", "warning", "critical")


@dataclass(frozen=True, slots=True)
class AlertInfo:
    """One alerting rule. `reads` are the metrics of its expression, `metrics` what those are recorded from."""

    rule: Rule
    group: str
    file: str
    at: str  # of PLACES; "" where the group's name does not end in one
    labels: Mapping[str, str]
    comments: tuple[str, ...]
    thresholds: tuple[Threshold, ...]
    reads: tuple[str, ...]
    metrics: tuple[str, ...]
    responses: tuple[Response, ...]  # those that may answer it, in the order in which they are tried


@dataclass(frozen=True, slots=True)
class Signal:
    """The alerts of one cause. An alert without the label `signal` is alone, and `name` is empty."""

    name: str
    alerts: tuple[AlertInfo, ...]

    @property
    def layer(self) -> str:
        """Of its first alert."""
        return self.alerts[0].labels.get("layer", "")

    @property
    def at(self) -> str:
        """The widest place among its alerts: where its main rule is evaluated."""
        known = [alert.at for alert in self.alerts if alert.at]
        return max(known, key=PLACES.index, default="")

    @property
    def metrics(self) -> tuple[str, ...]:
        """Of all its alerts, sorted."""
        return tuple(sorted({metric for alert in self.alerts for metric in alert.metrics}))

    @property
    def responses(self) -> tuple[Response, ...]:
        """Of all its alerts, in the order of the alerts."""
        return tuple({r.name: r for alert in self.alerts for r in alert.responses}.values())


@dataclass(frozen=True, slots=True)
class RulePack:
    """Some rule files. `recorded`: recording rule -> its expressions."""

    alerts: tuple[AlertInfo, ...]
    recorded: Mapping[str, tuple[str, ...]]

    def signals(self) -> tuple[Signal, ...]:
        """In the order of their first alerts."""
        found: dict[str, list[AlertInfo]] = {}
        for number, alert in enumerate(self.alerts):
            found.setdefault(alert.labels.get("signal") or f"\0{number}", []).append(alert)
        return tuple(Signal(name if name[0] != "\0" else "", tuple(alerts)) for name, alerts in found.items())

    def named(self, name: str) -> tuple[AlertInfo, ...]:
        """The alerts of this name, or of this signal; none where there is neither."""
        return tuple(a for a in self.alerts if name in (a.rule.name, a.labels.get("signal")))

    def nearest(self, name: str) -> str:
        """What somebody who wrote `name` may have meant; empty where nothing is near."""
        known = {n for a in self.alerts for n in (a.rule.name, a.labels.get("signal", "")) if n}
        return next(iter(get_close_matches(name, sorted(known), 1)), "")

    def recorded_for(self, alert: AlertInfo) -> dict[str, tuple[str, ...]]:
        """The recording rules below an alert with their expressions, those that it reads itself first."""
        found: dict[str, tuple[str, ...]] = {}
        todo = list(alert.reads)
        while todo:
            name = todo.pop(0)
            if name in self.recorded and name not in found:
                found[name] = self.recorded[name]
                todo += sorted({metric for expr in found[name] for metric in _metrics(expr)})
        return found


def shipped_files(*, extra: bool) -> list[Path]:
    """The rule files of the signals; `extra` adds those beyond, in `extra/`. A sidecar loads both by default."""
    return sorted(shipped_folder().glob("**/*.rules.yaml" if extra else "*.rules.yaml"))


def read_pack(files: Iterable[Path], responses: Sequence[Response] = ()) -> RulePack:
    """Raises ConfigError with every problem of every file."""
    problems: list[Problem] = []
    loaded: list[tuple[Document, RuleGroup]] = []
    for file in files:
        try:
            document = Document.read(file)
            loaded += [(document, group) for group in load_rules([document]).groups]
        except ConfigError as e:
            problems += e.problems
    if problems:
        raise ConfigError(problems)
    recorded: dict[str, tuple[str, ...]] = {}
    for _, group in loaded:
        for rule in group.rules:
            if not rule.is_alert:
                recorded[rule.name] = (*recorded.get(rule.name, ()), rule.expr)
    return RulePack(tuple(_alerts(loaded, recorded, responses)), recorded)


def _alerts(
    loaded: Sequence[tuple[Document, RuleGroup]],
    recorded: Mapping[str, tuple[str, ...]],
    responses: Sequence[Response],
) -> Iterator[AlertInfo]:
    starts: dict[str, list[int]] = {}
    for document, group in loaded:
        starts.setdefault(document.file, []).extend(rule.at.line for rule in group.rules)
    said = {
        (document.file, line): lines
        for document, _ in loaded
        for line, lines in zip(
            sorted(starts[document.file]), comments(document.text, sorted(starts[document.file])), strict=True
        )
    }
    for document, group in loaded:
        for rule in group.rules:
            if rule.is_alert:
                above = said[document.file, rule.at.line]
                yield AlertInfo(
                    rule,
                    group.name,
                    document.file,
                    _place(group.name),
                    {name: text for name, text in rule.label_texts if "{{" not in text},
                    above,
                    thresholds(above),
                    tuple(sorted(_metrics(rule.expr))),
                    tuple(sorted(_raw(rule.expr, recorded))),
                    tuple(response for response in responses if _answers(response, rule)),
                )


def _answers(response: Response, rule: Rule) -> bool:
    """As far as can be told before it fires; the label `signal` is the rule's own and never comes from a series."""
    signal = {"signal": dict(rule.label_texts).get("signal", "")}
    return may_answer(response, rule) and all(m.matches(signal) for m in response.matchers if m.name in signal)


def _place(group: str) -> str:
    ending = group.rpartition("-")[2]
    return ending if ending in PLACES else ""


def _metrics(expr: str) -> frozenset[str]:
    return promql.compile([expr]).metrics(expr)


def _raw(expr: str, recorded: Mapping[str, tuple[str, ...]]) -> set[str]:
    """What an expression reads in the end: recording rules are followed, each once."""
    found: set[str] = set()
    seen: set[str] = set()
    todo = [expr]
    while todo:
        for metric in _metrics(todo.pop()) - seen:
            seen.add(metric)
            todo += recorded.get(metric, ())
            if metric not in recorded:
                found.add(metric)
    return found
