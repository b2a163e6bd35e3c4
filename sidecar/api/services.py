"""What the API is given: callables, so that it knows nothing of who is behind them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from sidecar.errors import Problem
from sidecar.model import JSON, Alert


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why something asked for is not done: there is no such thing, or this is not the time."""

    kind: Literal["unknown", "conflict"]
    reason: str


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
    build: Mapping[str, str] = field(default_factory=dict)
    token_file: Path | None = None  # who may POST; None: only this machine
