"""Rule files for who evaluates them elsewhere: a PrometheusRule object, or one plain rule file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import yaml

from sidecar import durations
from sidecar.alerting.fields import Findings, Mapped
from sidecar.alerting.loader import load_rules
from sidecar.alerting.overrides import Override
from sidecar.errors import ConfigError, Problem
from sidecar.promql.widen import Widening, widened
from sidecar.yamlfile import Document

WIDENED = "spikewatch.io/widened"
"""The annotation of an object, and in a plain file the comment at a rule, that tells which windows were made longer."""

_RUNBOOK = "runbook_url"
_OWN_PAGES = re.compile(r"^\{\{ \$externalURL \}\}/runbooks/")

INTERVALS = 4
"""A window has to hold so many scrapes: then one may be missing and a rate still has its two samples."""


@dataclass(frozen=True, slots=True)
class ExportedRule:
    """One rule as it is to be written: every value text."""

    name: str
    fields: Mapping[str, Any]
    widening: Widening | None  # None where nothing had to be made longer


@dataclass(frozen=True, slots=True)
class ExportedGroup:
    """One group; `fields` is all but its rules."""

    name: str
    fields: Mapping[str, Any]
    rules: tuple[ExportedRule, ...]


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """The groups of one file."""

    file: str
    groups: tuple[ExportedGroup, ...]
    least_ms: int  # how long every window is at least; 0: as written

    @property
    def object_name(self) -> str:
        """What a Kubernetes object made of it is called: the file's name in lower case, letters, digits and `-`."""
        stem = PurePath(self.file).name.lower()
        for ending in (".yaml", ".yml", ".rules"):
            stem = stem.removesuffix(ending)
        return re.sub(r"[^a-z0-9]+", "-", stem).strip("-")[:253] or "rules"

    def widenings(self) -> Iterable[tuple[ExportedGroup, ExportedRule, Widening]]:
        """The rules whose windows were made longer."""
        for group in self.groups:
            for rule in group.rules:
                if rule.widening is not None:
                    yield group, rule, rule.widening


def export(
    document: Document, scrape_interval_ms: int = 0, overrides: Iterable[Override] = (), runbooks: str = ""
) -> ExportedFile:
    """The rules of a document as written, with the overrides in place.

    Windows shorter than four scrape intervals are made that long. `runbooks` stands in for the evaluator's own address
    in the annotation `runbook_url`.

    Raises ConfigError for what Prometheus would refuse.
    """
    load_rules([document])
    found = Findings(document.file)
    least_ms = INTERVALS * scrape_interval_ms
    top = None if document.value is None else Mapped.of(document.node, found, "rule file", None)
    groups = [] if top is None else [Mapped.of(node, found, "group", None) for node in top.items("groups")]
    changes = {override.alert: override for override in overrides}
    return ExportedFile(
        document.file, tuple(_group(g, least_ms, changes, runbooks) for g in groups if g is not None), least_ms
    )


def _group(fields: Mapped, least_ms: int, changes: Mapping[str, Override], runbooks: str) -> ExportedGroup:
    out: dict[str, Any] = {key: text for key in ("name", "interval", "query_offset") if (text := fields.text(key))}
    if limit := fields.integer("limit"):
        out["limit"] = limit
    if labels := fields.texts("labels"):
        out["labels"] = {name: text for name, (_, text) in labels.items()}
    rules = [Mapped.of(node, fields.found, "rule", None) for node in fields.items("rules")]
    exported = (_rule(r, least_ms, changes.get(r.text("alert")), runbooks) for r in rules if r is not None)
    return ExportedGroup(fields.text("name"), out, tuple(rule for rule in exported if rule is not None))


def _rule(fields: Mapped, least_ms: int, change: Override | None, runbooks: str) -> ExportedRule | None:
    keys = ("record", "alert", "expr", "for", "keep_firing_for")
    out: dict[str, Any] = {key: text for key in keys if (text := fields.text(key))}
    if change is not None:
        if change.disabled:
            return None
        if change.expr is not None:
            out["expr"] = change.expr
        if change.for_ms is not None:
            out["for"] = durations.text(change.for_ms)
    widening = widened(out["expr"], least_ms)
    out["expr"] = widening.expr
    for key in ("labels", "annotations"):
        if texts := fields.texts(key):
            out[key] = {name: text for name, (_, text) in texts.items()}
    if runbooks and _RUNBOOK in out.get("annotations", {}):
        link = out["annotations"][_RUNBOOK]
        out["annotations"][_RUNBOOK] = _OWN_PAGES.sub(lambda _: runbooks.rstrip("/") + "/", link)
    if change is not None and change.severity is not None:
        out["labels"] = {**out.get("labels", {}), "severity": change.severity}
    return ExportedRule(out.get("record") or out["alert"], out, widening if widening.was_ms else None)


