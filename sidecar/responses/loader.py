"""Responses and caps files, checked against the plugins, PromQL and each other; every problem listed with its place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ValidationError

from sidecar import durations, promql
from sidecar.alerting.templates import TemplateParser
from sidecar.errors import ConfigError, Problem, QueryError, TemplateError
from sidecar.hooks import Remediation
from sidecar.responses import matchers
from sidecar.responses.parameters import Templated, templates_in
from sidecar.responses.response import Approval, Guard, Limits, Mode, Response, Verify
from sidecar.responses.shapes import (
    CapsShape,
    FileShape,
    IntervalShape,
    ModeText,
    NamedIntervals,
    ResponseShape,
    VerifyShape,
)
from sidecar.responses.statistics import Goal
from sidecar.responses.timeintervals import TimeInterval
from sidecar.yamlfile import Document

_SHORTEST_MS = 9_000  # nine samples taken once a second bound the eight increments a verdict takes at least

_KINDS = {"matrix": "range vector"}

_NOTES = "notes"
"""The actuator that changes nothing, so that there is nothing to verify."""

_NOTHING = VerifyShape(expr="vector(0)", goal="increase")


@dataclass(frozen=True, slots=True)
class LoadedResponses:
    """The responses of a file, in its order, and what is accepted but is probably a mistake."""

    responses: tuple[Response, ...]
    warnings: tuple[Problem, ...] = ()


def load_responses(
    document: Document, remediations: Mapping[str, Remediation], alerts: Iterable[str] | None = None
) -> LoadedResponses:
    """Reads a responses file. `alerts`: the names that rules can raise, None where not known.

    Raises ConfigError with every problem.
    """
    loader = _Loader(document, remediations, None if alerts is None else frozenset(alerts))
    file = document.validate(FileShape)
    loader.intervals(file.time_intervals)
    found = [loader.response(i, value) for i, value in enumerate(file.responses)]
    loader.check_names(found)
    errors = [p for p in loader.problems if p.level == "error"]
    if errors:
        raise ConfigError(loader.problems)
    return LoadedResponses(tuple(r for r in found if r is not None), tuple(loader.problems))


def load_caps(document: Document, remediations: Iterable[str]) -> dict[str, Mode]:
    """Reads a platform's caps, remediation -> highest mode. Raises ConfigError with every problem."""
    problems: list[Problem] = []
    caps: dict[str, ModeText] = {}
    try:
        caps = document.validate(CapsShape).caps
    except ConfigError as e:
        problems.extend(e.problems)
    given = document.value.get("caps") if isinstance(document.value, dict) else None
    known = sorted(remediations)
    problems += [
        document.problem(("caps", name), _unknown_remediation(name, known), key=True)
        for name in (given if isinstance(given, dict) else ())
        if name not in known
    ]
    if problems:
        raise ConfigError(problems)
    return {name: Mode[mode.upper()] for name, mode in caps.items()}


