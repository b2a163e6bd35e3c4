"""The changes this trainer knows: what was ordered, what became of it, and until when it may stand unverified.

Orders come in on the client's thread; they are carried out on the training thread at the next step boundary. A
change that nobody has confirmed when its lease runs out is undone there, whether or not a sidecar is left to ask.
A change of what all ranks share is proposed to them instead, and carried out at the step they agree on: `promises`.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Literal

from spikewatch.change import AgreementLost, Alone, Change, Pact
from spikewatch.ledger_book import Book, Knobs
from spikewatch.meter import NEVER, Hot
from spikewatch.promises import Promises
from spikewatch.refusal import Refused

RETRY_STEPS = 10  # between two attempts to put values back
MAX_ATTEMPTS = 30
CLOSING = 2.0  # seconds a closing run waits for verdicts

Asked = Literal["apply", "order", "lease"]


class Ledger:
    """All changes of one run. `boundary` is the step at which the training thread has work to do."""

    def __init__(self, knobs: Knobs, clock: Callable[[], float] = time.monotonic, counts: Hot | None = None) -> None:
        """`counts`: where the training thread counts its steps, and looks for the boundary."""
        self._book = Book(knobs)
        self._lock = self._book.lock
        self._clock = clock
        self._todo: deque[tuple[Asked, Change]] = deque()
        self._retry_at = NEVER
        self._pact: Pact = Alone()
        self.promises = Promises(self._book, self._pact, self._reschedule)
        self._counts = Hot() if counts is None else counts
        self.news = self._book.news

    @property
    def steps(self) -> int:
        """Calls of step(), the same on every rank."""
        return self._counts.steps

    @steps.setter
    def steps(self, steps: int) -> None:
        self._counts.steps = steps

    @property
    def boundary(self) -> int:
        """The step at which `at_boundary` is to be called, NEVER where there is nothing to do."""
        return self._counts.boundary

    def agree_by(self, pact: Pact) -> None:
        """From now on shared knobs are changed in agreement with the other ranks. Before the first order."""
        self._pact = self.promises.pact = pact

    # --- the client's thread ----------------------------------------------------------------------------------------

    def set(
        self, change_id: str, values: Mapping[str, Any], expect: Mapping[str, Any], lease_ms: int, ranks: int = 1
    ) -> None:
        """Takes an order that went to so many ranks. The same again does nothing. Raises Refused, and remembers it."""
        with self._lock:
            known = self._book.changes.get(change_id)
            if known is not None:
                if known.values != dict(values):
                    raise Refused("conflict", "this id belongs to a change of other values")
                return
            shared = self._book.knobs.shared(values) and not self._pact.alone()
            change = Change(change_id, dict(values), dict(expect), shared=shared, ranks=ranks)
            self._book.remember(change)
            try:
                if shared:
                    self._may_lead()
                self._book.check(change, change.values, change.expect)
            except Refused as refusal:
                self._book.refuse(change, refusal)
                raise
            change.deadline = self._clock() + lease_ms / 1000
            self._ask("apply", change)

    def _may_lead(self) -> None:
        if not self._pact.leads():
            raise Refused("not_leader", "what all ranks share is changed at rank 0")
        why_not = self._pact.why_not()
        if why_not:
            raise Refused("unsupported", why_not)

    def renew(self, change_id: str, lease_ms: int) -> None:
        """Prolongs the lease of an unconfirmed change; does nothing to any other. Raises Refused if unknown."""
        with self._lock:
            change = self._led(change_id)
            if change.leased():
                change.deadline = self._clock() + lease_ms / 1000

    def keep(self, change_id: str) -> None:
        """Confirms. Raises Refused unless it is applied."""
        with self._lock:
            change = self._led(change_id)
            if change.state == "kept":
                return
            if change.by == "lease" or self._expiring(change):
                raise Refused("lease_expired")
            if change.state != "applied" or self._undoing(change):
                raise Refused("conflict", f"it is {change.state}")
            self._book.end(change, "kept", "", change.step)
            if change.shared:
                self._pact.ask("keep", change.id)

    def revert(self, change_id: str) -> None:
        """Asks for the found values back at the next step boundary. Raises Refused if unknown."""
        with self._lock:
            change = self._led(change_id)
            if change.state in ("pending", "applied", "kept"):
                self._ask("order", change)

    def expire(self) -> bool:
        """Asks for the end of changes whose lease has run out. To be called a few times a second while it says so:
        while a change is on its way or not confirmed, or there is news of one.
        """
        now, restless = self._clock(), bool(self.news) or self._counts.boundary != NEVER
        with self._lock:
            for change in self._book.changes.values():
                restless = restless or change.open()
                if change.leased() and change.deadline is not None and change.deadline <= now:
                    change.deadline = None
                    self._ask("lease", change)
        return restless

    def report(self, change_id: str) -> dict[str, Any] | None:
        """What is known of one change."""
        with self._lock:
            change = self._book.changes.get(change_id)
            return change.report(self._clock()) if change else None

    def reports(self) -> list[dict[str, Any]]:
        """What is known of all changes, oldest first."""
        now = self._clock()
        with self._lock:
            return [change.report(now) for change in self._book.changes.values()]

    # --- the training thread ----------------------------------------------------------------------------------------

    def at_boundary(self, step: int) -> None:
        """Does what was asked for, and what was promised. Raises AgreementLost, and else only errors of our own."""
        self.promises.learn(step)
        with self._lock:
            self.promises.meet(step)
            again: list[tuple[Asked, Change]] = []
            while self._todo:
                kind, change = self._todo.popleft()
                if kind == "apply":
                    self._apply(change, step)
                elif not self._undo(change, kind, step):
                    again.append((kind, change))
                self._book.news.append(change.id)
            self._todo.extend(again)
            self._retry_at = step + RETRY_STEPS if again else NEVER
            self._reschedule()

    def give_up(self, step: int) -> bool:
        """The client is about to stop for good: what nobody confirmed is undone now, if it is this rank's own.

        Whether a promise to the other ranks is left: then `at_boundary` must still be called at `boundary`.
        """
        with self._lock:
            for change in self._book.changes.values():
                if change.leased() and not change.shared:
                    change.deadline = None
                    self._todo.append(("lease", change))
        with contextlib.suppress(AgreementLost):  # if it is ever due, then it is raised
            self.promises.learn(NEVER, CLOSING)
        self.at_boundary(step)
        return self.promises.owed() > 0

    def _apply(self, change: Change, step: int) -> None:
        if change.state != "pending" or self._undoing(change):
            return
        try:
            found = self._book.knobs.values()
            self._book.compare(change.expect)
            self._book.knobs.change(change.values)
        except Refused as refusal:
            self._book.refuse(change, refusal)
            return
        except Exception as error:  # noqa: BLE001  a mistake of ours must not leave the change open
            self._book.refuse(change, Refused("failed", repr(error)))
            return
        change.found = {name: found[name] for name in change.values}
        change.state, change.step = "applied", step

    def _undo(self, change: Change, by: str, step: int) -> bool:
        """False when it has to be tried again later."""
        if change.state == "pending":  # never carried out, so there is nothing to put back
            self._book.end(change, "reverted", by, change.step)
            return True
        if change.state not in ("applied", "kept"):
            return True
        change.deadline = None
        change.attempts += 1
        try:
            self._book.compare(change.values)
            self._book.knobs.change(change.found)
        except Refused as refusal:
            change.reason, change.detail = refusal.reason, refusal.detail
            if refusal.reason != "conflict" and change.attempts < MAX_ATTEMPTS:
                return False
            # Somebody else has set the knob since: theirs stands, and this change is over.
            change.state = "kept"
            return True
        change.reason, change.detail = "", ""
        self._book.end(change, "reverted", by, step)
        return True

    # --- both -------------------------------------------------------------------------------------------------------

    def _ask(self, kind: Asked, change: Change) -> None:
        if change.shared:
            if kind != "apply":
                if change.undoing:
                    return
                change.undoing = kind
            self._pact.ask("apply" if kind == "apply" else "undo", change.id)
            return
        if not any(k == kind and c is change for k, c in self._todo):
            self._todo.append((kind, change))
        self._reschedule()

    def _reschedule(self) -> None:
        due = NEVER if not self._todo else 0 if self._retry_at == NEVER else self._retry_at
        self._counts.boundary = min(due, self.promises.next())

    def _expiring(self, change: Change) -> bool:
        return change.undoing == "lease" or any(kind == "lease" and asked is change for kind, asked in self._todo)

    def _undoing(self, change: Change) -> bool:
        return bool(change.undoing) or any(kind != "apply" and asked is change for kind, asked in self._todo)

    def _led(self, change_id: str) -> Change:
        """Raises Refused for a change nobody knows, or that another rank leads."""
        change = self._book.known(change_id)
        if not change.led:
            raise Refused("not_leader", "this change is led by rank 0")
        return change
