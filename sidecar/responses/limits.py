"""Limits that outlive a restart: cooldown, applications per hour, breaker, quarantined knobs.

Times are wall milliseconds, because they must mean something after a restart. One that lies in the future (the
machine's clock was set back meanwhile) counts as now: a limit may then hold longer, never shorter.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

from sidecar.responses.journal import Journal, to_json
from sidecar.responses.response import Limits
from sidecar.responses.statistics import Verdict

HOUR_MS = 3_600_000
MAX_BACKOFF = 6  # doublings: a cooldown of 5 m grows to at most 5 h 20 m

_SAVE = "INSERT OR REPLACE INTO breakers (response, scope, data) VALUES (?,?,?)"


@dataclass(frozen=True, slots=True)
class Record:
    """What one response did to one pod or job."""

    applied_ms: tuple[int, ...] = ()  # within the last hour
    ended_ms: int = 0  # the newest end of an experiment, or application where none has ended
    ineffective: int = 0  # experiments in a row that did not end `helped`


def refusal(record: Record, limits: Limits, now_ms: int) -> str | None:
    """`breaker_open` (final), `cooldown` or `per_hour` (passing), or None where nothing stands in the way.

    The cooldown doubles with every ineffective experiment after the first, so that an inconclusive one backs off too.
    """
    if record.ineffective >= limits.max_ineffective:
        return "breaker_open"
    doublings = min(max(record.ineffective - 1, 0), MAX_BACKOFF)
    if record.ended_ms and now_ms - min(record.ended_ms, now_ms) < limits.cooldown_ms << doublings:
        return "cooldown"
    if sum(1 for t in record.applied_ms if now_ms - min(t, now_ms) < HOUR_MS) >= limits.per_hour:
        return "per_hour"
    return None


def in_rollout(response: str, job: str, share: float) -> bool:
    """Whether a job is among the share of jobs that a response acts on: a stable choice, the same in every sidecar,
    and a larger share only adds jobs. A job without a name is among none but all.
    """
    if share >= 1:
        return True
    place = int.from_bytes(hashlib.blake2s(f"{response}\0{job}".encode(), digest_size=8).digest(), "big")
    return bool(job) and place < share * 2**64


class Ledger:
    """The records of every (response, scope), and the quarantined knobs of every job. Saved through the journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._records: dict[tuple[str, str], Record] = {}
        self._quarantined: dict[str, frozenset[str]] = {}
        for row in journal.rows("SELECT response, scope, data FROM breakers"):
            data = json.loads(row["data"])
            if row["response"]:
                record = Record(tuple(data["applied_ms"]), data["ended_ms"], data["ineffective"])
                self._records[row["response"], row["scope"]] = record
            else:
                self._quarantined[row["scope"]] = frozenset(data["knobs"])

    def record(self, response: str, scope: str) -> Record:
        """What is known; an empty record where nothing is."""
        return self._records.get((response, scope), Record())

    def breaker_open(self, response: str, limits: Limits) -> bool:
        """Whether a response has stopped acting on some pod or job."""
        return any(
            name == response and record.ineffective >= limits.max_ineffective
            for (name, _), record in self._records.items()
        )

    def ineffective(self, response: str) -> dict[str, int]:
        """By scope, how many experiments in a row did not help."""
        return {scope: record.ineffective for (name, scope), record in self._records.items() if name == response}

    def applied(self, response: str, scope: str, now_ms: int) -> None:
        """An order goes out."""
        old = self.record(response, scope)
        recent = (*(t for t in old.applied_ms if now_ms - min(t, now_ms) < HOUR_MS), now_ms)
        self._save(response, scope, replace(old, applied_ms=recent, ended_ms=now_ms))

    def ended(self, response: str, scope: str, verdict: Verdict, now_ms: int) -> None:
        """A verdict fell: anything but `helped` counts as ineffective."""
        old = self.record(response, scope)
        ineffective = 0 if verdict is Verdict.HELPED else old.ineffective + 1
        self._save(response, scope, replace(old, ended_ms=now_ms, ineffective=ineffective))

    def reset(self, response: str) -> int:
        """Somebody closes the breakers of a response. Returns how many there were."""
        keys = [key for key, record in self._records.items() if key[0] == response and record.ineffective]
        for key in keys:
            self._save(*key, replace(self._records[key], ineffective=0))
        return len(keys)

    def quarantine(self, job: str, knobs: Iterable[str]) -> None:
        """Takes knobs out of use for a job."""
        self._quarantined[job] = self.quarantined(job) | frozenset(knobs)
        self._journal.put(_SAVE, ("", job, to_json({"knobs": sorted(self._quarantined[job])})))

    def quarantined(self, job: str) -> frozenset[str]:
        """The knobs that are out of use for a job."""
        return self._quarantined.get(job, frozenset())

    def _save(self, response: str, scope: str, record: Record) -> None:
        self._records[response, scope] = record
        self._journal.put(_SAVE, (response, scope, to_json(asdict(record))))
