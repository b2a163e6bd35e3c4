"""Whether a response may act: not on numbers whose source nobody has seen on the real thing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from sidecar import promql
from sidecar.alerting.rules import Rule, RuleGroup
from sidecar.errors import QueryError
from sidecar.model import MetricInfo
from sidecar.responses.loader import LoadedResponses
from sidecar.responses.response import Mode, Response
from sidecar.yamlfile import Document


def unproven(exprs: Iterable[str], groups: Iterable[RuleGroup], catalogue: Iterable[MetricInfo]) -> tuple[str, ...]:
    """The metrics that expressions read, through recording rules too, and that were not checked on the real source.

    Pure. A metric that is not in the catalogue comes from an endpoint or a rule of the user's own, who answers for it.
    Sorted, each once. Expressions that do not parse read nothing.
    """
    known = {info.name: info for info in catalogue}
    recorded: dict[str, list[str]] = {}
    for group in groups:
        for rule in group.rules:
            if not rule.is_alert:
                recorded.setdefault(rule.name, []).append(rule.expr)
    found: set[str] = set()
    seen: set[str] = set()
    todo = list(exprs)
    while todo:
        expr = todo.pop()
        if expr in seen:
            continue
        seen.add(expr)
        for metric in _metrics(expr):
            todo += recorded.get(metric, [])
            info = known.get(metric)
            if info is not None and info.verified is not None and info.verified.against != "device":
                found.add(metric)
    return tuple(sorted(found))


def built_on(response: Response, groups: Iterable[RuleGroup]) -> Iterator[str]:
    """The expressions a response hangs on: its own, and those of the alerts here that it may answer."""
    yield response.verify.expr
    yield from response.verify.abort_if
    for group in groups:
        for rule in group.rules:
            if rule.is_alert and may_answer(response, rule):
                yield rule.expr


def trusted(
    document: Document, loaded: LoadedResponses, groups: Iterable[RuleGroup], catalogue: Iterable[MetricInfo]
) -> LoadedResponses:
    """The responses of a file, `act` lowered to `suggest` with a warning where they are built on unproven metrics."""
    groups, catalogue = tuple(groups), tuple(catalogue)
    out: list[Response] = []
    warnings = list(loaded.warnings)
    for index, response in enumerate(loaded.responses):
        if response.mode > Mode.SUGGEST:
            metrics = unproven(built_on(response, groups), groups, catalogue)
            if metrics:
                text = f"`suggest` at most: built on {', '.join(metrics)}, not checked on a real device yet"
                warnings.append(document.problem(("responses", index, "mode"), text, level="warning"))
                response = replace(response, mode=Mode.SUGGEST)
        out.append(response)
    return LoadedResponses(tuple(out), tuple(warnings))


def may_answer(response: Response, rule: Rule) -> bool:
    """By the labels that are known before it fires; others may have any value."""
    labels: Mapping[str, str] = {
        **{name: text for name, text in rule.label_texts if "{{" not in text},
        "alertname": rule.name,
    }
    return all(m.matches(labels) for m in response.matchers if m.name in labels)


def _metrics(expr: str) -> frozenset[str]:
    try:
        return promql.compile([expr]).metrics(expr)
    except QueryError:
        return frozenset()
