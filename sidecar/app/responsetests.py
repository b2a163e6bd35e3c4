"""Runs response unit tests: real rules, responder and statistics on a scripted trainer, under a clock that jumps."""

from __future__ import annotations

import glob
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sidecar import promql
from sidecar.actuators.notes import Notes
from sidecar.alerting.fields import Findings
from sidecar.alerting.loader import load_rules
from sidecar.alerting.manager import Manager
from sidecar.alerting.rules import RuleGroup, literal_queries
from sidecar.alerting.testreport import Failure, Report
from sidecar.alerting.writing import StoreWriter
from sidecar.app import views
from sidecar.app.proven import held
from sidecar.app.responsefeed import Feed
from sidecar.app.responsefile import Case, Check, ResponseTestFile, read_response_test
from sidecar.clock import FakeClock
from sidecar.errors import ConfigError, Problem
from sidecar.hooks import Actuator, Remediation
from sidecar.model import Knob, KnobValue
from sidecar.plugins import Registry
from sidecar.responses.engine import Responder
from sidecar.responses.fake_actuator import FakeActuator
from sidecar.responses.journal import Entry, Journal
from sidecar.responses.loader import load_caps, load_responses
from sidecar.responses.response import Mode, Response
from sidecar.responses.store_measure import StoreMeasure
from sidecar.statedb import StateDB
from sidecar.store import Store
from sidecar.yamlfile import Document

MAX_TICKS = 200_000
"""Of one case: more would take hours and is a slip of the pen."""

REQUEST = "request"


def run_response_file(document: Document, registry: Registry | None = None) -> Report:
    """Runs every test of a file. Never raises for a bad file: its problems are in the report."""
    if registry is None:
        registry = Registry()
        registry.discover()
    path = document.file
    try:
        file, found = read_response_test(document)
        warnings: list[Problem] = []
        groups = load_rules(_matching(file.rule_files, path, warnings)).groups
        responses, caps = _responses(file, groups, registry.remediations, warnings)
        _check_names(file, found, responses)
    except ConfigError as e:
        return Report(path, 0, 0, (), e.problems)
    failures: list[Failure] = []
    for number, case in enumerate(file.cases):
        name = case.name or f"unnamed#{number}"
        run = _CaseRun(file, case, groups, responses, caps, registry.remediations)
        failures += [Failure(name, f.line, f.what, f.expected, f.got, f.message) for f in run.failures()]
    checks = sum(len(case.checks) for case in file.cases)
    return Report(path, len(file.cases), checks, tuple(failures), tuple(warnings))


def _matching(patterns: Sequence[Path], file: str, warnings: list[Problem]) -> list[Path]:
    paths: list[Path] = []
    for pattern in patterns:
        found = sorted(glob.glob(str(pattern)))
        if not found:
            warnings.append(Problem(file, 0, 0, f"no file matches {pattern}", "warning"))
        paths += [Path(p) for p in found if Path(p) not in paths]
    return paths


def _responses(
    file: ResponseTestFile,
    groups: Sequence[RuleGroup],
    remediations: Mapping[str, Remediation],
    warnings: list[Problem],
) -> tuple[list[Response], Mapping[str, Mode]]:
    alerts = [rule.name for group in groups for rule in group.rules if rule.is_alert]
    responses: list[Response] = []
    for path in _matching(file.response_files, file.path, warnings):
        document = Document.read(path)
        loaded = held(document, load_responses(document, remediations, alerts), remediations, None)
        responses += loaded.responses
        warnings += loaded.warnings
    caps = {} if file.caps_file is None else load_caps(Document.read(file.caps_file), remediations)
    return responses, caps


def _check_names(file: ResponseTestFile, found: Findings, responses: Sequence[Response]) -> None:
    known = {response.name for response in responses}
    for name, node in file.named:
        if name not in known:
            found.error(node, f"no response is named {name!r} (there are: {', '.join(sorted(known)) or 'none'})")
    if found.problems:
        raise ConfigError(found.problems)


