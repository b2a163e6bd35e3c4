"""What a rule file says, as frozen data: groups of alerting and recording rules, in Prometheus's vocabulary."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from sidecar import promql
from sidecar.alerting.templates import Template
from sidecar.errors import QueryError
from sidecar.yamlfile import Mark

_QUERY = re.compile(r'\bquery\s+(?:"(?P<text>(?:[^"\\]|\\.)*)"|`(?P<raw>[^`]*)`)')

NOWHERE = Mark(0, 0)
"""The place of what came from no file."""

Templates = tuple[tuple[str, Template], ...]
"""Label or annotation names, sorted, with the template of the value."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. Durations are milliseconds; an alert's label and annotation values are templates.

    A recording rule has no annotations, `for_ms` or `keep_firing_for_ms`, and its label values are plain text.
    """

    name: str
    expr: str
    is_alert: bool
    labels: Templates = ()
    annotations: Templates = ()
    for_ms: int = 0
    keep_firing_for_ms: int = 0
    at: Mark = field(default=NOWHERE, compare=False)  # of the rule in its file
    expr_at: Mark = field(default=NOWHERE, compare=False)  # of the value of `expr`

    @property
    def label_texts(self) -> tuple[tuple[str, str], ...]:
        """Labels as written, templates unexpanded."""
        return tuple((name, template.source) for name, template in self.labels)

    @property
    def annotation_texts(self) -> tuple[tuple[str, str], ...]:
        """Annotations as written, templates unexpanded."""
        return tuple((name, template.source) for name, template in self.annotations)


@dataclass(frozen=True, slots=True)
class RuleGroup:
    """Rules evaluated one after the other at the same instant, so that later ones see the results of earlier ones."""

    name: str
    rules: tuple[Rule, ...]
    file: str = ""
    interval_ms: int = 0  # 0: the default of whoever runs it
    query_offset_ms: int = 0
    limit: int = 0  # most alerts or series one rule may give; 0 or less: no limit

    def with_rules(self, rules: Iterable[Rule]) -> RuleGroup:
        """The same group with other rules."""
        return replace(self, rules=tuple(rules))


def literal_queries(groups: Iterable[RuleGroup]) -> list[str]:
    """Expressions that templates query and that stand there as plain strings: what they read must be kept, too."""
    out: dict[str, None] = {}
    for group in groups:
        for rule in group.rules:
            for _, template in (*rule.labels, *rule.annotations):
                for match in _QUERY.finditer(template.source):
                    out[match["raw"] if match["raw"] is not None else match["text"].replace('\\"', '"')] = None
    return [expr for expr in out if _is_query(expr)]


def _is_query(expr: str) -> bool:
    try:
        promql.compile([expr])
    except QueryError:
        return False  # built by printf, or wrong: then the template says so when it is expanded
    return True


RuleKey = str
"""A rule's identity over reload and restart: group name, rule name, labels as written, and the how-manieth of its kind.

The file is left out, so that a moved file keeps its alerts; the expression is left out, as in Prometheus, so that a
corrected threshold does not lose the `for` already served.
"""


def rule_keys(groups: Iterable[RuleGroup]) -> tuple[tuple[RuleKey, ...], ...]:
    """The keys of every group's rules, in order; equal rules are numbered in order of appearance."""
    seen: dict[str, int] = {}
    out = []
    for group in groups:
        keys = []
        for rule in group.rules:
            base = json.dumps([group.name, rule.name, rule.is_alert, rule.label_texts], separators=(",", ":"))
            number = seen[base] = seen.get(base, -1) + 1
            keys.append(f"{base}#{number}")
        out.append(tuple(keys))
    return tuple(out)
