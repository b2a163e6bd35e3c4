"""Alert state on disk: one row an alert, written when it changes, read once at start."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from sidecar.alerting.rules import RuleKey
from sidecar.alerting.state import NEVER, Instance, Reading
from sidecar.errors import StateError
from sidecar.model import AlertState, Labels
from sidecar.statedb import StateDB


@dataclass(frozen=True, slots=True)
class Saved:
    """An alert as it was when last written. `seen_at_ms`: the last moment the sidecar is known to have been running."""

    key: RuleKey
    instance: Instance
    seen_at_ms: int


@dataclass(frozen=True, slots=True)
class Change:
    """One alert to write, or with `instance` None to forget."""

    key: RuleKey
    labels: Labels
    instance: Instance | None


class AlertStore(Protocol):
    """Where alert state survives a restart."""

    def load(self) -> list[Saved]:
        """Everything saved. Raises StateError."""
        ...

    def save(self, changes: Iterable[Change], now_ms: int) -> None:
        """All changes in one transaction. Raises StateError."""
        ...

    def touch(self, now_ms: int) -> None:
        """Notes that the sidecar still runs: what was down is counted from here. Raises StateError."""
        ...


class NoStore:
    """Forgets everything: for tools and tests that need no memory."""

    def load(self) -> list[Saved]:
        return []

    def save(self, changes: Iterable[Change], now_ms: int) -> None:
        return None

    def touch(self, now_ms: int) -> None:
        return None


class SqliteAlertStore:
    """Table `alerts` of `state.db`."""

    def __init__(self, db: StateDB) -> None:
        self._db = db

    def load(self) -> list[Saved]:
        try:
            return [_saved(row) for row in self._db.connection.execute("SELECT * FROM alerts")]
        except (sqlite3.Error, ValueError, KeyError, TypeError) as e:
            raise StateError(f"{self._db.path}: alert state cannot be read: {e}") from e

    def save(self, changes: Iterable[Change], now_ms: int) -> None:
        try:
            with self._db.transaction() as connection:
                for change in changes:
                    labels = json.dumps(change.labels, separators=(",", ":"))
                    if change.instance is None:
                        connection.execute("DELETE FROM alerts WHERE rule=? AND labels=?", (change.key, labels))
                    else:
                        row = _row(change.key, labels, change.instance, now_ms)
                        connection.execute("INSERT OR REPLACE INTO alerts VALUES (?,?,?,?,?,?,?,?,?,?)", row)
        except (sqlite3.Error, OverflowError) as e:
            raise StateError(f"{self._db.path}: alert state cannot be written: {e}") from e

    def touch(self, now_ms: int) -> None:
        try:
            with self._db.transaction() as connection:
                connection.execute("UPDATE alerts SET seen_at_ms=? WHERE seen_at_ms<?", (now_ms, now_ms))
        except sqlite3.Error as e:
            raise StateError(f"{self._db.path}: alert state cannot be written: {e}") from e


def _row(key: RuleKey, labels: str, instance: Instance, now_ms: int) -> tuple[object, ...]:
    value = instance.reading.value
    return (
        key,
        labels,
        instance.state.value,
        instance.active_at_ms,
        instance.fired_at_ms,
        instance.resolved_at_ms,
        instance.keep_firing_since_ms,
        instance.last_sent_at_ms,
        None if math.isnan(value) else value,  # SQLite has no NaN
        now_ms,
    )


def _saved(row: sqlite3.Row) -> Saved:
    labels = tuple((str(name), str(value)) for name, value in json.loads(row["labels"]))
    value = math.nan if row["value"] is None else float(row["value"])
    instance = Instance(
        labels=labels,
        state=AlertState(row["state"]),
        reading=Reading(labels, value, row["seen_at_ms"]),  # the sample's own labels are not kept
        active_at_ms=row["active_at_ms"],
        fired_at_ms=row["fired_at_ms"],
        resolved_at_ms=row["resolved_at_ms"],
        keep_firing_since_ms=row["keep_firing_since_ms"],
        last_sent_at_ms=row["last_sent_at_ms"],
        valid_until_ms=NEVER,
    )
    return Saved(str(row["rule"]), instance, int(row["seen_at_ms"]))
