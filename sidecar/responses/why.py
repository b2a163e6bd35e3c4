"""Why something was done about an alert, or was not: the journal's answer, newest episode first."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sidecar.errors import StateError
from sidecar.responses.reasons import EXPLAINED
from sidecar.statedb import StateDB

EPISODES = 5
"""As many as are told of one alert."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one response in one episode. `reason` is empty while nothing is decided."""

    response: str
    reason: str
    explained: str
    detail: str
    waited: tuple[str, ...]
    values: Any = None  # what was changed, or would have been
    found: Any = None
    verdict: str = ""
    verdict_reason: str = ""
    result: str = ""
    gain_percent: float | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """One episode of an alert, or with `answers` empty an edge that no response answered."""

    alert: str
    labels: dict[str, str]
    at_ms: int
    ended: str  # why the episode is over; empty while it is open
    answers: tuple[Answer, ...]


def why(db: StateDB, alert: str, episodes: int = EPISODES) -> list[Told]:
    """The newest episodes of an alert; without any, the newest edges. Raises StateError when the file is unreadable."""
    try:
        found = [_episode(db, row) for row in _rows(db, _EPISODES, alert, episodes)]
        return found or [_edge(row) for row in _rows(db, _EDGES, alert, episodes)]
    except (sqlite3.Error, ValueError, KeyError) as e:
        raise StateError(f"{db.path}: cannot be read: {e}") from e


_EPISODES = (
    "SELECT * FROM episodes WHERE json_extract(alert, '$.name') = ? "
    "AND json_array_length(alert, '$.responses') > 0 ORDER BY rowid DESC LIMIT ?"
)
_EDGES = (
    "SELECT at_ms, data FROM journal WHERE kind = 'edge' AND json_extract(data, '$.alert') = ? "
    "AND json_extract(data, '$.edge') = 'firing' ORDER BY id DESC LIMIT ?"
)


def _rows(db: StateDB, sql: str, *args: Any) -> list[sqlite3.Row]:
    return db.connection.execute(sql, args).fetchall()


def _edge(row: sqlite3.Row) -> Told:
    data = json.loads(row["data"])
    ended = "restored after a restart" if data.get("restored") else "no response answers it"
    return Told(data["alert"], data["labels"], row["at_ms"], ended, ())


def _episode(db: StateDB, row: sqlite3.Row) -> Told:
    alert = json.loads(row["alert"])
    answers = tuple(_answer(db, row["id"], response) for response in alert["responses"])
    return Told(alert["name"], alert["labels"], row["opened_at_ms"], row["reason"], answers)


def _answer(db: StateDB, episode: str, response: str) -> Answer:
    decided = _rows(db, "SELECT reason, data FROM decisions WHERE episode = ? AND response = ?", episode, response)
    entries = _entries(db, episode, response)
    waits = [data for kind, data in entries if kind == "waiting"]
    if decided:
        reason, data = decided[0]["reason"], json.loads(decided[0]["data"])
        waited = tuple(data.get("waited", ()))
    else:
        reason, data = "", (waits[-1] if waits else {})
        waited = tuple(w["reason"] for w in waits)
    plans = [d for k, d in entries if k == "experiment" and "values" in d]
    shown: dict[str, Any] = data.get("plan") or (plans[-1] if plans else {})
    verdict: dict[str, Any] = next((d for k, d in entries if k == "verdict"), {})
    result = next((d["result"] for k, d in entries if k == "experiment" and d.get("result")), "")
    word = reason or data.get("reason", "")
    return Answer(
        response,
        reason,
        EXPLAINED.get(word, ""),
        data.get("detail", ""),
        waited,
        shown.get("values"),
        shown.get("found"),
        verdict.get("verdict", ""),
        verdict.get("reason", ""),
        result,
        verdict.get("gain_percent"),
    )


def _entries(db: StateDB, episode: str, response: str) -> Sequence[tuple[str, dict[str, Any]]]:
    sql = "SELECT kind, data FROM journal WHERE episode = ? AND response = ? ORDER BY id"
    return [(row["kind"], json.loads(row["data"])) for row in _rows(db, sql, episode, response)]
