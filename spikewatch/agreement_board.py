"""What the ranks write for each other in the job's store: proposals, answers, verdicts. Every rank reads the same.

Keys, under a prefix of the rendezvous epoch; N is the leading rank's random name for its session, V a version:

    latest      "N:V", the newest proposal; "N:0" before the first, "N:-" when the leader has left
    N/p/V       the proposal
    N/a/V       one answer a rank that says yes, appended: "rank lag;"
    N/d/V       the verdict, written once by compare_set: whoever comes first decides for everybody
    N/r/V       one report a rank that has carried it out, appended: "rank digest failure;"
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol
from urllib.parse import quote, unquote

from spikewatch.change import Proposal, Verdict

NONE = -1  # no proposal yet
LEFT = -2
KEEP_VERSIONS = 8  # older ones are deleted: the store must not grow


class Store(Protocol):
    """The part of torch.distributed's Store that is used; none of these calls waits for another rank."""

    def set(self, key: str, value: str) -> None: ...

    def get(self, key: str) -> bytes: ...

    def check(self, keys: list[str]) -> bool: ...

    def append(self, key: str, value: str) -> None: ...

    def compare_set(self, key: str, expected: str, desired: str) -> bytes: ...

    def delete_key(self, key: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class Report:
    """One rank has carried out a proposal: a digest of its shared knobs, and what went wrong, if anything."""

    digest: str
    failure: str


class Board:
    """One session's keys. Everything may raise what the store raises when it is gone."""

    def __init__(self, store: Store, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self.session = ""
        self._own = ""  # the session opened here, which is over when there is a newer one
        self._newest = NONE  # proposed in it

    def _key(self, kind: str, version: int) -> str:
        return f"{self._prefix}/{self.session}/{kind}/{version}"

    # --- the leading rank -------------------------------------------------------------------------------------------

    def open(self, session: str) -> None:
        """Begins a session under a new name: what an earlier one left in the store does not count any more."""
        self.session = self._own = session
        self._newest = NONE
        self._store.set(f"{self._prefix}/latest", f"{session}:{NONE}")

    def propose(self, proposal: Proposal) -> None:
        """Nobody looks for it where a newer session has begun already."""
        self._store.set(self._key("p", proposal.version), json.dumps(asdict(proposal)))
        before, now = (f"{self.session}:{version}" for version in (self._newest, proposal.version))
        self._store.compare_set(f"{self._prefix}/latest", before, now)
        self._newest = proposal.version
        old = proposal.version - KEEP_VERSIONS
        if old >= 0:
            for kind in "padr":
                self._store.delete_key(self._key(kind, old))

    def leave(self) -> None:
        """The leader stops: nothing is to be looked for any more, unless a newer session has begun already."""
        self._store.compare_set(f"{self._prefix}/latest", f"{self.session}:{self._newest}", f"{self.session}:{LEFT}")

    def answers(self, version: int) -> dict[int, int]:
        """rank → lag of those that said yes."""
        return {int(rank): int(lag) for rank, lag in self._entries("a", version, 2)}

    def reports(self, version: int) -> dict[int, Report]:
        """rank → report of those that have carried it out."""
        return {int(rank): Report(digest, unquote(failure)) for rank, digest, failure in self._entries("r", version, 3)}

    # --- every rank -------------------------------------------------------------------------------------------------

    def latest(self) -> int | None:
        """The newest version, NONE or LEFT; None where no leader has opened a session. Follows a new session."""
        key = f"{self._prefix}/latest"
        if not self.session and not self._store.check([key]):
            return None
        session, _, version = self._store.get(key).decode().rpartition(":")
        if self._own and session != self._own:
            return LEFT
        self.session = session
        return int(version)

    def proposal(self, version: int) -> Proposal | None:
        """None where it is gone already."""
        key = self._key("p", version)
        if not self._store.check([key]):
            return None
        return Proposal(**json.loads(self._store.get(key)))

    def answer(self, version: int, rank: int, lag: int) -> None:
        """This rank says yes."""
        self._store.append(self._key("a", version), f"{rank} {lag};")

    def decide(self, version: int, verdict: Verdict) -> Verdict:
        """Decides, unless it is decided: returns the verdict that counts."""
        text = json.dumps(asdict(verdict))
        return _verdict(self._store.compare_set(self._key("d", version), "", text))

    def verdict(self, version: int) -> Verdict | None:
        """None where nothing is decided yet."""
        key = self._key("d", version)
        return _verdict(self._store.get(key)) if self._store.check([key]) else None

    def report(self, version: int, rank: int, report: Report) -> None:
        """This rank has carried it out."""
        self._store.append(self._key("r", version), f"{rank} {report.digest} {quote(report.failure, safe='')};")

    def _entries(self, kind: str, version: int, parts: int) -> list[list[str]]:
        key = self._key(kind, version)
        if not self._store.check([key]):
            return []
        entries = self._store.get(key).decode().split(";")
        return [entry.split(" ", parts - 1) for entry in entries if entry]


def _verdict(data: bytes) -> Verdict:
    fields: Mapping[str, Any] = json.loads(data)
    return Verdict(**fields)