class _Loader:
    def __init__(
        self, document: Document, remediations: Mapping[str, Remediation], alerts: frozenset[str] | None
    ) -> None:
        self._document, self._remediations, self._alerts = document, remediations, alerts
        self.problems: list[Problem] = []
        self._parser = TemplateParser()
        self._intervals: dict[str, tuple[TimeInterval, ...]] = {}

    def intervals(self, values: list[Any]) -> None:
        """The file's named time intervals; those with problems are known by name all the same."""
        for i, value in enumerate(values):
            path = ("time_intervals", i)
            try:
                shape = self._document.validate(NamedIntervals, path)
            except ConfigError as e:
                self.problems.extend(e.problems)
                if isinstance(value, dict) and isinstance(value.get("name"), str):
                    self._intervals.setdefault(value["name"], ())
                continue
            if shape.name in self._intervals:
                self._error((*path, "name"), f"the name {shape.name!r} is given twice")
            self._intervals[shape.name] = tuple(
                interval
                for j in range(len(shape.time_intervals))
                if (interval := self._interval((*path, "time_intervals", j))) is not None
            )

    def _interval(self, path: tuple[str | int, ...]) -> TimeInterval | None:
        try:
            return self._document.validate(IntervalShape, path).interval()
        except ConfigError as e:
            self.problems.extend(e.problems)
        except ValueError as e:
            self._error(path, str(e))
        return None

    def _named(self, path: tuple[str | int, ...], raw: Mapping[str, Any], key: str) -> tuple[TimeInterval, ...]:
        found: list[TimeInterval] = []
        names = raw.get(key)
        for j, name in enumerate(names if isinstance(names, list) else []):
            if isinstance(name, str) and name in self._intervals:
                found += self._intervals[name]
            elif isinstance(name, str):
                known = ", ".join(self._intervals) or "none"
                self._error((*path, key, j), f"no time interval is named {name!r}; there are: {known}")
        return tuple(found)

    def response(self, i: int, value: Any) -> Response | None:
        """One entry; None where it has problems, all of which are then in `problems`."""
        before = len(self.problems)
        path = ("responses", i)
        raw = value if isinstance(value, dict) else {}
        try:
            shape = self._document.validate(ResponseShape, path)
        except ConfigError as e:
            self.problems.extend(e.problems)
            shape = None
        # What has the right shape is checked further even where something else has not: all problems at once.
        found = self._matchers(path, raw.get("match"))
        params = self._params(path, raw)
        active = self._named(path, raw, "active_time_intervals")
        muted = self._named(path, raw, "mute_time_intervals")
        self._exprs(path, raw.get("verify"), shape)
        if shape is not None and shape.verify is None and self._changes_something(shape.remediation):
            self.problems.append(self._document.problem(path, f"responses.{i}.verify: is missing", key=True))
        if shape is None or params is None or any(p.level == "error" for p in self.problems[before:]):
            return None
        return _response(shape, found, params, active, muted)

    def _changes_something(self, remediation: str) -> bool:
        found = self._remediations.get(remediation)
        return found is None or found.actuator != _NOTES

    def check_names(self, responses: list[Response | None]) -> None:
        """Names are identities: limits, breakers and records hang on them."""
        seen: set[str] = set()
        for i, response in enumerate(responses):
            if response is not None and response.name in seen:
                self._error(("responses", i, "name"), f"the name {response.name!r} is given twice")
            elif response is not None:
                seen.add(response.name)

    def _matchers(self, path: tuple[str | int, ...], texts: Any) -> tuple[matchers.Matcher, ...]:
        found: list[matchers.Matcher] = []
        for j, text in enumerate(texts if isinstance(texts, list) else []):
            if isinstance(text, str):
                try:
                    found.extend(matchers.parse(text))
                except ValueError as e:
                    self._error((*path, "match", j), f"{e} in {text!r}")
        on_name = [m for m in found if m.name == "alertname"]
        if self._alerts is not None and on_name:
            if not any(all(m.matches({"alertname": a}) for m in on_name) for a in self._alerts):
                wanted = " and ".join(str(m) for m in on_name)
                self._warn((*path, "match"), f"no rule raises an alert with {wanted}: this response will never act")
        return tuple(found)

    def _params(self, path: tuple[str | int, ...], raw: Mapping[str, Any]) -> BaseModel | Templated | None:
        name = raw.get("remediation")
        if not isinstance(name, str):
            return None
        remediation = self._remediations.get(name)
        if remediation is None:
            self._error((*path, "remediation"), _unknown_remediation(name, sorted(self._remediations)))
            return None
        given = raw.get("with", {})
        if not isinstance(given, dict):
            return None
        try:
            templates = templates_in(given, self._parser)
        except TemplateError as e:
            self._error((*path, "with"), str(e))
            return None
        try:
            params = remediation.params.model_validate(given)
        except ValidationError as e:
            # What a template stands in for is checked once there is an alert.
            wrong = [
                problem
                for item, problem in zip(
                    e.errors(include_url=False),
                    self._document.located(e, (*path, "with"), remediation.params.model_fields),
                    strict=True,
                )
                if not any(tuple(item["loc"][: len(place)]) == place for place in templates)
            ]
            self.problems.extend(wrong)
            return None if wrong else Templated(given, remediation.params, templates)
        return Templated(given, remediation.params, templates) if templates else params

    def _exprs(self, path: tuple[str | int, ...], verify: Any, shape: ResponseShape | None) -> None:
        if not isinstance(verify, dict):
            return
        guards = verify.get("abort_if")
        for j, guard in enumerate(guards if isinstance(guards, list) else []):
            if isinstance(guard, str):
                self._compiled((*path, "verify", "abort_if", j), guard)
        values = verify.get("guards")
        for j, value in enumerate(values if isinstance(values, list) else []):
            if isinstance(value, dict) and isinstance(value.get("expr"), str):
                self._compiled((*path, "verify", "guards", j, "expr"), value["expr"], counts=False)
        expr = verify.get("expr")
        longest = self._compiled((*path, "verify", "expr"), expr) if isinstance(expr, str) else None
        shown = None if shape is None else shape.verify
        if shown is not None:
            for name, length in (("baseline", shown.baseline), ("window", shown.window)):
                if length < _SHORTEST_MS:
                    self._warn(
                        (*path, "verify", name),
                        f"{name} of {durations.text(length)}: a verdict takes at least 8 samples, more than that holds"
                        " where a sample is taken once a second; the response would never act",
                    )
        if longest is not None and shown is not None and shown.window < longest:
            self._warn(
                (*path, "verify", "window"),
                f"shorter than the {durations.text(longest)} range in expr: it settles for longer than it measures",
            )

    def _compiled(self, path: tuple[str | int, ...], expr: str, *, counts: bool = True) -> int | None:
        """The expression's longest range in ms; None where it is wrong. `counts`: its increments will be taken."""
        try:
            if counts:
                promql.increments(expr)
            program = promql.compile([expr])
            if (found := promql.kind(program.node(expr))) != "vector":
                raise QueryError(f"must give an instant vector, not a {_KINDS.get(found, found)}", expr)
            return program.longest_range_ms(expr)
        except QueryError as e:
            self._error(path, str(e))
            return None

    def _error(self, path: tuple[str | int, ...], message: str) -> None:
        self.problems.append(self._document.problem(path, message))

    def _warn(self, path: tuple[str | int, ...], message: str) -> None:
        self.problems.append(self._document.problem(path, message, level="warning"))


def _response(
    shape: ResponseShape,
    found: tuple[matchers.Matcher, ...],
    params: BaseModel | Templated,
    active: tuple[TimeInterval, ...],
    muted: tuple[TimeInterval, ...],
) -> Response:
    verify, limits = shape.verify or _NOTHING, shape.limits
    return Response(
        name=shape.name,
        matchers=found,
        remediation=shape.remediation,
        params=params,
        mode=Mode[shape.mode.upper()],
        verify=Verify(
            verify.expr,
            Goal(verify.goal),
            verify.by,
            verify.baseline,
            verify.window,
            tuple(verify.abort_if),
            tuple(Guard(guard.expr, guard.z) for guard in verify.guards),
        ),
        limits=Limits(limits.scope, limits.cooldown, limits.per_hour, limits.max_ineffective, limits.rollout),
        approval=Approval(shape.approval.owner, shape.approval.expires),
        active=active if shape.active_time_intervals else None,
        muted=muted,
    )


def _unknown_remediation(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, 1)
    meant = f"did you mean {near[0]}? " if near else ""
    return f"unknown remediation {name!r}; {meant}there are: {', '.join(known) or 'none'}"
