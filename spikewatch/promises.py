"""The agreed side of the ledger: what this rank has said yes to, and carries out at the step all ranks agreed on.

The agreement's thread notes an appointment before it says yes. The training thread does not go beyond the appointed
step without the verdict, so a change is carried out at one step everywhere, or nowhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spikewatch.change import AgreementLost, Appointment, Change, Kind, Pact, Proposal, Verdict
from spikewatch.ledger_book import Book
from spikewatch.meter import NEVER
from spikewatch.refusal import Refused


class Promises:
    """The appointments of one rank, few and short-lived."""

    def __init__(self, book: Book, pact: Pact, reschedule: Callable[[], None]) -> None:
        """`reschedule` is called, with the lock held, whenever `next` may have moved."""
        self._book = book
        self.pact = pact
        self._reschedule = reschedule
        self._appointments: dict[int, Appointment] = {}

    def next(self) -> int:
        """The earliest appointed step, NEVER where there is none."""
        return min((a.proposal.at for a in self._appointments.values()), default=NEVER)

    # --- the agreement's thread: as any rank ------------------------------------------------------------------------

    def prepare(self, proposal: Proposal) -> int:
        """Whether this rank can; returns its lag in batches, and expects to carry it out. Raises Refused."""
        with self._book.lock:
            lag = self._prepare_undo(proposal) if proposal.kind == "undo" else self._prepare_apply(proposal)
            self._appointments[proposal.version] = Appointment(proposal)
            self._reschedule()
            return lag

    def _prepare_apply(self, proposal: Proposal) -> int:
        change = self._book.changes.get(proposal.change_id)
        if change is None:
            change = Change(
                proposal.change_id,
                dict(proposal.values),
                dict(proposal.expect),
                shared=True,
                led=False,
                state="refused",
            )
            self._book.remember(change)
        if change.values != proposal.values or change.state not in ("pending", "refused"):
            raise Refused("conflict", f"change {change.id} is known here as another, or {change.state}")
        try:
            self._book.check(change, change.values, change.expect)
        except Refused as refusal:
            if not change.led:
                self._book.refuse(change, refusal)
            raise
        change.state, change.reason, change.detail = "pending", "", ""
        return self._book.knobs.lag(change.values)

    def _prepare_undo(self, proposal: Proposal) -> int:
        change = self._book.changes.get(proposal.change_id)
        if change is None:  # confirmed long ago and forgotten here, but not where it is led
            change = Change(proposal.change_id, dict(proposal.values), {}, shared=True, led=False, state="kept")
            change.found = dict(proposal.found)
            self._book.remember(change)
        if change.state not in ("applied", "kept"):
            return 0  # it failed here, so there is nothing to put back
        back = self._back(change, proposal)
        self._book.knobs.check(back)
        if not proposal.forced:
            self._book.compare(change.values)
        return self._book.knobs.lag(back)

    def _back(self, change: Change, proposal: Proposal) -> dict[str, Any]:
        # A shared value is put back as the leader found it, so that it is the same everywhere; a local one as it was.
        knobs = self._book.knobs
        theirs = {name: value for name, value in proposal.found.items() if knobs.shared([name])}
        return {name: theirs.get(name, value) for name, value in change.found.items()}

    def undecided(self) -> list[int]:
        """Versions this rank waits for."""
        with self._book.lock:
            return [version for version, a in self._appointments.items() if a.verdict is None]

    def decided(self, version: int, verdict: Verdict) -> None:
        """The verdict is known."""
        with self._book.lock:
            self._decided(version, verdict)
            self._reschedule()

    def _decided(self, version: int, verdict: Verdict) -> None:
        appointment = self._appointments.get(version)
        if appointment is None:
            return
        appointment.verdict = verdict
        if verdict.commit:
            return
        del self._appointments[version]
        change = self._book.changes.get(appointment.proposal.change_id)
        if change is not None and change.state == "pending" and not change.led:
            self._book.refuse(change, Refused(verdict.reason, verdict.detail))

    def kept(self, change_id: str) -> None:
        """The leading rank has confirmed."""
        with self._book.lock:
            change = self._book.changes.get(change_id)
            if change is not None and change.state == "applied":
                self._book.end(change, "kept", "", change.step)

    # --- the agreement's thread: as the leading rank ----------------------------------------------------------------

    def wanted(self, kind: Kind, change_id: str) -> Change | None:
        """The change, if it still has to be proposed."""
        with self._book.lock:
            change = self._book.changes.get(change_id)
            if change is None:
                return None
            if kind == "apply" and change.state == "pending":
                if not change.undoing:
                    return change
                self._book.end(change, "reverted", change.undoing, change.step)
            if kind == "undo" and (change.state in ("applied", "kept") or _failed(change)):
                return change
            return change if kind == "keep" and change.state == "kept" else None

    def unfinished(self) -> list[tuple[Kind, str]]:
        """What an earlier session has left to be proposed."""
        with self._book.lock:
            led = [change for change in self._book.changes.values() if change.shared and change.led]
            begun: list[tuple[Kind, str]] = [("apply", change.id) for change in led if change.state == "pending"]
            return begun + [("undo", c.id) for c in led if c.undoing and c.state in ("applied", "kept")]

    def withdrawn(self, change_id: str) -> bool:
        """Whether the end of a change was asked for before it was carried out."""
        with self._book.lock:
            change = self._book.changes.get(change_id)
            return change is not None and change.state == "pending" and bool(change.undoing)

    def gave_up(self, kind: Kind, change_id: str, verdict: Verdict) -> None:
        """A proposal was aborted for good."""
        with self._book.lock:
            change = self._book.changes.get(change_id)
            if change is None:
                return
            if kind == "apply" and change.state == "pending":
                if change.undoing:  # taken back before it was decided
                    self._book.end(change, "reverted", change.undoing, change.step)
                else:
                    self._book.refuse(change, Refused(verdict.reason, verdict.detail))
            elif kind == "undo" and change.state in ("applied", "kept"):
                change.reason, change.detail = verdict.reason, verdict.detail
                self._book.end(change, "kept", "", change.step)

    def failed(self, change_id: str, detail: str) -> bool:
        """A rank could not carry out what was committed: all take it back. Whether that is still to be proposed."""
        with self._book.lock:
            change = self._book.changes.get(change_id)
            if change is None or change.undoing or not (change.state in ("applied", "kept") or _failed(change)):
                return False
            change.undoing, change.deadline = "order", None
            change.reason, change.detail = "failed", detail
            return True

    # --- the training thread ----------------------------------------------------------------------------------------

    def learn(self, step: int, wait: float | None = None) -> None:
        """Makes sure of the verdict on everything due. Without the lock, for it may wait for the store.

        Raises AgreementLost when a verdict cannot be learned.
        """
        for appointment in list(self._appointments.values()):
            if appointment.proposal.at <= step and appointment.verdict is None:
                try:
                    verdict = self.pact.verdict(appointment.proposal.version, wait)
                except AgreementLost:
                    if appointment.verdict is None:  # not learned on another way meanwhile
                        raise
                else:
                    self.decided(appointment.proposal.version, verdict)

    def meet(self, step: int) -> None:
        """Carries out what is due. With the lock held."""
        for version, appointment in sorted(self._appointments.items()):
            if appointment.proposal.at <= step and appointment.verdict is not None:
                del self._appointments[version]
                failure = self._carry_out(appointment.proposal, appointment.verdict, step)
                self.pact.done(version, self._book.digest(), failure)

    def _carry_out(self, proposal: Proposal, verdict: Verdict, step: int) -> str:
        change = self._book.changes.get(proposal.change_id)
        if change is None:
            return "the change is not known any more"
        try:
            if proposal.kind == "undo":
                if change.state in ("applied", "kept"):
                    self._book.knobs.change(self._back(change, proposal), verdict.after)
                    self._book.end(change, "reverted", proposal.by, step)
                return ""
            found = self._book.knobs.values()
            change.found = {name: found[name] for name in change.values}
            self._book.knobs.change(change.values, verdict.after)
        except Exception as error:  # noqa: BLE001  the other ranks have changed: they must hear of it, whatever it was
            if proposal.kind == "apply":
                self._book.refuse(change, Refused("failed", str(error)))
            return str(error) or type(error).__name__
        change.state, change.step = "applied", step
        self._book.news.append(change.id)
        return ""

    def owed(self) -> int:
        """How many appointments may still have to be met."""
        with self._book.lock:
            return len(self._appointments)


def _failed(change: Change) -> bool:
    """Whether it was committed and could not be carried out here, while other ranks may have."""
    return change.state == "refused" and change.reason == "failed" and change.shared
