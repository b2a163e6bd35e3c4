"""What the API is given: callables, so that it knows nothing of who is behind them."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from sidecar.alerting.group import GroupStatus
from sidecar.api.queries import Bounds
from sidecar.errors import Problem
from sidecar.model import JSON, Alert, MetricInfo
from sidecar.store import Store


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why something asked for is not done: there is no such thing, or this is not the time."""

    kind: Literal["unknown", "conflict"]
    reason: str


@dataclass(frozen=True, slots=True)
class Data:
    """What can be queried: the store, the time that is "now" in it, and how long a step between two evaluations is."""

    store: Store = field(default_factory=Store)
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    interval_ms: Callable[[], int] = lambda: 1000
    bounds: Bounds = field(default_factory=Bounds)


def _nothing() -> Sequence[JSON]:
    return ()


def _nothing_to_approve(episode: str, response: str) -> Refusal | None:
    return Refusal("unknown", f"episode {episode!r} has no response {response!r} waiting for approval")


@dataclass(frozen=True, slots=True)
class Services:
    """Everything the routes call. None of it may block: it runs on the event loop."""

    page: Callable[[str], tuple[bytes, str]]  # Accept header → /metrics and its content type
    not_ready: Callable[[], str]  # why not yet; empty once ready
    reload: Callable[[], Awaitable[Sequence[Problem]]]  # warnings; raises ConfigError and keeps what runs
    alerts: Callable[[], Iterable[Alert]]  # pending and firing
    experiments: Callable[[], Sequence[JSON]] = _nothing
    journal: Callable[[int], Sequence[JSON]] = lambda limit: ()  # the newest `limit` entries
    approve: Callable[[str, str], Refusal | None] = _nothing_to_approve  # (episode, response)
    rules: Callable[[], Sequence[GroupStatus]] = lambda: ()
    catalogue: Callable[[], Iterable[MetricInfo]] = lambda: ()
    data: Data = field(default_factory=Data)
    build: Mapping[str, str] = field(default_factory=dict)
    token_file: Path | None = None  # who may POST; None: only this machine
