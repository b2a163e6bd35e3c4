"""The changes this trainer knows: what was ordered, what became of it, and until when it may stand unverified.

Orders come in on the client's thread; they are carried out on the training thread at the next step boundary. A
change that nobody has confirmed when its lease runs out is undone there, whether or not a sidecar is left to ask.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from spikewatch.refusal import Refused

NEVER = 1 << 62
RETRY_STEPS = 10  # between two attempts to put values back
MAX_ATTEMPTS = 30
MAX_REMEMBERED = 32  # of them the newest go into every HELLO
MAX_DETAIL = 200  # characters


class Knobs(Protocol):
    """What can be changed here."""

    def values(self) -> Mapping[str, Any]:
        """The values now, of every knob there is."""
        ...

    def check(self, values: Mapping[str, Any]) -> None:
        """Raises Refused for values that cannot be set. Called on the client's thread."""
        ...

    def change(self, values: Mapping[str, Any]) -> None:
        """Sets them together. Raises Refused; then nothing has changed. Called on the training thread."""
        ...


@dataclass(slots=True)
class Change:
    """One change. `found` are the values before it, known once it is applied."""

    id: str
    values: dict[str, Any]
    expect: dict[str, Any]
    state: str = "pending"  # → applied | refused; applied → kept | reverted
    by: str = ""  # who undid it: order or lease
    reason: str = ""
    detail: str = ""
    step: int = -1
    found: dict[str, Any] = field(default_factory=dict)
    deadline: float | None = None  # on the monotonic clock; None: no lease
    attempts: int = 0  # to put the found values back

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
            "by": self.by,
            "reason": self.reason,
            "detail": self.detail[:MAX_DETAIL],
            "step": self.step,
            "found": dict(self.found),
            "values": dict(self.values),
            "lease_ms": max(0, int((self.deadline - now) * 1000)) if self.deadline is not None else 0,
        }


