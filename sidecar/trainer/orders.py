"""Orders on their way: every change as a unit over the ranks it was given to, across lost connections and restarts."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from sidecar.clock import Clock
from sidecar.model import ChangeState, Order, Outcome
from sidecar.trainer.rank import Rank
from sidecar.trainer.units import Member, Unit

log = logging.getLogger(__name__)

SETTLE_MS = 120_000  # a change must have reached every rank by then: three steps of 40 s
UNTOLD_LEASE_MS = 30_000  # of a change ordered before this sidecar started
MAX_UNITS = 64  # changes remembered


class Orders:
    """Sends what is due and remembers what came back. `ranks` are always the ranks attached at the moment."""

    def __init__(self, clock: Clock, settle_ms: int) -> None:
        self._clock = clock
        self._settle_ms = settle_ms
        self._units: dict[str, Unit] = {}

    # --- from the responses -----------------------------------------------------------------------------------------

    def give(self, order: Order, ranks: Collection[Rank], without: str = "no_trainer") -> None:
        """A new order for all of `ranks`; a known one is left alone. `without`: the refusal where there are none."""
        if order.change_id in self._units:
            return
        unit = Unit(order.change_id, order.values, order.expect, order.lease_ms, self._clock.monotonic_ms())
        self._remember(unit)
        if not ranks:
            unit.refusal = without
        for rank in ranks:
            unit.members[rank.run_id] = Member(rank.rank)
        for rank in ranks:
            self._send_due(unit, [rank], fresh=True)

    def renew(self, change_id: str, lease_ms: int, ranks: Collection[Rank]) -> None:
        unit = self._units.get(change_id)
        if unit is not None and not unit.failed:
            unit.lease_ms = lease_ms
            self._tell(unit, {"type": "renew", "change_id": change_id, "lease_ms": lease_ms}, ranks)

    def keep(self, change_id: str, ranks: Collection[Rank]) -> None:
        unit = self._units.get(change_id)
        if unit is not None and unit.outcome({}).state is ChangeState.APPLIED and not unit.failed:
            unit.confirmed = True
            self._tell(unit, {"type": "keep", "change_id": change_id}, ranks)

    def revert(self, change_id: str, ranks: Collection[Rank]) -> None:
        unit = self._units.get(change_id)
        if unit is not None:
            unit.fail("order")
            self._send_due(unit, ranks)

    def outcome(self, change_id: str, ranks: Iterable[Rank]) -> Outcome:
        unit = self._units.get(change_id)
        if unit is None:
            return Outcome(ChangeState.UNKNOWN)
        knobs = next((rank.knobs for rank in ranks if rank.run_id in unit.members), {})
        return unit.outcome({name: knob.value for name, knob in knobs.items()})

    # --- from the trainers ------------------------------------------------------------------------------------------

    def attached(self, rank: Rank, reports: Iterable[Mapping[str, Any]]) -> None:
        """A rank (re)connected and told every change it knows: what was lost on the way is sent again."""
        for report in reports:
            if not _follows(rank, report):
                self._unit(report).heard(rank.run_id, rank.rank, report)
        for unit in self._units.values():
            self._send_due(unit, [rank], fresh=True)

    def heard(self, rank: Rank, report: Mapping[str, Any], ranks: Collection[Rank]) -> None:
        """A rank told what became of a change."""
        if _follows(rank, report):
            return
        unit = self._unit(report)
        unit.heard(rank.run_id, rank.rank, report)
        if report["state"] == "refused":
            log.warning("rank %d refused %s: %s %s", rank.rank, unit.change_id, report["reason"], report["detail"])
        self._send_due(unit, ranks)

    def refused(self, rank: Rank, change_id: str, reason: str, ranks: Collection[Rank]) -> None:
        """A rank refused something that was said about a change."""
        unit = self._units.get(change_id)
        if unit is not None:
            unit.refused(rank.run_id, reason)
            self._send_due(unit, ranks)

    def left(self, rank: Rank) -> None:
        """A rank's connection broke; its process may live on and come back."""
        for unit in self._units.values():
            unit.lost(rank.run_id, self._clock.monotonic_ms())

    def replaced(self, rank: Rank) -> None:
        """Another process has a rank's place."""
        for unit in self._units.values():
            unit.give_up_on(rank.run_id)

    def tick(self, ranks: Collection[Rank]) -> None:
        """Gives up on what took too long."""
        for unit in self._units.values():
            unit.age(self._clock.monotonic_ms(), self._settle_ms)
            self._send_due(unit, ranks)

    # --- inside -----------------------------------------------------------------------------------------------------

    def _unit(self, report: Mapping[str, Any]) -> Unit:
        unit = self._units.get(report["id"])
        if unit is None:
            unit = Unit(report["id"], report["values"], None, UNTOLD_LEASE_MS, self._clock.monotonic_ms())
            self._remember(unit)
        return unit

    @staticmethod
    def _send_due(unit: Unit, ranks: Iterable[Rank], fresh: bool = False) -> None:
        for rank in ranks:
            verb = unit.due(rank.run_id, fresh)
            if verb == "set":
                order = {"values": unit.values, "expect": dict(unit.expect or {}), "lease_ms": unit.lease_ms}
                order |= {"ranks": len(unit.members)}
                rank.peer.send({"type": "set", "change_id": unit.change_id, **order})
            elif verb is not None:
                rank.peer.send({"type": verb, "change_id": unit.change_id})

    @staticmethod
    def _tell(unit: Unit, message: Mapping[str, Any], ranks: Iterable[Rank]) -> None:
        for rank in ranks:
            if rank.run_id in unit.members:
                rank.peer.send(message)

    def _remember(self, unit: Unit) -> None:
        self._units[unit.change_id] = unit
        while len(self._units) > MAX_UNITS:
            del self._units[next(iter(self._units))]


def _follows(rank: Rank, report: Mapping[str, Any]) -> bool:
    """Whether the change is led by another rank: what becomes of it is rank 0's to say, and its sidecar's to order."""
    return report.get("scope") == "all_rank" and rank.rank != 0
