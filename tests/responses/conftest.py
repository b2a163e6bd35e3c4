"""A small world for the responder: a trainer whose throughput depends on its knobs, a clock, a database on disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel

from sidecar.clock import FakeClock
from sidecar.errors import QueryError
from sidecar.model import Alert, AlertEvent, AlertState, Change, Edge, Knob, Skip, labels_of
from sidecar.responses import matchers
from sidecar.responses.engine import Responder
from sidecar.responses.fake_actuator import FakeActuator
from sidecar.responses.journal import Journal
from sidecar.responses.killswitch import Halt
from sidecar.responses.measure import Increments
from sidecar.responses.response import Limits, Mode, Policy, Response, Verify
from sidecar.responses.statistics import Goal
from sidecar.statedb import StateDB

EXPR, GUARD = "sum(rate(samples_total[10s]))", "increase(bad_total[1m]) > 0"
POLICY = Policy(settle_ms=2_000, apply_timeout_ms=20_000, close_timeout_ms=50_000, min_steps=10, min_samples=8)
START = 1_000_000


class Params(BaseModel):
    to: int = 4


class SetWorkers:
    """A remediation for tests: sets `workers`, or whatever `plans` holds instead."""

    name: ClassVar[str] = "set_workers"
    params: ClassVar[type[BaseModel]] = Params
    actuator: ClassVar[str] = "trainer"
    knobs: ClassVar[tuple[str, ...]] = ("workers", "shared")
    example: ClassVar[dict[str, Any]] = {"to": 4}

    def __init__(self) -> None:
        self.plans: Change | Skip | Exception | None = None

    def plan(self, alert, view, params):
        if isinstance(self.plans, Exception):
            raise self.plans
        return self.plans or Change("trainer", {"workers": params.to}, "more workers")


class FakeMeasure:
    """Answers from what `World.pass_second` recorded. Guards: `broken`, `unseen`; `elements` of the expression."""

    def __init__(self) -> None:
        self.samples: list[tuple[int, float]] = []
        self.step_times: list[int] = []
        self.losses: list[tuple[int, float]] = []  # of a guarded value
        self.broken = self.unseen = self.failing = self.stepless = False
        self.elements = 1
        self.range_ms = 3_000
        self.ranges: dict[str, int] = {}  # of other expressions than the verified one

    def increments(self, expr, after_ms, until_ms):
        self._fail()
        return Increments([s for s in self.samples if after_ms < s[0] <= until_ms], self.elements)

    def evaluate(self, expr, t_ms):
        self._fail()
        return [((), 1.0)] if self.broken else []

    def values(self, expr, after_ms, until_ms):
        self._fail()
        return [s for s in self.losses if after_ms < s[0] <= until_ms]

    def seen(self, expr, t_ms):
        return not self.unseen

    def longest_range_ms(self, expr):
        return self.ranges.get(expr, self.range_ms)

    def steps(self, after_ms, until_ms):
        return None if self.stepless else float(sum(1 for t in self.step_times if after_ms < t <= until_ms))

    def _fail(self) -> None:
        if self.failing:
            raise QueryError("many-to-many matching", EXPR)


def response(name: str = "feed", **changes: Any) -> Response:
    """Acts on `Starved`, with a baseline and window of 20 s each."""
    verify = Verify(EXPR, Goal.INCREASE, 0.05, 20_000, 20_000, (GUARD,))
    fields: dict[str, Any] = {
        "name": name,
        "matchers": matchers.parse('alertname="Starved"'),
        "remediation": "set_workers",
        "params": Params(),
        "mode": Mode.ACT,
        "verify": verify,
        "limits": Limits(),
    }
    return Response(**{**fields, **changes})


def alert(name: str = "Starved", active_at_ms: int = START, fired_at_ms: int = START, **labels: str) -> Alert:
    return Alert(name, labels_of(labels), (), AlertState.FIRING, 0.5, active_at_ms, fired_at_ms)


def firing(subject: Alert, at_ms: int | None = None, *, restored: bool = False) -> AlertEvent:
    return AlertEvent(Edge.FIRING, subject, at_ms or subject.fired_at_ms, restored)


def resolved(subject: Alert, at_ms: int) -> AlertEvent:
    return AlertEvent(Edge.RESOLVED, subject, at_ms)


@dataclass
class World:
    """Everything around a responder. `speed` says what a number of workers does to samples per second."""

    path: str
    policy: Policy = POLICY
    price: float | None = None
    speed: Callable[[int], float] = lambda workers: 100.0 * workers

    def __post_init__(self) -> None:
        self.clock = FakeClock(START)
        self.trainer = FakeActuator(
            self.clock,
            {"workers": Knob("workers", 2, 0, 16), "shared": Knob("shared", 1, 0, 8)},
        )
        self.measure = FakeMeasure()
        self.remediation = SetWorkers()
        self.facts: dict[str, float] = {}
        self.responses = [response()]
        self.caps: dict[str, Mode] = {}
        self.lines: list[str] = []
        self.entries: list[Any] = []
        self.alive = True
        self.stall = 1  # seconds a step takes
        self.skew = 0  # ms by which the sidecar's wall clock is ahead of the trainer's own time
        self.halt: Halt | None = None
        self.silences: dict[str, str] = {}  # pod -> the silence that holds for its alerts
        self.others: dict[str, Any] = {}  # further actuators by name
        self.plugins: dict[str, Any] = {"set_workers": self.remediation}

    def start(self) -> Responder:
        """A new process of the sidecar on the same database; whatever the old one had in memory is gone."""
        self.db = StateDB(self.path)
        self.journal = Journal(self.db, write_line=self.lines.append, on_entry=self.entries.append)
        self.responder = Responder(
            self.responses,
            {"trainer": self.trainer, **self.others},
            self.plugins,
            self.measure,
            self.journal,
            caps=self.caps,
            policy=self.policy,
            facts=lambda: self.facts,
            usd_per_hour=lambda: self.price,
            halted=lambda: self.halt,
            silenced=lambda alert: self.silences.get(alert.label("pod"), ""),
        )
        self.responder.recover(self.now)
        return self.responder

    @property
    def now(self) -> int:
        return self.clock.now_ms() + self.skew

    def pass_second(self) -> None:
        """The trainer works for a second."""
        now = self.clock.advance(1000) + self.skew
        if self.alive:
            wave = 1 + 0.02 * ((now // 1000 * 7919) % 11 - 5) / 5  # a fixed, uncorrelated wobble of 2 %
            self.measure.samples.append((now, self.speed(self.trainer.values()["workers"]) * wave))
            if (now // 1000) % self.stall == 0:
                self.measure.step_times.append(now)

    def run(self, seconds: int, until: Callable[[], bool] = lambda: False) -> None:
        """Seconds with a tick each, or fewer."""
        for _ in range(seconds):
            self.pass_second()
            self.responder.tick(self.now)
            if until():
                return

    def fire(self, subject: Alert | None = None) -> Alert:
        """An alert that has just become active fires now."""
        subject = subject or alert(active_at_ms=self.now, fired_at_ms=self.now)
        self.responder.on_events([firing(subject)], self.now)
        return subject

    def until_phase(self, phase: str, seconds: int = 120) -> None:
        """Runs until the experiment under way is in that phase."""
        self.run(seconds, lambda: [x.phase.value for x in self.responder.experiments()] == [phase])
        assert [x.phase.value for x in self.responder.experiments()] == [phase]

    def decisions(self) -> list[tuple[str, str]]:
        """(response, reason), as recorded."""
        rows = self.db.connection.execute("SELECT response, reason FROM decisions ORDER BY rowid")
        return [(row["response"], row["reason"]) for row in rows]

    def kinds(self, kind: str) -> list[Any]:
        """The data of the journal's entries of a kind."""
        return [e.data for _, e in self.journal.entries(limit=1_000_000) if e.kind == kind]

    def verdicts(self) -> list[tuple[str, str]]:
        """(verdict, reason), as recorded."""
        return [(d["verdict"], d["reason"]) for d in self.kinds("verdict")]

    def samples(self) -> dict[tuple[str, ...], float]:
        """(metric, label values …) -> value, of what the responder exports."""
        return {(s.metric, *(v for _, v in s.labels)): s.value for s in self.responder.samples()}

    def results(self) -> list[str]:
        """How experiments ended."""
        return [d["result"] for d in self.kinds("experiment") if d["phase"] == "closed"]


@pytest.fixture
def world(tmp_path):
    """A world whose responder has not been started."""
    made = World(str(tmp_path / "state.db"))
    yield made
    if hasattr(made, "db"):
        made.db.close()


@pytest.fixture
def kit():
    """The builders of this file, for tests that need them beside a world."""
    return Kit


class Kit:
    World, FakeMeasure, SetWorkers, Params = World, FakeMeasure, SetWorkers, Params
    response, alert, firing, resolved = (
        staticmethod(response),
        staticmethod(alert),
        staticmethod(firing),
        staticmethod(resolved),
    )
    matchers = staticmethod(matchers.parse)
    EXPR, GUARD, START, POLICY = EXPR, GUARD, START, POLICY