class Ledger:
    """All changes of one run, newest last. `boundary` is the step at which the training thread has work to do."""

    def __init__(self, knobs: Knobs, clock: Callable[[], float] = time.monotonic) -> None:
        self._knobs = knobs
        self._clock = clock
        self._lock = threading.Lock()
        self._changes: OrderedDict[str, Change] = OrderedDict()
        self._todo: deque[tuple[str, Change]] = deque()  # (apply | order | lease, change)
        self.boundary = NEVER
        self.news: deque[str] = deque(maxlen=4 * MAX_REMEMBERED)  # ids of changes whose state moved

    # --- the client's thread ----------------------------------------------------------------------------------------

    def set(self, change_id: str, values: Mapping[str, Any], expect: Mapping[str, Any], lease_ms: int) -> None:
        """Takes an order. The same order again changes nothing. Raises Refused; a refusal is remembered."""
        with self._lock:
            known = self._changes.get(change_id)
            if known is not None:
                if known.values != dict(values):
                    raise Refused("conflict", "this id belongs to a change of other values")
                return
            change = Change(change_id, dict(values), dict(expect))
            self._remember(change)
            try:
                if any(other.open() for other in self._changes.values() if other is not change):
                    raise Refused("busy", "another change is not confirmed yet")
                self._knobs.check(change.values)
                self._compare(change.expect)
            except Refused as refusal:
                self._refuse(change, refusal)
                raise
            change.deadline = self._clock() + lease_ms / 1000
            self._ask("apply", change)

    def renew(self, change_id: str, lease_ms: int) -> None:
        """Prolongs the lease of an unconfirmed change; does nothing to any other. Raises Refused if unknown."""
        with self._lock:
            change = self._known(change_id)
            if change.leased():
                change.deadline = self._clock() + lease_ms / 1000

    def keep(self, change_id: str) -> None:
        """Confirms. Raises Refused unless it is applied."""
        with self._lock:
            change = self._known(change_id)
            if change.state == "kept":
                return
            if change.by == "lease" or self._expiring(change):
                raise Refused("lease_expired")
            if change.state != "applied" or self._undoing(change):
                raise Refused("conflict", f"it is {change.state}")
            change.state, change.deadline = "kept", None
            self.news.append(change.id)

    def revert(self, change_id: str) -> None:
        """Asks for the found values back at the next step boundary. Raises Refused if unknown."""
        with self._lock:
            change = self._known(change_id)
            if change.state in ("pending", "applied", "kept"):
                self._ask("order", change)

    def expire(self) -> None:
        """Asks for the end of changes whose lease has run out. To be called a few times a second."""
        now = self._clock()
        with self._lock:
            for change in self._changes.values():
                if change.leased() and change.deadline is not None and change.deadline <= now:
                    change.deadline = None
                    self._ask("lease", change)

    def report(self, change_id: str) -> dict[str, Any] | None:
        """What is known of one change."""
        with self._lock:
            change = self._changes.get(change_id)
            return change.report(self._clock()) if change else None

    def reports(self) -> list[dict[str, Any]]:
        """What is known of all changes, oldest first."""
        now = self._clock()
        with self._lock:
            return [change.report(now) for change in self._changes.values()]

    # --- the training thread ----------------------------------------------------------------------------------------

    def at_boundary(self, step: int) -> None:
        """Does what was asked for. Raises nothing but errors of our own."""
        with self._lock:
            self.boundary = NEVER
            again = []
            while self._todo:
                kind, change = self._todo.popleft()
                if kind == "apply":
                    self._apply(change, step)
                elif not self._undo(change, kind, step):
                    again.append((kind, change))
                self.news.append(change.id)
            if again:
                self._todo.extend(again)
                self.boundary = step + RETRY_STEPS

    def give_up(self, step: int) -> None:
        """The client is about to stop for good: what nobody confirmed is undone now."""
        with self._lock:
            for change in self._changes.values():
                if change.leased():
                    change.deadline = None
                    self._todo.append(("lease", change))
        self.at_boundary(step)

    def _apply(self, change: Change, step: int) -> None:
        if change.state != "pending" or self._undoing(change):
            return
        try:
            found = self._knobs.values()
            self._compare(change.expect)
            self._knobs.change(change.values)
        except Refused as refusal:
            self._refuse(change, refusal)
            return
        except Exception as error:  # noqa: BLE001  a mistake of ours must not leave the change open
            self._refuse(change, Refused("failed", repr(error)))
            return
        change.found = {name: found[name] for name in change.values}
        change.state, change.step = "applied", step

    def _undo(self, change: Change, by: str, step: int) -> bool:
        """False when it has to be tried again later."""
        if change.state == "pending":  # never carried out, so there is nothing to put back
            change.state, change.by, change.deadline = "reverted", by, None
            return True
        if change.state not in ("applied", "kept"):
            return True
        change.deadline = None
        change.attempts += 1
        try:
            self._compare(change.values)
            self._knobs.change(change.found)
        except Refused as refusal:
            change.reason, change.detail = refusal.reason, refusal.detail
            if refusal.reason != "conflict" and change.attempts < MAX_ATTEMPTS:
                return False
            # Somebody else has set the knob since: theirs stands, and this change is over.
            change.state = "kept"
            return True
        change.state, change.by, change.step, change.reason, change.detail = "reverted", by, step, "", ""
        return True

    # --- both -------------------------------------------------------------------------------------------------------

    def _ask(self, kind: str, change: Change) -> None:
        if not any(k == kind and c is change for k, c in self._todo):
            self._todo.append((kind, change))
        self.boundary = 0

    def _expiring(self, change: Change) -> bool:
        return any(kind == "lease" and asked is change for kind, asked in self._todo)

    def _undoing(self, change: Change) -> bool:
        return any(kind != "apply" and asked is change for kind, asked in self._todo)

    def _compare(self, expected: Mapping[str, Any]) -> None:
        values = self._knobs.values()
        for name, value in expected.items():
            if name not in values:
                raise Refused("unknown_knob", name)
            if values[name] != value:
                raise Refused("conflict", f"{name} is {values[name]}, not {value}")

    def _refuse(self, change: Change, refusal: Refused) -> None:
        change.state, change.reason, change.detail = "refused", refusal.reason, refusal.detail
        change.deadline = None

    def _known(self, change_id: str) -> Change:
        change = self._changes.get(change_id)
        if change is None:
            raise Refused("unknown_change")
        return change

    def _remember(self, change: Change) -> None:
        self._changes[change.id] = change
        while len(self._changes) > MAX_REMEMBERED:
            over = next((c for c in self._changes.values() if not c.open()), None)
            if over is None:
                break
            del self._changes[over.id]
