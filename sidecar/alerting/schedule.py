"""When a group is due: slots at fixed multiples of its interval, spread by a hash so that not all run at once."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


def slot_offset(name: str, file: str, interval_ms: int) -> int:
    """Where in the interval a group's slots lie: the same on every start of every sidecar."""
    digest = hashlib.blake2b(f"{name}\0{file}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % interval_ms


@dataclass(frozen=True, slots=True)
class Due:
    """A slot to be evaluated now, and how many before it went by unevaluated. There is never a backlog."""

    at_ms: int
    missed: int


class Slots:
    """The slots of one group. The first one comes after `start_ms`, so that a start does not evaluate at once."""

    def __init__(self, interval_ms: int, offset_ms: int, start_ms: int) -> None:
        self.interval_ms = interval_ms
        self.missed = 0
        past = start_ms - (start_ms - offset_ms) % interval_ms
        self.next_ms = past + interval_ms

    def due(self, now_ms: int) -> Due | None:
        """The newest slot reached since the last one, if any; advances past it."""
        if now_ms < self.next_ms:
            return None
        missed = (now_ms - self.next_ms) // self.interval_ms
        at_ms = self.next_ms + missed * self.interval_ms
        self.next_ms = at_ms + self.interval_ms
        self.missed += missed
        return Due(at_ms, missed)
