"""What the API is given: callables, so that it knows nothing of who is behind them."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from sidecar.alerting.group import GroupStatus
from sidecar.api.queries import Bounds
from sidecar.errors import Problem
from sidecar.model import JSON, Alert, MetricInfo
from sidecar.responses.journal import Wanted
from sidecar.store import Store
from sidecar.trainer.dumps import Dump


class Responses(Protocol):
    """What the routes about responses call. What cannot be done raises RequestError, which knows its status."""

    def responses(self) -> Sequence[JSON]:
        """Every response, how far it may go, and its breakers."""
        ...

    def experiments(self) -> Sequence[JSON]:
        """Those under way."""
        ...

    def journal(self, wanted: Wanted) -> Sequence[JSON]:
        """Entries, oldest first."""
        ...

    def approvals(self) -> Sequence[JSON]:
        """Plans that wait for an answer, oldest first."""
        ...

    def approve(self, episode: str, response: str, by: str, valid_ms: int | None) -> None:
        """A yes, which counts for `valid_ms`; None: as long as the response says."""
        ...

    def reject(self, episode: str, response: str, by: str) -> None:
        """A no."""
        ...

    def reset(self, response: str, by: str) -> None:
        """Closes the breakers of a response."""
        ...

    def kill_switch(self) -> JSON:
        """Whether it is on, who turned it on, when and why."""
        ...

    def halt(self, by: str, reason: str) -> JSON:
        """Turns the kill switch on."""
        ...

    def resume(self, by: str) -> JSON:
        """Turns it off."""
        ...

    def receive(self, body: bytes) -> JSON:
        """A webhook message of an Alertmanager."""
        ...


class Dumps(Protocol):
    """What the routes about flight-recorder dumps call."""

    def ask_for_dumps(self, dump_id: str) -> Sequence[int]:
        """Asks every attached rank; returns which."""
        ...

    def dumps(self) -> Mapping[int, Dump]:
        """The newest answer of each rank."""
        ...

    def dump(self, rank: int) -> bytes:
        """JSON of torch's flight recorder; empty where there is none."""
        ...


@dataclass(frozen=True, slots=True)
class Data:
    """What can be queried: the store, the time that is "now" in it, and how long a step between two evaluations is."""

    store: Store = field(default_factory=Store)
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    interval_ms: Callable[[], int] = lambda: 1000
    bounds: Bounds = field(default_factory=Bounds)


@dataclass(frozen=True, slots=True)
class Services:
    """Everything the routes call. None of it may block: it runs on the event loop."""

    page: Callable[[str], tuple[bytes, str]]  # Accept header → /metrics and its content type
    not_ready: Callable[[], str]  # why not yet; empty once ready
    reload: Callable[[], Awaitable[Sequence[Problem]]]  # warnings; raises ConfigError and keeps what runs
    alerts: Callable[[], Iterable[Alert]]  # pending and firing
    responses: Responses | None = None  # None: this sidecar answers no alerts
    dumps: Dumps | None = None  # None: no trainers here
    rules: Callable[[], Sequence[GroupStatus]] = lambda: ()
    catalogue: Callable[[], Iterable[MetricInfo]] = lambda: ()
    data: Data = field(default_factory=Data)
    runbook: Callable[[str], str | None] = lambda alert: None  # the page about an alert
    build: Mapping[str, str] = field(default_factory=dict)
    token_file: Path | None = None  # who may POST; None: only this machine
