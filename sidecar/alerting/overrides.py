"""overrides.yaml: one team's numbers over shipped rules, without editing them. Whole values only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from sidecar import promql
from sidecar.alerting.fields import Findings, Mapped, is_null, parse_error
from sidecar.alerting.loader import ParseExpr
from sidecar.alerting.rules import Rule, RuleGroup
from sidecar.alerting.templates import Template
from sidecar.errors import ConfigError, QueryError
from sidecar.model import Severity
from sidecar.yamlfile import Document

_SEVERITIES = tuple(severity.name.lower() for severity in Severity)
_KEYS = frozenset({"expr", "for", "severity", "disabled"})


@dataclass(frozen=True, slots=True)
class Override:
    """What changes about one alert; None and False leave it as shipped."""

    alert: str
    expr: str | None = None
    for_ms: int | None = None
    severity: str | None = None
    disabled: bool = False


def load_overrides(
    document: Document, groups: Sequence[RuleGroup] | None, *, parse_expr: ParseExpr = promql.canonical
) -> tuple[Override, ...]:
    """Reads `overrides:` of a document. Raises ConfigError with every problem, an unknown alert among them.

    `groups`: the rules it is for; None where they are not known, and then any name will do.
    """
    found = Findings(document.file)
    if document.node is None or is_null(document.node):
        return ()
    top = Mapped.of(document.node, found, "overrides file", frozenset({"overrides"}))
    out: list[Override] = []
    if top is not None and not is_null(top.values.get("overrides")):
        entries = Mapped.of(top.values["overrides"], found, "overrides mapping", None)
        for alert, node in (entries.values if entries else {}).items():
            fields = Mapped.of(node, found, f"override of {alert}", _KEYS)
            if fields is not None:
                if groups is not None:
                    _check_target(alert, fields, groups)
                out.append(_override(alert, fields, parse_expr))
    if found.problems:
        raise ConfigError(found.problems)
    return tuple(out)


def _check_target(alert: str, fields: Mapped, groups: Sequence[RuleGroup]) -> None:
    names = [rule.name for group in groups for rule in group.rules if rule.is_alert]
    if alert not in names:
        known = ", ".join(sorted(set(names))) or "none"
        fields.found.error(fields.node, f"no rule has an alert named {alert!r} (alerts: {known})")
    elif names.count(alert) > 1 and set(fields.values) - {"disabled"}:
        fields.found.error(
            fields.node,
            f"{names.count(alert)} rules have an alert named {alert!r}: they can only be disabled together",
        )


def _override(alert: str, fields: Mapped, parse_expr: ParseExpr) -> Override:
    expr = fields.text("expr") or None
    if "expr" in fields.values and expr is None:
        fields.found.error(fields.place("expr"), "expr must not be empty")
    if expr is not None:
        node = fields.place("expr")
        try:
            parse_expr(expr)
        except QueryError as e:
            fields.found.error(node, parse_error(e, expr))
    severity = fields.text("severity") or None
    if severity is not None and severity not in _SEVERITIES:
        fields.found.error(fields.place("severity"), f"severity must be one of {', '.join(_SEVERITIES)}")
    return Override(
        alert,
        expr.strip() if expr else None,
        None if is_null(fields.values.get("for")) else fields.duration("for"),
        severity,
        fields.flag("disabled"),
    )


def apply_overrides(groups: Iterable[RuleGroup], overrides: Iterable[Override]) -> tuple[RuleGroup, ...]:
    """The groups with the overrides in place; disabled alerts are gone."""
    by_alert = {override.alert: override for override in overrides}
    return tuple(
        group.with_rules(
            changed for rule in group.rules if (changed := _apply(rule, by_alert.get(rule.name))) is not None
        )
        for group in groups
    )


def _apply(rule: Rule, override: Override | None) -> Rule | None:
    if override is None or not rule.is_alert:
        return rule
    if override.disabled:
        return None
    labels = rule.labels
    if override.severity is not None:
        severity = ("severity", Template.plain(override.severity))
        labels = tuple(sorted([*(pair for pair in labels if pair[0] != "severity"), severity], key=lambda p: p[0]))
    return replace(
        rule,
        expr=rule.expr if override.expr is None else override.expr,
        for_ms=rule.for_ms if override.for_ms is None else override.for_ms,
        labels=labels,
    )
