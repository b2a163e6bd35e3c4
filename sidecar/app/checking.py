"""What `spikewatch check` does: each file by the loader that would read it, with all that it finds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sidecar.alerting.check import check_rules
from sidecar.alerting.loader import load_rules
from sidecar.alerting.overrides import load_overrides
from sidecar.alerting.rules import RuleGroup
from sidecar.app import records
from sidecar.app.files import shipped_folder
from sidecar.app.proven import held
from sidecar.app.rulebook import load_rulebook
from sidecar.app.trust import trusted
from sidecar.collectors.cost.approvals import load_approvals
from sidecar.collectors.cost.pricebook import load_prices
from sidecar.errors import ConfigError, PluginError, Problem
from sidecar.model import MetricInfo
from sidecar.plugins import Registry
from sidecar.responses.loader import load_caps, load_responses
from sidecar.settings import load
from sidecar.yamlfile import Document

KEYS = ("groups", "responses", "overrides", "caps", "prices", "approvals")


@dataclass(frozen=True, slots=True)
class Report:
    """Every finding, and a line about each file that has no error."""

    problems: tuple[Problem, ...]
    summary: tuple[str, ...]


def check_files(files: Sequence[Path], registry: Registry | None = None, *, step_ms: int = 1000) -> Report:
    """Never raises for a bad file; `step_ms` is how long a training step takes.

    Without rule files among them, responses are held against the shipped rules.
    """
    if registry is None:
        registry = Registry()
        registry.discover()
    return _Check(registry, step_ms).run(files)


class _Check:
    def __init__(self, registry: Registry, step_ms: int) -> None:
        self._registry, self._step_ms = registry, step_ms
        self._catalogue: Mapping[str, MetricInfo] = {info.name: info for info in records.catalogue(registry)}
        self._groups: list[RuleGroup] = []
        self._recorded: set[str] = set()
        self._problems: list[Problem] = [_plugin(p) for p in registry.problems]

    def run(self, files: Sequence[Path]) -> Report:
        documents: list[tuple[Path, Document, str]] = []
        for path in files:
            try:
                document = Document.read(path)
            except ConfigError as e:
                self._problems += e.problems
                continue
            documents.append((path, document, kind(document)))
        # Rules first: responses and overrides name alerts.
        self._groups += _groups(d for _, d, k in documents if k == "groups") or _shipped()
        self._recorded = {rule.name for group in self._groups for rule in group.rules if not rule.is_alert}
        summary = []
        for path, document, what in documents:
            before = len(self._problems)
            said = self._one(path, document, what)
            if not any(p.level == "error" for p in self._problems[before:]):
                summary.append(f"{path}: {said}")
        order = {str(path): number for number, path in enumerate(files)}
        found = sorted(self._problems, key=lambda p: (order.get(p.file, -1), p.file, p.line, p.column))
        return Report(tuple(dict.fromkeys(found)), tuple(summary))

    def _one(self, path: Path, document: Document, what: str) -> str:
        try:
            if what == "groups":
                return self._rules(document)
            if what == "responses":
                loaded = load_responses(document, self._registry.remediations, self._alerts())
                loaded = held(document, loaded, self._registry.remediations, None)
                loaded = trusted(document, loaded, self._groups, self._catalogue.values())
                self._problems += loaded.warnings
                return _count(len(loaded.responses), "response")
            if what == "overrides":
                return _count(len(load_overrides(document, self._groups)), "override")
            if what == "caps":
                return _count(len(load_caps(document, self._registry.remediations)), "cap")
            if what == "prices":
                return _count(len(load_prices(path).prices), "price")
            if what == "approvals":
                return _count(len(load_approvals(path).entries), "approval")
            if what == "tests":
                text = "a rule unit test, not a file that is loaded: run `spikewatch test` on it"
                self._problems.append(document.problem((), text))
                return ""
            return self._configuration(path)
        except ConfigError as e:
            self._problems += e.problems
            return ""

    def _rules(self, document: Document) -> str:
        self._problems += check_rules([document], self._catalogue, recorded=self._recorded, step_ms=self._step_ms)
        return _count(sum(len(g.rules) for g in _groups([document])), "rule")

    def _configuration(self, path: Path) -> str:
        loaded = load(path, {})
        rulebook = load_rulebook(loaded, self._registry)
        self._problems += rulebook.warnings
        problems = []
        for index, endpoint in enumerate(rulebook.endpoints):
            try:
                endpoint.check()
            except ConfigError as e:
                problems += [loaded.document.problem(("alertmanagers", index), p.message) for p in e.problems]
        token = loaded.settings.http.token_file
        if token is not None and not loaded.path(token).is_file():
            problems.append(loaded.document.problem(("http", "token_file"), f"no such file: {loaded.path(token)}"))
        if problems:
            raise ConfigError(problems)
        return "configuration"

    def _alerts(self) -> list[str]:
        return [rule.name for group in self._groups for rule in group.rules if rule.is_alert]


def kind(document: Document) -> str:
    """One of KEYS, `tests` or `config`."""
    value = document.value
    if value is None:
        return "groups"  # Prometheus takes an empty file for one without rules
    if not isinstance(value, dict):
        return "config"
    if "tests" in value or "rule_files" in value:
        return "tests"
    # `responses` and `caps` are settings of a configuration too, where they are paths.
    settings = value.keys() - {*KEYS, "time_intervals"}  # of a configuration
    own = [k for k in KEYS if isinstance(value.get(k), list | dict) and not _paths(value[k], alone=not settings)]
    own += [k for k in ("prices", "approvals") if k in value and k not in own]  # no setting is called so
    if "groups" in value or own:
        return own[0] if own else "groups"
    return "config"


def _paths(value: object, *, alone: bool) -> bool:
    """Whether it is a list of paths; an empty one is, where it stands among other settings."""
    return isinstance(value, list) and not (alone and not value) and all(isinstance(item, str) for item in value)


def _groups(documents: Iterable[Document]) -> list[RuleGroup]:
    found: list[RuleGroup] = []
    for document in documents:
        try:
            found += load_rules([document]).groups
        except ConfigError:
            continue  # its problems are found when its turn comes
    return found


def _shipped() -> list[RuleGroup]:
    return list(load_rules(sorted(shipped_folder().glob("**/*.rules.yaml"))).groups)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _plugin(error: PluginError) -> Problem:
    return Problem(f"plugin {error.plugin}", 0, 0, str(error), "warning")