class _CaseRun:
    """One case: a store, a trainer and a responder of its own."""

    def __init__(
        self,
        file: ResponseTestFile,
        case: Case,
        groups: Sequence[RuleGroup],
        responses: Sequence[Response],
        caps: Mapping[str, Mode],
        remediations: Mapping[str, Remediation],
    ) -> None:
        self._file, self._case = file, case
        self._clock = FakeClock(0)
        self._trainer = FakeActuator(self._clock, case.knobs)
        self._http = FakeActuator(self._clock, {REQUEST: Knob(REQUEST, "")})
        self._store = Store(min_keep_ms=case.duration_ms + file.interval_ms)
        self._entries: list[Entry] = []
        self._feed = Feed(self._store, case, self._values)
        measure = StoreMeasure(self._store, file.interval_ms)
        sights = views.Sights(measure, self._clock.now_ms)
        actuators: Mapping[str, Actuator] = {"trainer": self._trainer, "http": self._http, "notes": Notes()}
        self._db = StateDB(":memory:")
        self._responder = Responder(
            responses,
            actuators,
            views.seeing(remediations, sights),
            measure,
            Journal(self._db, on_entry=self._entries.append),
            caps=caps,
            facts=lambda: case.facts,
        )
        program = promql.compile([rule.expr for group in groups for rule in group.rules])
        read = promql.compile(
            [*program.exprs, *literal_queries(groups), *self._responder.exprs(),
             *views.reads(remediations, (r.remediation for r in responses))]
        )  # fmt: skip
        self._store.reserve({metric: span + case.duration_ms for metric, span in read.needs().items()})
        self._manager = Manager(
            groups,
            program.bind(self._store, interval_ms=file.interval_ms).at,
            StoreWriter(self._store),
            look=lambda expr, t_ms: promql.evaluate(self._store, expr, t_ms, file.interval_ms),
            default_interval_ms=file.interval_ms,
        )
        self._events = sorted(case.events, key=lambda event: event.at_ms)

    def _values(self) -> dict[str, KnobValue]:
        """What is in effect now; of a request its address."""
        return {name: _plain(name, v) for name, v in {**self._trainer.values(), **self._http.values()}.items()}

    def failures(self) -> Iterator[Failure]:
        case, interval = self._case, self._file.interval_ms
        if case.duration_ms // interval > MAX_TICKS:
            text = f"more than {MAX_TICKS} evaluations would take hours"
            yield Failure("", case.line, f"{case.duration_ms // interval} evaluations", message=text)
            return
        try:
            self._responder.recover(0)
            while self._clock.now_ms() <= case.duration_ms:
                self._tick(self._clock.now_ms())
                self._clock.advance(interval)
            for check in case.checks:
                yield from self._checked(check)
        finally:
            self._db.close()

    def _tick(self, now: int) -> None:
        while self._events and self._events[0].at_ms <= now:
            event = self._events.pop(0)
            for name, value in event.set_by_hand.items():
                self._trainer.set_by_hand(name, value)
            self._happen(event.do)
        self._feed.until(now)
        if events := self._manager.tick(now):
            self._responder.on_events(events, now)
        self._answer(now)
        self._responder.tick(now)

    def _happen(self, do: str | None) -> None:
        match do:
            case "restart":
                self._trainer.restart_trainer()
            case "detach":
                self._trainer.detach()
            case "attach":
                self._trainer.attach()
            case "refuse":
                self._trainer.refuse = "refused"
            case "accept":
                self._trainer.refuse = ""

    def _answer(self, now: int) -> None:
        for episode, attempt, response in self._responder.waiting():
            for answer in self._case.answers:
                if answer.response == response.name and now >= answer.from_ms and not attempt.approved_by:
                    say = self._responder.approve if answer.approve else self._responder.reject
                    say(episode.id, response.name, answer.by, now)
                    break

    # --- checks -----------------------------------------------------------------------------------------------------

    def _checked(self, check: Check) -> Iterator[Failure]:
        what = f"response: {check.response}"
        if check.episode > 1:
            what += f", episode {check.episode}"
        got = self._became(check)
        expected = {
            "decision": check.decision,
            "waited": None if check.waited is None else list(check.waited),
            "plan": None if check.plan is None else dict(check.plan),
            "verdict": check.verdict,
            "reason": check.reason,
            "result": check.result,
            "knobs": None if check.knobs is None else dict(check.knobs),
        }
        if check.knobs is not None:
            got["knobs"] = {name: self._values().get(name) for name in check.knobs}
        wrong = [key for key, value in expected.items() if value is not None and got[key] != value]
        if wrong:
            yield Failure(
                "",
                check.line,
                what,
                tuple(f"{key}: {_text(expected[key])}" for key in wrong),
                tuple(f"{key}: {_text(got[key])}" + self._why(key, got) for key in wrong),
            )

    def _became(self, check: Check) -> dict[str, Any]:
        episodes = list(dict.fromkeys(e.episode for e in self._entries if e.response == check.response))
        mine = episodes[check.episode - 1] if len(episodes) >= check.episode else None
        got: dict[str, Any] = {
            "decision": "none",
            "waited": [],
            "plan": {},
            "verdict": "none",
            "reason": "",
            "result": "none",
        }
        got["knobs"], got["detail"] = {}, ""
        for entry in self._entries:
            if entry.episode != mine or entry.response != check.response:
                continue
            data = entry.data
            if entry.kind == "waiting":
                got["waited"].append(data["reason"])
            elif entry.kind == "decision":
                got["decision"], got["detail"] = data["reason"], str(data.get("detail", ""))
            elif entry.kind == "verdict":
                got["verdict"], got["reason"] = data["verdict"], data["reason"]
            elif data.get("result") is not None:
                got["result"] = data["result"]
            values = data.get("values") or (data.get("plan") or {}).get("values")
            if values:
                got["plan"] = {name: _plain(name, value) for name, value in values.items()}
        return got

    def _why(self, key: str, got: Mapping[str, Any]) -> str:
        if key == "decision" and got["decision"] == "none":
            return f" (waits: {', '.join(got['waited'])})" if got["waited"] else " (no alert that it answers fired)"
        return f" ({got['detail']})" if key == "decision" and got["detail"] else ""


def _plain(name: str, value: KnobValue) -> KnobValue:
    if name == REQUEST and value:
        return str(json.loads(str(value))["url"])
    return value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
