"""The journal: every edge, decision, command and verdict, on disk before it has an effect, then on stdout.

A unit of work: rows are collected while a tick decides, `commit` writes them in one transaction, and only then are
orders sent. `publish` afterwards passes the same entries on, one JSON line each.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from sidecar.errors import StateError
from sidecar.statedb import StateDB

MAX_WAITING = 20_000  # entries, and statements, held in memory while the disk refuses them; those beyond are dropped


KINDS = ("edge", "waiting", "decision", "experiment", "command", "verdict", "sidecar")
"""What an entry may be; docs/journal.md says when each is written."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the journal; `kind` is one of `KINDS`."""

    at_ms: int
    kind: str
    episode: str = ""
    response: str = ""
    change_id: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)

    def line(self) -> str:
        """As one JSON line; empty fields are left out."""
        fields: dict[str, Any] = {"at_ms": self.at_ms, "kind": self.kind}
        for name in ("episode", "response", "change_id"):
            if value := getattr(self, name):
                fields[name] = value
        return to_json({**fields, "data": self.data})


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which entries: those after a row id, `limit` of them; empty texts are no condition. `newest`: the last ones."""

    after_id: int = 0
    limit: int = 1000
    kind: str = ""
    episode: str = ""
    response: str = ""
    newest: bool = False


def read(db: StateDB, wanted: Wanted) -> list[tuple[int, Entry]]:
    """Committed entries with their row ids, oldest first. Raises StateError when the file cannot be read."""
    where = ["id > ?"]
    args: list[Any] = [wanted.after_id]
    for column in ("kind", "episode", "response"):
        if value := getattr(wanted, column):
            where.append(f"{column} = ?")
            args.append(value)
    order = "DESC" if wanted.newest else "ASC"
    sql = f"SELECT * FROM journal WHERE {' AND '.join(where)} ORDER BY id {order} LIMIT ?"
    try:
        rows = db.connection.execute(sql, [*args, wanted.limit]).fetchall()
    except sqlite3.Error as e:
        raise StateError(f"{db.path}: cannot be read: {e}") from e
    found = [
        (row["id"], Entry(row["at_ms"], row["kind"], row["episode"], row["response"], row["change_id"], _data(row)))
        for row in rows
    ]
    return found[::-1] if wanted.newest else found


def _data(row: sqlite3.Row) -> Mapping[str, Any]:
    data: Mapping[str, Any] = json.loads(row["data"])
    return data


class Journal:
    """The journal table and whatever else must become durable with it. Use from one thread."""

    def __init__(
        self,
        db: StateDB,
        *,
        write_line: Callable[[str], object] | None = None,
        on_entry: Callable[[Entry], object] | None = None,
        max_rows: int = 100_000,
    ) -> None:
        """`max_rows` bounds the table and each of its companions; the oldest go first."""
        self.db = db
        self.dropped = 0  # entries lost while the disk refused writes
        self.unwritten_lines = 0  # lines that stdout refused
        self._write_line, self._on_entry = write_line, on_entry
        self._max_rows = max_rows
        self._since_trim = max_rows  # the first commit trims: who restarts often would never get there by counting
        self._rows: list[tuple[str, tuple[Any, ...]]] = []
        self._entries: list[Entry] = []
        self._committed: list[Entry] = []

    @property
    def pending(self) -> bool:
        """Whether something still waits for its commit."""
        return bool(self._rows or self._entries)

    def note(self, entry: Entry) -> None:
        """Adds an entry to the unit of work."""
        if len(self._entries) >= MAX_WAITING:
            self.dropped += 1
        else:
            self._entries.append(entry)

    def put(self, sql: str, row: tuple[Any, ...], *, needed: bool = True) -> None:
        """Adds a statement to the unit of work; statements run in the order given. One that is not `needed` for what
        comes after a restart is dropped and counted where too many wait.
        """
        if not needed and len(self._rows) >= MAX_WAITING:
            self.dropped += 1
        else:
            self._rows.append((sql, row))

    def commit(self) -> None:
        """Makes the unit of work durable. Raises StateError, keeping it for the next attempt, when the disk refuses."""
        if not self.pending:
            return
        try:
            with self.db.transaction() as connection:
                for sql, rows in groupby(self._rows, key=lambda r: r[0]):
                    connection.executemany(sql, [row for _, row in rows])
                connection.executemany(
                    "INSERT INTO journal (at_ms, kind, episode, response, change_id, data) VALUES (?,?,?,?,?,?)",
                    [(e.at_ms, e.kind, e.episode, e.response, e.change_id, to_json(e.data)) for e in self._entries],
                )
                self._trim(connection, len(self._entries))
        except sqlite3.Error as e:
            raise StateError(f"{self.db.path}: the journal cannot be written: {e}") from e
        self._committed += self._entries
        self._rows, self._entries = [], []

    def publish(self) -> None:
        """Passes committed entries on: a JSON line and the listener's call each."""
        entries, self._committed = self._committed, []
        for entry in entries:
            if self._write_line is not None:
                try:
                    self._write_line(entry.line())
                except (OSError, ValueError):  # a closed pipe must not stop a rollback; the table has the entry
                    self.unwritten_lines += 1
            if self._on_entry is not None:
                self._on_entry(entry)

    def entries(self, after_id: int = 0, limit: int = 1000, *, episode: str = "") -> Iterator[tuple[int, Entry]]:
        """Committed entries with their row ids, oldest first; of one episode where given."""
        yield from read(self.db, Wanted(after_id, limit, episode=episode))

    def rows(self, sql: str, args: Sequence[Any] = ()) -> list[sqlite3.Row]:
        """Reads what is committed. Raises StateError when the file cannot be read."""
        try:
            return self.db.connection.execute(sql, args).fetchall()
        except sqlite3.Error as e:
            raise StateError(f"{self.db.path}: cannot be read: {e}") from e

    def _trim(self, connection: sqlite3.Connection, added: int) -> None:
        self._since_trim += added
        if self._since_trim < self._max_rows // 10:
            return
        self._since_trim = 0
        for table, spared in (
            ("journal", "1"),
            ("episodes", "closed_at_ms > 0"),
            ("decisions", "1"),
            ("experiments", "phase = 'closed'"),
        ):
            newest = f"SELECT max(rowid) FROM {table}"
            connection.execute(f"DELETE FROM {table} WHERE {spared} AND rowid <= ({newest}) - ?", (self._max_rows,))


def to_json(value: Any) -> str:
    """Compact JSON; a number that is not finite becomes null, which every reader takes."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False, default=_plain)
    except ValueError:
        return json.dumps(_finite(value), separators=(",", ":"), allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} does not go into the journal")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value
