"""The one SQLite file that survives a restart: alert state, journal, limits.

Write-ahead log with full synchronisation: what `commit` returned from is on disk, which is what "journalled before
it acts" means. A file that SQLite calls corrupt is set aside, never deleted, and a fresh one is begun.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sidecar.errors import StateError

# One entry a schema version, applied in order inside one transaction. Never edit a released entry: add the next.
MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE alerts (
        rule TEXT NOT NULL,             -- rule identity: file-independent group, name, labels and position
        labels TEXT NOT NULL,           -- JSON, sorted
        state TEXT NOT NULL,
        active_at_ms INTEGER NOT NULL,
        fired_at_ms INTEGER NOT NULL,
        resolved_at_ms INTEGER NOT NULL,
        keep_firing_since_ms INTEGER NOT NULL,
        last_sent_at_ms INTEGER NOT NULL,
        value REAL,
        seen_at_ms INTEGER NOT NULL,
        PRIMARY KEY (rule, labels)
    );
    CREATE TABLE journal (
        id INTEGER PRIMARY KEY,
        at_ms INTEGER NOT NULL,
        kind TEXT NOT NULL,             -- edge, waiting, decision, experiment, command, verdict, sidecar
        episode TEXT NOT NULL DEFAULT '',
        response TEXT NOT NULL DEFAULT '',
        change_id TEXT NOT NULL DEFAULT '',
        data TEXT NOT NULL              -- JSON
    );
    CREATE INDEX journal_episode ON journal (episode) WHERE episode != '';
    CREATE TABLE episodes (
        id TEXT PRIMARY KEY,
        alert TEXT NOT NULL,            -- JSON: name and labels
        opened_at_ms INTEGER NOT NULL,
        closed_at_ms INTEGER NOT NULL DEFAULT 0,
        reason TEXT NOT NULL DEFAULT ''
    );
    CREATE TABLE decisions (
        episode TEXT NOT NULL,
        response TEXT NOT NULL,
        at_ms INTEGER NOT NULL,
        reason TEXT NOT NULL,
        data TEXT NOT NULL,
        PRIMARY KEY (episode, response) -- exactly one decision record per pair
    );
    CREATE TABLE experiments (
        change_id TEXT PRIMARY KEY,
        episode TEXT NOT NULL,
        response TEXT NOT NULL,
        trainer TEXT NOT NULL,          -- job and rendezvous epoch
        phase TEXT NOT NULL,
        updated_at_ms INTEGER NOT NULL,
        data TEXT NOT NULL              -- JSON: the order, who was changed, verdict
    );
    CREATE INDEX experiments_open ON experiments (phase) WHERE phase != 'closed';
    CREATE TABLE breakers (
        response TEXT NOT NULL,         -- empty: the row holds the quarantined knobs of a job
        scope TEXT NOT NULL,            -- the pod or the job
        data TEXT NOT NULL,             -- JSON: recent applications, ineffective in a row
        PRIMARY KEY (response, scope)
    );
    """,
)


class StateDB:
    """An open database. Use from one thread. `set_aside` names the corrupt predecessor, if there was one."""

    def __init__(self, path: Path | str, *, read_only: bool = False) -> None:
        """Raises StateError when the path cannot be used, or the file is newer than this program."""
        self.path = str(path)
        self.set_aside: str | None = None
        try:
            self.connection = self._open(read_only)
        except sqlite3.DatabaseError as e:
            if read_only and not Path(self.path).exists():
                raise StateError(f"{self.path}: no such file: has a sidecar run with this state_dir?") from e
            if read_only or self.path == ":memory:" or not _is_corruption(e):
                raise StateError(f"{self.path}: {e}") from e
            self.set_aside = self._move_away()
            self.connection = self._open(read_only)

    def _open(self, read_only: bool) -> sqlite3.Connection:
        if read_only:
            connection = sqlite3.connect(
                f"{Path(self.path).absolute().as_uri()}?mode=ro", uri=True, isolation_level=None
            )
        else:
            connection = sqlite3.connect(self.path, isolation_level=None)
        try:
            connection.row_factory = sqlite3.Row
            connection.execute("PRAGMA busy_timeout=2000")
            if not read_only:
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("PRAGMA synchronous=FULL")
                problem = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
                if problem != "ok":
                    raise sqlite3.DatabaseError(f"malformed: {problem}")
            self._migrate(connection, read_only)
        except BaseException:
            connection.close()
            raise
        return connection

    def _migrate(self, connection: sqlite3.Connection, read_only: bool) -> None:
        version: int = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > len(MIGRATIONS):
            raise StateError(
                f"{self.path} has schema {version}, this program knows {len(MIGRATIONS)}: "
                "upgrade spikewatch or give it another state_dir"
            )
        if read_only and version < len(MIGRATIONS):
            raise StateError(f"{self.path} has schema {version}: start the sidecar once so that it upgrades the file")
        for number in range(version, len(MIGRATIONS)):
            connection.executescript(f"BEGIN;{MIGRATIONS[number]}PRAGMA user_version={number + 1};COMMIT;")

    def _move_away(self) -> str:
        n = 0
        while os.path.exists(target := f"{self.path}.corrupt-{n}"):
            n += 1
        os.replace(self.path, target)
        for suffix in ("-wal", "-shm"):
            if os.path.exists(self.path + suffix):
                os.replace(self.path + suffix, target + suffix)
        return target

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Commits on leaving, rolls back on an exception. Nested use joins the outer one."""
        if self.connection.in_transaction:
            yield self.connection
            return
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield self.connection
        except BaseException:
            self.connection.execute("ROLLBACK")
            raise
        self.connection.execute("COMMIT")

    def close(self) -> None:
        self.connection.close()


def _is_corruption(error: sqlite3.DatabaseError) -> bool:
    text = str(error)
    return "malformed" in text or "not a database" in text or "disk image" in text
