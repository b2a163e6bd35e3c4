"""How long each rank waited in a collective: its time less the shortest among the ranks seen here.

A rank that is early spins in the kernel until the last one arrives, so the last arrival has the shortest kernel, and
what the others spent beyond that they waited. No clocks need agree. The same collective is known by its communicator,
operation and sequence number; ranks of other pods are not seen, so the wait is a lower bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

SLOW_SHARE = 0.95  # of the limit; a wait this long counts towards a row of slow collectives

_PENDING = 4096  # collectives waiting for their other ranks; the oldest are settled with what came


@dataclass(frozen=True, slots=True)
class Wait:
    """One rank's part in one collective, in seconds."""

    rank: int
    op: str
    seconds: float
    wait_seconds: float


@dataclass(slots=True)
class _Open:
    """A collective whose ranks are still coming in."""

    since_ms: int
    ranks: dict[int, float]


class Waits:
    """Matches the ranks of each collective and counts collectives that were slow one after another."""

    def __init__(self, limit_seconds: float = 0.1, patience_ms: int = 5_000) -> None:
        """`patience_ms`: how long a collective waits for ranks whose records come in later."""
        self._slow = limit_seconds * SLOW_SHARE
        self._patience = patience_ms
        self._open: dict[tuple[str, str, int], _Open] = {}
        self._members: dict[str, set[int]] = {}  # communicator → ranks seen here
        self._row: dict[tuple[str, str], int] = {}  # (communicator, op) → slow ones up to now
        self._longest: dict[str, int] = {}  # op → the longest row since it was last asked for

    def add(self, comm: str, op: str, sequence: int, rank: int, seconds: float, now_ms: int) -> None:
        """One rank's record, in any order."""
        self._members.setdefault(comm, set()).add(rank)
        if len(self._members) > _PENDING:
            del self._members[next(iter(self._members))]
        self._open.setdefault((comm, op, sequence), _Open(now_ms, {})).ranks[rank] = seconds

    def settle(self, now_ms: int) -> Iterator[Wait]:
        """The waits of every collective that is complete, or has been waited for long enough.

        One seen on a single rank says nothing about waiting and gives none.
        """
        done = [
            key
            for key, collective in self._open.items()
            if self._complete(key[0], collective) or now_ms - collective.since_ms >= self._patience
        ]
        done += list(self._open)[: max(0, len(self._open) - len(done) - _PENDING)]
        for key in sorted(set(done)):
            ranks = self._open.pop(key).ranks
            if len(ranks) > 1:
                yield from self._settled(key[0], key[1], ranks)

    def consecutive(self) -> dict[str, int]:
        """By operation, the longest row of slow collectives that stood at any moment since the last call.

        A row that ended between two samples is told once. Operations that were never matched are absent.
        """
        found = dict(self._longest)
        for op in self._longest:
            self._longest[op] = 0
        for (_, op), row in self._row.items():
            self._longest[op] = max(self._longest.get(op, 0), row)
            found[op] = max(found.get(op, 0), row)
        return found

    def _complete(self, comm: str, collective: _Open) -> bool:
        members = self._members.get(comm, set())
        return len(members) > 1 and len(collective.ranks) >= len(members)

    def _settled(self, comm: str, op: str, ranks: dict[int, float]) -> Iterator[Wait]:
        shortest = min(ranks.values())
        slow = max(ranks.values()) - shortest >= self._slow
        row = self._row.get((comm, op), 0) + 1 if slow else 0
        self._row[comm, op] = row
        if len(self._row) > _PENDING:
            del self._row[next(iter(self._row))]
        self._longest[op] = max(self._longest.get(op, 0), row)
        for rank, seconds in sorted(ranks.items()):
            yield Wait(rank, op, seconds, seconds - shortest)
