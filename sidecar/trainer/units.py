"""A change on several ranks as one unit: what the whole has come to, and what must be sent to make it whole.

Pure bookkeeping, no sockets. All ranks apply, or those that did revert.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sidecar.model import ChangeState, KnobValue, Outcome

Verb = Literal["set", "keep", "revert"]


@dataclass(slots=True)
class Member:
    """One rank process of a unit. `state` as in the protocol; `pending` until it has said something."""

    rank: int
    state: str = "pending"
    reported: bool = False
    by: str = ""
    reason: str = ""
    step: int = -1
    found: Mapping[str, KnobValue] = field(default_factory=dict)
    gone_since_ms: int | None = None  # its connection broke then; it may come back
    gone: bool = False  # it will not come back
    undoing: bool = False  # a revert was sent over its present connection


class Unit:
    """One change. `values` may be empty after a restart of the sidecar, until a rank has told them."""

    def __init__(
        self,
        change_id: str,
        values: Mapping[str, KnobValue],
        expect: Mapping[str, KnobValue] | None,
        lease_ms: int,
        ordered_ms: int,
    ) -> None:
        """`expect` is None where the order itself is not known: it was given before this sidecar started."""
        self.change_id = change_id
        self.values = dict(values)
        self.expect = expect
        self.lease_ms = lease_ms
        self.ordered_ms = ordered_ms
        self.members: dict[str, Member] = {}
        self.size = 0  # how many ranks it was ordered at, 0 where that is not known
        self.failed = ""  # why the unit as a whole is to be undone
        self.refusal = ""  # refused before anything was sent
        self.confirmed = False  # to be kept, also on ranks that were away when it was said

    def heard(self, run_id: str, rank: int, report: Mapping[str, Any]) -> None:
        """A rank told what it knows of this change."""
        member = self.members.setdefault(run_id, Member(rank))
        member.state, member.by, member.step = report["state"], report["by"], report["step"]
        member.reason = report["reason"] or member.reason
        member.found = dict(report["found"])
        member.reported, member.gone, member.gone_since_ms = True, False, None
        self.values = self.values or dict(report["values"])
        self.size = max(self.size, report.get("ranks", 0))
        if member.state == "refused":
            self.fail(member.reason or "refused")
        elif member.state == "reverted":
            self.fail("reverted")

    def refused(self, run_id: str, reason: str) -> None:
        """A rank answered an order with a refusal."""
        member = self.members.get(run_id)
        if member is None:
            return
        if reason == "unknown_change":
            if member.reported or self.failed:
                member.gone = True
            return
        member.reason = reason
        if not member.reported:
            member.state, member.reported = "refused", True
            self.fail(reason)

    def fail(self, reason: str) -> None:
        """From now on what was applied is to be undone. The first reason counts."""
        self.failed = self.failed or reason

    def lost(self, run_id: str, now_ms: int) -> None:
        """A rank's connection broke."""
        member = self.members.get(run_id)
        if member is not None and member.gone_since_ms is None:
            member.gone_since_ms = now_ms

    def give_up_on(self, run_id: str) -> None:
        """A rank's process is known to be gone."""
        member = self.members.get(run_id)
        if member is not None and not member.gone:
            member.gone = True
            self._missing()

    def age(self, now_ms: int, settle_ms: int) -> None:
        """Gives up on ranks away for a whole lease, and on a unit that did not come together in `settle_ms`."""
        for member in self.members.values():
            if not member.gone and member.gone_since_ms is not None and now_ms - member.gone_since_ms > self.lease_ms:
                member.gone = True
                self._missing()
        states = {m.state for m in self._present()}
        if ("pending" in states or self._incomplete()) and now_ms - self.ordered_ms > settle_ms:
            self.fail("timeout")

    def _incomplete(self) -> bool:
        """Whether a rank it was ordered at has not been heard of since this sidecar started."""
        return len(self.members) < self.size

    def _missing(self) -> None:
        if {m.state for m in self._present()} - {"kept"}:
            self.fail("trainer_gone")

    def due(self, run_id: str, fresh: bool) -> Verb | None:
        """What to send to a rank. `fresh`: it has just (re)connected, so what was sent before may be lost."""
        member = self.members.get(run_id)
        if member is None:
            return None
        if self.failed:
            if member.state not in ("pending", "applied", "kept") or (member.undoing and not fresh):
                return None
            member.undoing = True
            return "revert"
        if not fresh:
            return None
        if self.confirmed and member.state == "applied":
            return "keep"
        return "set" if not member.reported and self.expect is not None else None

    def _present(self) -> list[Member]:
        return [m for m in self.members.values() if not m.gone]

    def outcome(self, now: Mapping[str, KnobValue]) -> Outcome:
        """What is known of the whole. `now` are the knobs' present values."""
        if self.refusal:
            return Outcome(ChangeState.REFUSED, self.refusal)
        present = sorted(self._present(), key=lambda m: m.rank)
        if not present:
            return Outcome(ChangeState.UNKNOWN, "trainer_gone")
        state, reason = self._merged({m.state for m in present}, present)
        found = next((m.found for m in present if m.found), {})
        return Outcome(
            state=state,
            reason=reason,
            step=max(m.step for m in present),
            found=dict(found),
            now={name: now[name] for name in self.values if name in now},
            by=("lease" if any(m.by == "lease" for m in present) else "order") if state is ChangeState.REVERTED else "",
        )

    def _merged(self, states: set[str], present: list[Member]) -> tuple[ChangeState, str]:
        reason = next((m.reason for m in present if m.reason), "")
        if "refused" in states:
            done = states <= {"refused", "reverted"}
            return (ChangeState.REFUSED if done else ChangeState.PENDING), self.failed or reason
        if "pending" in states or (states == {"applied"} and self._incomplete()):
            return ChangeState.PENDING, self.failed
        if states == {"reverted"}:
            if self.failed in ("timeout", "trainer_gone"):
                reason = self.failed
            return ChangeState.REVERTED, reason
        if "applied" not in states:
            return ChangeState.KEPT, reason  # also where a rank could not put its values back
        return ChangeState.APPLIED, self.failed
