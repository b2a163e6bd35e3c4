"""Everything the configuration names, loaded and checked as one: it is taken whole or not at all."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from sidecar.actuators.egress import EgressList
from sidecar.alerting.loader import LoadedRules, load_rules
from sidecar.alerting.overrides import Override, apply_overrides, load_overrides
from sidecar.alerting.rules import RuleGroup
from sidecar.app import collecting, records
from sidecar.app.files import matching
from sidecar.app.proven import held
from sidecar.app.trust import trusted
from sidecar.errors import ConfigError, Problem
from sidecar.hooks import CollectorSettings
from sidecar.outputs.endpoint import Endpoint
from sidecar.plugins import Registry
from sidecar.responses.loader import LoadedResponses, load_caps, load_responses
from sidecar.responses.response import Mode, Response
from sidecar.settings import Loaded
from sidecar.yamlfile import Document

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Rulebook:
    """What runs: frozen, so that a reload swaps one object for another."""

    loaded: Loaded
    groups: tuple[RuleGroup, ...]
    responses: tuple[Response, ...]
    caps: Mapping[str, Mode]
    endpoints: tuple[Endpoint, ...]
    collectors: Mapping[str, CollectorSettings]
    warnings: tuple[Problem, ...]
    hash: int


class _Gathering:
    """Runs steps that may each raise ConfigError, and keeps all they found."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def run(self, work: Callable[[], _T], otherwise: _T) -> _T:
        try:
            return work()
        except ConfigError as e:
            self.problems.extend(e.problems)
            return otherwise

    def check(self) -> None:
        if any(p.level == "error" for p in self.problems):
            raise ConfigError(self.problems)


def load_rulebook(loaded: Loaded, registry: Registry) -> Rulebook:
    """Reads rules, overrides, responses and caps, checks the collectors' settings. Raises ConfigError with the
    problems of all of them.
    """
    gather = _Gathering()
    settings = loaded.settings
    warnings: list[Problem] = []
    contents: list[str] = [loaded.hash]

    def read(path: Path) -> Document:
        document = Document.read(path)
        contents.append(document.text)
        return document

    def documents(setting: str) -> list[Document]:
        paths, problems = matching(loaded, setting)
        gather.problems += problems
        found = [gather.run(lambda path=path: read(path), None) for path in paths]  # type: ignore[misc]
        return [d for d in found if d is not None]

    rule_documents = documents("rules")
    if settings.rules and not rule_documents and not gather.problems:
        warnings.append(
            loaded.document.problem(("rules",), "rules: no file matches: no alert will fire", level="warning")
        )
    rules = gather.run(lambda: load_rules(rule_documents), LoadedRules(()))
    groups = rules.groups
    warnings += rules.warnings
    # Where a rule file is wrong, that its alerts are missing elsewhere is no mistake of those who name them.
    whole = not gather.problems
    if settings.overrides is not None:
        shipped, override_path = groups, loaded.path(settings.overrides)
        overrides: tuple[Override, ...] = gather.run(
            lambda: load_overrides(read(override_path), shipped if whole else None), ()
        )
        groups = apply_overrides(shipped, overrides)
    caps: Mapping[str, Mode] = {}
    if settings.caps is not None:
        cap_path = loaded.path(settings.caps)
        caps = gather.run(lambda: load_caps(read(cap_path), registry.remediations), {})
    known = frozenset(rule.name for group in groups for rule in group.rules if rule.is_alert) if whole else None
    collectors: Mapping[str, CollectorSettings] = gather.run(lambda: collecting.check(loaded, registry), {})
    egress = EgressList(settings.egress.allow)

    def read_responses(document: Document) -> LoadedResponses:
        read = load_responses(document, registry.remediations, known)
        return trusted(
            document, held(document, read, registry.remediations, egress), groups, records.catalogue(registry)
        )

    response_documents = documents("responses")
    responses: list[Response] = []
    names: dict[str, str] = {}
    for document in response_documents:
        found = gather.run(lambda document=document: read_responses(document), None)  # type: ignore[misc]
        if found is None:
            continue
        responses += found.responses
        warnings += found.warnings
        for index, response in enumerate(found.responses):
            if response.name in names:
                where = ("responses", index, "name")
                gather.problems.append(document.problem(where, f"{response.name!r} is also in {names[response.name]}"))
            names[response.name] = document.file
    gather.check()
    return Rulebook(
        loaded,
        groups,
        tuple(responses),
        caps,
        tuple(Endpoint(a, loaded.folder) for a in settings.alertmanagers),
        collectors,
        tuple(warnings),
        int(hashlib.sha256("\0".join(contents).encode()).hexdigest()[:12], 16),
    )
