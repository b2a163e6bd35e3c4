"""Rule files into frozen groups, as strict as `promtool check rules`, with every problem of every file listed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from sidecar import promql
from sidecar.alerting.fields import Findings, Mapped, column_of, is_null, parse_error
from sidecar.alerting.rules import Rule, RuleGroup, Templates
from sidecar.alerting.templates import Template, TemplateParser
from sidecar.errors import ConfigError, Problem, QueryError, TemplateError
from sidecar.yamlfile import Document, Mark

ParseExpr = Callable[[str], object]
"""Raises QueryError for an expression that is no PromQL."""

_GROUP_KEYS = frozenset({"name", "interval", "query_offset", "limit", "rules", "labels"})
_RULE_KEYS = frozenset({"record", "alert", "expr", "for", "keep_firing_for", "labels", "annotations"})


@dataclass(frozen=True, slots=True)
class LoadedRules:
    """The groups of some files and what Prometheus would accept but is probably a mistake."""

    groups: tuple[RuleGroup, ...]
    warnings: tuple[Problem, ...] = ()


def load_rules(
    sources: Iterable[Path | Document],
    *,
    parse_expr: ParseExpr = promql.canonical,
    parser: TemplateParser | None = None,
) -> LoadedRules:
    """Reads rule files. Raises ConfigError with all problems of all of them."""
    loader = _Loader(parse_expr, parser or TemplateParser())
    groups: list[RuleGroup] = []
    problems: list[Problem] = []
    for source in sources:
        try:
            document = source if isinstance(source, Document) else Document.read(source)
        except ConfigError as e:
            problems.extend(e.problems)
            continue
        found = Findings(document.file)
        groups.extend(loader.groups(document, found))
        problems.extend(found.problems)
    if any(p.level == "error" for p in problems):
        raise ConfigError(problems)
    return LoadedRules(tuple(groups), tuple(problems))


class _Loader:
    def __init__(self, parse_expr: ParseExpr, parser: TemplateParser) -> None:
        self._parse_expr, self._parser = parse_expr, parser

    def groups(self, document: Document, found: Findings) -> list[RuleGroup]:
        if document.node is None or is_null(document.node):
            return []
        top = Mapped.of(document.node, found, "rule file", frozenset({"groups"}))
        if top is None:
            return []
        out: list[RuleGroup] = []
        names: set[str] = set()
        rules: dict[Rule, str] = {}
        for node in top.items("groups"):
            fields = Mapped.of(node, found, "group", _GROUP_KEYS)
            if fields is None:
                continue
            group = self._group(fields)
            if not group.name:
                found.error(fields.place("name"), "a group needs a name")
            elif group.name in names:
                found.error(fields.place("name"), f"group {group.name!r} is repeated in the same file")
            names.add(group.name)
            out.append(group)
            _duplicates(group, rules, found)
        return out

    def _group(self, fields: Mapped) -> RuleGroup:
        labels = fields.texts("labels")
        _label_names(labels, fields.found, "labels of the group")
        shared = {name: value for name, (_, value) in labels.items()}
        rules: list[Rule] = []
        for node in fields.items("rules"):
            rule = Mapped.of(node, fields.found, "rule", _RULE_KEYS)
            if rule is not None:
                rules.append(self._rule(rule, shared))
        return RuleGroup(
            fields.text("name"),
            tuple(rules),
            fields.found.file,
            fields.duration("interval"),
            fields.duration("query_offset"),
            fields.integer("limit"),
        )

    def _rule(self, fields: Mapped, shared: Mapping[str, str]) -> Rule:
        record, alert = fields.text("record"), fields.text("alert")
        found, is_alert = fields.found, not record
        if record and alert:
            found.error(fields.place("alert"), "only one of 'record' and 'alert' must be set")
        if not record and not alert:
            found.error(fields.node, "one of 'record' or 'alert' must be set")
        self._expr(fields)
        labels, annotations = fields.texts("labels"), fields.texts("annotations")
        _label_names(labels, found, "labels")
        if "" in annotations:
            found.error(annotations[""][0], "an annotation needs a name")
        hold, keep = fields.duration("for"), fields.duration("keep_firing_for")
        if record:
            _recording(fields, record, {"for": hold, "keep_firing_for": keep, "annotations": annotations})
            merged = {n: Template.plain(v) for n, v in {**shared, **_values(labels)}.items()}
        else:
            merged = {n: self._shared(v, fields) for n, v in shared.items() if n not in labels}
            merged |= self._templates(labels, found, "label")
        return Rule(
            record or alert,
            fields.text("expr").strip(),
            is_alert,
            _sorted(merged),
            _sorted(self._templates(annotations, found, "annotation")) if is_alert else (),
            hold,
            keep,
            _mark(fields.node),
            _mark(fields.place("expr")),
        )

    def _expr(self, fields: Mapped) -> None:
        expr, node = fields.text("expr"), fields.place("expr")
        if not expr:
            fields.found.error(node, "field 'expr' must be set in rule")
            return
        try:
            self._parse_expr(expr)
        except QueryError as e:
            fields.found.error(node, parse_error(e, expr))

    def _templates(self, texts: Mapping[str, tuple[yaml.Node, str]], found: Findings, what: str) -> dict[str, Template]:
        out: dict[str, Template] = {}
        for name, (node, source) in texts.items():
            try:
                out[name] = self._parser.parse(source)
            except TemplateError as e:
                found.error(node, f"{what} {name!r}: {e}", offset=column_of(node, e.offset))
        return out

    def _shared(self, source: str, fields: Mapped) -> Template:
        """A group label: Prometheus expands it as a template but does not check it at load; neither do we refuse it."""
        try:
            return self._parser.parse(source)
        except TemplateError as e:
            text = f"<error expanding template: {e}>"
            fields.found.warning(fields.node, f"a label of the group is no valid template: {e}")
            return Template(source, (text,))


def _recording(fields: Mapped, name: str, alert_only: Mapping[str, object]) -> None:
    for key, given in alert_only.items():
        if given:
            fields.found.error(fields.place(key), f"invalid field '{key}' in recording rule")
    if "{" in name or "}" in name:
        fields.found.error(
            fields.place("record"), f"braces present in the recording rule name; should it be in expr?: {name}"
        )


def _mark(node: yaml.Node) -> Mark:
    return Mark(node.start_mark.line + 1, node.start_mark.column + 1)


def _values(texts: Mapping[str, tuple[yaml.Node, str]]) -> dict[str, str]:
    return {name: value for name, (_, value) in texts.items()}


def _sorted(templates: Mapping[str, Template]) -> Templates:
    return tuple(sorted(templates.items(), key=lambda item: item[0]))


def _label_names(texts: Mapping[str, tuple[yaml.Node, str]], found: Findings, what: str) -> None:
    """Any UTF-8 text is a label name since Prometheus 3, but for none and `__name__`."""
    for name, (node, _) in texts.items():
        if not name or name == "__name__":
            found.error(node, f"{what}: invalid label name: {name!r}")


def _duplicates(group: RuleGroup, seen: dict[Rule, str], found: Findings) -> None:
    """promtool's lint: two rules of a file that record or alert the same with the same labels."""
    for rule in group.rules:
        key = Rule(rule.name, "", rule.is_alert, rule.labels)
        if key in seen:
            found.problems.append(
                Problem(
                    found.file,
                    rule.at.line,
                    rule.at.column,
                    f"rule {rule.name!r} has the same name and labels as one in group {seen[key]!r}: "
                    "recording rules may overwrite each other",
                    "warning",
                )
            )
        seen.setdefault(key, group.name)