# --- writing ----------------------------------------------------------------------------------------------------------


def rule_file(files: Sequence[ExportedFile]) -> str:
    """One plain rule file. Raises ConfigError where two files have a group of the same name: one file cannot."""
    seen: dict[str, str] = {}
    problems = []
    for file in files:
        for group in file.groups:
            if group.name in seen:
                message = f"group {group.name!r} is also in {seen[group.name]}: export the two one by one"
                problems.append(Problem(file.file, 0, 0, message))
            seen[group.name] = file.file
    if problems:
        raise ConfigError(problems)
    return _groups([(group, file.least_ms) for file in files for group in file.groups])


def prometheus_rules(files: Sequence[ExportedFile], namespace: str, labels: Mapping[str, str]) -> str:
    """One monitoring.coreos.com/v1 PrometheusRule a file, as a stream of YAML documents.

    `labels` are put on the objects, for the operator picks its rules by them. Raises ConfigError for equal names.
    """
    names: dict[str, str] = {}
    texts = []
    for file in files:
        name = file.object_name
        if name in names:
            message = f"the object would be called {name!r}, as that of {names[name]}: rename a file"
            raise ConfigError([Problem(file.file, 0, 0, message)])
        names[name] = file.file
        metadata: dict[str, Any] = {"name": name}
        if namespace:
            metadata["namespace"] = namespace
        metadata["labels"] = {"app.kubernetes.io/name": "spikewatch", **labels}
        told = [f"{group.name}/{rule.name}: {_told(w, file.least_ms)}" for group, rule, w in file.widenings()]
        if told:
            metadata["annotations"] = {WIDENED: "\n".join(told) + "\n"}
        head = {"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule", "metadata": metadata}
        body = _groups([(group, file.least_ms) for group in file.groups])
        texts.append(_dump(head) + "spec:\n" + _indented(body, 2))
    return "---\n".join(texts)


def _told(widening: Widening, least_ms: int) -> str:
    was = ", ".join(dict.fromkeys(durations.text(ms) for ms in widening.was_ms))
    return f"{was} to {durations.text(least_ms)}"


def _groups(groups: Sequence[tuple[ExportedGroup, int]]) -> str:
    if not groups:
        return "groups: []\n"
    lines = ["groups:\n"]
    for group, least_ms in groups:
        lines.append("- " + _indented(_dump(group.fields), 2).removeprefix("  "))
        lines.append("  rules:\n" if group.rules else "  rules: []\n")
        for rule in group.rules:
            if rule.widening is not None:
                lines.append(f"  # {WIDENED}: {_told(rule.widening, least_ms)}\n")
            lines.append("  - " + _indented(_dump(rule.fields), 4).removeprefix("    "))
    return "".join(lines)


def _indented(text: str, width: int) -> str:
    return "\n".join(" " * width + line if line else line for line in text.split("\n"))


_PLAIN = re.compile(r"[A-Za-z_].+|(?:\d+(?:ms|[ywdhms]))+", re.DOTALL)
"""What every YAML reads as text once PyYAML has looked for `yes`, `null` and punctuation.

Go's readers also take `y` for a boolean and `1e3`, which PyYAML writes bare, for a number.
"""


class _Dumper(yaml.SafeDumper):
    """Text of several lines as a block, so that expressions can be read; text that may be something else in quotes."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        style = "|" if "\n" in data else None if _PLAIN.fullmatch(data) else "'"
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Dumper.add_representer(str, _Dumper.represent_str)


def _dump(value: Mapping[str, Any]) -> str:
    text: str = yaml.dump(dict(value), Dumper=_Dumper, sort_keys=False, width=10_000, allow_unicode=True)
    return text
