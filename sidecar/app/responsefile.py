"""Response unit-test files: input series and a scripted trainer, and what must come of them. Strict, with places."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from sidecar.alerting.fields import Findings, Mapped
from sidecar.alerting.testfile import InputSeries, read_series
from sidecar.errors import ConfigError
from sidecar.model import Knob, KnobValue, Scope
from sidecar.yamlfile import Document

Doing = Literal["restart", "detach", "attach", "refuse", "accept"]
DOINGS: tuple[Doing, ...] = ("restart", "detach", "attach", "refuse", "accept")

_FILE = frozenset({"rule_files", "response_files", "caps_file", "evaluation_interval", "tests"})
_CASE = frozenset({"name", "interval", "duration", "input_series", "trainer", "answers", "response_test"})
_TRAINER = frozenset({"knobs", "facts", "effects", "events"})
_CHECK = frozenset(
    {
        "response",
        "episode",
        "exp_decision",
        "exp_waited",
        "exp_plan",
        "exp_verdict",
        "exp_reason",
        "exp_result",
        "exp_knobs",
    }
)


@dataclass(frozen=True, slots=True)
class Effect:
    """What these values of knobs do while all are in effect: factors of how fast counters grow, and of gauges."""

    when: Mapping[str, KnobValue]
    rates: Mapping[str, float]
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Event:
    """Something happens to the trainer, or somebody sets knobs by hand."""

    at_ms: int
    do: Doing | None
    set_by_hand: Mapping[str, KnobValue]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a person says to the plan of a response, as soon as it waits for that, from `from_ms` on."""

    response: str
    from_ms: int
    by: str
    approve: bool


@dataclass(frozen=True, slots=True)
class Check:
    """What must have become of a response in its nth episode; what is None is not checked."""

    response: str
    episode: int
    line: int
    decision: str | None
    waited: tuple[str, ...] | None
    plan: Mapping[str, KnobValue] | None
    verdict: str | None
    reason: str | None
    result: str | None
    knobs: Mapping[str, KnobValue] | None


@dataclass(frozen=True, slots=True)
class Case:
    """One test. Times are milliseconds from its start."""

    name: str
    line: int
    interval_ms: int
    duration_ms: int
    series: tuple[InputSeries, ...]
    knobs: Mapping[str, Knob]
    facts: Mapping[str, float]
    effects: tuple[Effect, ...]
    events: tuple[Event, ...]
    answers: tuple[Answer, ...]
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True)
class ResponseTestFile:
    """A whole file. Globs are made absolute; `response_places` says where a response is named."""

    path: str
    rule_files: tuple[Path, ...]
    response_files: tuple[Path, ...]
    caps_file: Path | None
    interval_ms: int
    cases: tuple[Case, ...]
    named: tuple[tuple[str, yaml.Node], ...]


def read_response_test(document: Document) -> tuple[ResponseTestFile, Findings]:
    """Raises ConfigError with every problem. The findings take what turns out to be wrong later, with its place."""
    found = Findings(document.file)
    file = None if document.node is None else Mapped.of(document.node, found, "response test file", _FILE)
    if file is None:
        raise ConfigError(found.problems or [document.problem((), "an empty file tests nothing")])
    folder = Path(document.file).parent
    interval = file.duration("evaluation_interval") or 1_000
    reader = _Reader(found)
    cases = [reader.case(node, interval) for node in file.items("tests")]
    caps = file.text("caps_file")
    result = ResponseTestFile(
        document.file,
        tuple(folder / node.value for node in file.items("rule_files") if node.value),
        tuple(folder / node.value for node in file.items("response_files") if node.value),
        folder / caps if caps else None,
        interval,
        tuple(case for case in cases if case is not None),
        tuple(reader.named),
    )
    if not result.response_files:
        found.error(file.place("response_files"), "response_files names no file")
    if not result.cases and not found.problems:
        found.error(file.place("tests"), "there are no tests")
    if found.problems:
        raise ConfigError(found.problems)
    return result, found


