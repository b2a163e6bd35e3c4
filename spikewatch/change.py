"""The records of a change: what was ordered and what became of it, and what this rank has promised the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

MAX_DETAIL = 200  # characters

Kind = Literal["apply", "undo", "keep"]


@dataclass(slots=True)
class Change:
    """One change. `found` are the values before it, known once it is applied."""

    id: str
    values: dict[str, Any]
    expect: dict[str, Any]
    shared: bool = False  # on all ranks at the same step, or on none
    ranks: int = 1  # how many it was ordered at, one by one
    led: bool = True  # ordered here; False where another rank leads it
    state: str = "pending"  # → applied | refused; applied → kept | reverted
    by: str = ""  # who undid it: order or lease
    reason: str = ""
    detail: str = ""
    step: int = -1
    found: dict[str, Any] = field(default_factory=dict)
    deadline: float | None = None  # on the monotonic clock; None: no lease
    attempts: int = 0  # to put the found values back
    undoing: str = ""  # of a shared change: who asked for its end, which is not agreed yet

    def open(self) -> bool:
        """Whether it stands, or is about to, without having been confirmed."""
        return self.state in ("pending", "applied")

    def leased(self) -> bool:
        """Whether it is open and its lease still runs; without one its end has been asked for."""
        return self.deadline is not None and self.open()

    def report(self, now: float) -> dict[str, Any]:
        """As it goes over the wire."""
        return {
            "id": self.id,
            "state": self.state,
            "scope": "all_rank" if self.shared else "local",
            "ranks": self.ranks,
            "by": self.by,
            "reason": self.reason,
            "detail": self.detail[:MAX_DETAIL],
            "step": self.step,
            "found": dict(self.found),
            "values": dict(self.values),
            "lease_ms": max(0, int((self.deadline - now) * 1000)) if self.deadline is not None else 0,
        }


@dataclass(frozen=True, slots=True)
class Proposal:
    """What the leading rank proposes to all, itself included: to carry out `kind` at the end of step `at`."""

    version: int
    kind: Kind
    change_id: str
    values: Mapping[str, Any]  # of the change
    expect: Mapping[str, Any]
    found: Mapping[str, Any]  # to put back: the leader's, for all ranks had the same
    by: str
    forced: bool  # to be undone because ranks differ, whatever is found
    at: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """The one decision on a proposal. `after`: the largest lag of any rank, in batches. `rank`: who aborted, or -1."""

    commit: bool
    after: int = 0
    rank: int = -1
    reason: str = ""
    detail: str = ""


@dataclass(slots=True)
class Appointment:
    """A proposal that this rank has said yes to: it must learn the verdict before it goes beyond step `at`."""

    proposal: Proposal
    verdict: Verdict | None = None


class Pact(Protocol):
    """How the ranks agree; see `agreement`."""

    def alone(self) -> bool:
        """Whether there is no other rank to agree with."""
        ...

    def leads(self) -> bool:
        """Whether changes of shared knobs are ordered at this rank."""
        ...

    def why_not(self) -> str:
        """Why shared knobs cannot be changed now; empty when they can."""
        ...

    def ask(self, kind: Kind, change_id: str) -> None:
        """Has it proposed to all ranks. Returns at once."""
        ...

    def verdict(self, version: int, wait: float | None = None) -> Verdict:
        """The decision on a proposal; aborts it where nothing is decided. Waits for the store, not for other ranks.

        Raises `AgreementLost` when it cannot be learned (in `wait` seconds).
        """
        ...

    def done(self, version: int, digest: str, failure: str) -> None:
        """This rank has carried out what was committed, or tried to. Returns at once."""
        ...


class AgreementLost(RuntimeError):
    """This rank has said yes and cannot learn whether all did. Going on either way could split the replicas."""


class Alone:
    """A trainer of one rank."""

    def alone(self) -> bool:
        return True

    def leads(self) -> bool:
        return True

    def why_not(self) -> str:
        return ""

    def ask(self, kind: Kind, change_id: str) -> None:
        raise AssertionError("nobody to agree with")

    def verdict(self, version: int, wait: float | None = None) -> Verdict:
        raise AssertionError("nobody to agree with")

    def done(self, version: int, digest: str, failure: str) -> None:
        raise AssertionError("nobody to agree with")
