"""The actuator of remediations that only say something: always there, never changes anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from sidecar.model import ChangeState, Knob, Order, Outcome, TrainerIdentity


class Notes:
    """`annotate_only` plans for it and never gives it an order; one that comes all the same is refused."""

    name: ClassVar[str] = "notes"

    def __init__(self) -> None:
        self._refused: set[str] = set()

    def identity(self) -> TrainerIdentity | None:
        """The sidecar itself."""
        return TrainerIdentity("notes", "", ("notes",), (0,), 1)

    def knobs(self) -> Mapping[str, Knob]:
        """One, so that a plan can name it."""
        return {"note": Knob("note", "")}

    def apply(self, order: Order) -> None:
        """Refuses."""
        self._refused = {order.change_id}

    def renew(self, change_id: str, lease_ms: int) -> None:
        """There is nothing to prolong."""

    def keep(self, change_id: str) -> None:
        """There is nothing to keep."""

    def revert(self, change_id: str) -> None:
        """There is nothing to revert."""

    def outcome(self, change_id: str) -> Outcome:
        """Refused, or never heard of."""
        if change_id in self._refused:
            return Outcome(ChangeState.REFUSED, "notes_change_nothing")
        return Outcome(ChangeState.UNKNOWN)