class _Reader:
    def __init__(self, found: Findings) -> None:
        self.found = found
        self.named: list[tuple[str, yaml.Node]] = []

    def case(self, node: yaml.Node, default_ms: int) -> Case | None:
        fields = Mapped.of(node, self.found, "test", _CASE)
        if fields is None:
            return None
        series = tuple(read_series(fields))
        trainer = (
            Mapped.of(fields.values["trainer"], self.found, "trainer", _TRAINER) if "trainer" in fields.values else None
        )
        knobs = self._knobs(trainer) if trainer else {}
        metrics = {one.metric for one in series}
        interval = fields.duration("interval") or default_ms
        lasting = max((len(one.values) for one in series), default=0) * interval
        checks = tuple(self._checks(fields))
        if not checks:
            self.found.error(fields.place("response_test"), "a test without response_test checks nothing")
        return Case(
            name=fields.text("name"),
            line=node.start_mark.line + 1,
            interval_ms=interval,
            duration_ms=fields.duration("duration") or lasting,
            series=series,
            knobs=knobs,
            facts=self._factors(trainer, "facts") if trainer else {},
            effects=tuple(self._effects(trainer, knobs, metrics)) if trainer else (),
            events=tuple(self._events(trainer, knobs)) if trainer else (),
            answers=tuple(self._answers(fields)),
            checks=checks,
        )

    # --- the trainer ------------------------------------------------------------------------------------------------

    def _knobs(self, trainer: Mapped) -> dict[str, Knob]:
        """A value alone, or {value, minimum, maximum, scope}."""
        found: dict[str, Knob] = {}
        for name, node in self._named(trainer, "knobs"):
            if not isinstance(node, yaml.MappingNode):
                found[name] = Knob(name, self._value(node))
                continue
            knob = Mapped.of(node, self.found, "knob", frozenset({"value", "minimum", "maximum", "scope"}))
            if knob is None or "value" not in knob.values:
                self.found.error(node, f"the knob {name} needs a value")
                continue
            scope = knob.text("scope") or Scope.LOCAL.value
            if scope not in {s.value for s in Scope}:
                self.found.error(knob.place("scope"), f"scope must be local or all_rank, not {scope!r}")
                scope = Scope.LOCAL.value
            low, high = (knob.number(k) if k in knob.values else None for k in ("minimum", "maximum"))
            found[name] = Knob(name, self._value(knob.values["value"]), low, high, "", Scope(scope))
        return found

    def _effects(self, trainer: Mapped, knobs: Mapping[str, Knob], metrics: set[str]) -> Iterator[Effect]:
        for item in self._items(trainer, "effects", frozenset({"when", "rates", "values"})):
            effect = Effect(self._values(item, "when"), self._factors(item, "rates"), self._factors(item, "values"))
            self._known(item, "when", effect.when, {**knobs, "request": None}, "knob of the trainer")
            for key, factors in (("rates", effect.rates), ("values", effect.values)):
                self._known(item, key, factors, dict.fromkeys(metrics), "metric of the input series")
            yield effect

    def _events(self, trainer: Mapped, knobs: Mapping[str, Knob]) -> Iterator[Event]:
        for item in self._items(trainer, "events", frozenset({"at", "do", "set"})):
            do = item.text("do")
            by_hand = self._values(item, "set")
            self._known(item, "set", by_hand, knobs, "knob of the trainer")
            if do and do not in DOINGS:
                self.found.error(item.place("do"), f"do must be one of {', '.join(DOINGS)}, not {do!r}")
            if bool(do) == bool(by_hand):
                self.found.error(item.node, "an event needs one of do and set")
            yield Event(item.duration("at"), next((d for d in DOINGS if d == do), None), by_hand)

    # --- people and checks ------------------------------------------------------------------------------------------

    def _answers(self, fields: Mapped) -> Iterator[Answer]:
        for item in self._items(fields, "answers", frozenset({"response", "from", "by", "say"})):
            say = item.text("say") or "approve"
            if say not in ("approve", "reject"):
                self.found.error(item.place("say"), f"say approve or reject, not {say!r}")
            yield Answer(self._response(item), item.duration("from"), item.text("by") or "test", say == "approve")

    def _checks(self, fields: Mapped) -> Iterator[Check]:
        for item in self._items(fields, "response_test", _CHECK):
            episode = item.integer("episode") if "episode" in item.values else 1
            if episode < 1:
                self.found.error(item.place("episode"), "episodes count from 1")
            texts = {k: item.text(k) if k in item.values else None for k in _CHECK if k.startswith("exp_")
                     and k not in ("exp_waited", "exp_plan", "exp_knobs")}  # fmt: skip
            waited = tuple(node.value for node in item.items("exp_waited")) if "exp_waited" in item.values else None
            yield Check(
                response=self._response(item),
                episode=episode,
                line=item.node.start_mark.line + 1,
                decision=texts["exp_decision"],
                waited=waited,
                plan=self._values(item, "exp_plan") if "exp_plan" in item.values else None,
                verdict=texts["exp_verdict"],
                reason=texts["exp_reason"],
                result=texts["exp_result"],
                knobs=self._values(item, "exp_knobs") if "exp_knobs" in item.values else None,
            )

    def _response(self, item: Mapped) -> str:
        name = item.text("response")
        if not name:
            self.found.error(item.node, "the name of a response is missing")
        else:
            self.named.append((name, item.place("response")))
        return name

    # --- pieces -----------------------------------------------------------------------------------------------------

    def _items(self, fields: Mapped, key: str, known: frozenset[str]) -> list[Mapped]:
        items = [Mapped.of(node, self.found, f"{key} item", known) for node in fields.items(key)]
        return [item for item in items if item is not None]

    def _named(self, fields: Mapped, key: str) -> list[tuple[str, yaml.Node]]:
        node = fields.values.get(key)
        if node is None:
            return []
        mapped = Mapped.of(node, self.found, key, None)
        return [] if mapped is None else list(mapped.values.items())

    def _values(self, fields: Mapped, key: str) -> dict[str, KnobValue]:
        return {name: self._value(node) for name, node in self._named(fields, key)}

    def _value(self, node: yaml.Node) -> KnobValue:
        value: Any = None
        if isinstance(node, yaml.ScalarNode):
            value = node.value if node.style in ("'", '"') else yaml.safe_load(node.value)
        if not isinstance(value, int | float | str | bool):
            self.found.error(node, "a knob's value is a number, a text, true or false")
            return 0
        return value

    def _factors(self, fields: Mapped, key: str) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, node in self._named(fields, key):
            try:
                found[name] = float(yaml.safe_load(node.value)) if isinstance(node, yaml.ScalarNode) else float("x")
            except (ValueError, TypeError, yaml.YAMLError):
                self.found.error(node, f"{key}.{name} must be a number")
        return found

    def _known(self, item: Mapped, key: str, given: Mapping[str, Any], known: Mapping[str, Any], what: str) -> None:
        for name in given:
            if name not in known:
                there = ", ".join(sorted(known)) or "none"
                self.found.error(item.place(key), f"{name} is no {what} (there are: {there})")
