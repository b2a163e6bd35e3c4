"""One listener for every rank of the pod: their numbers go to the sink, the responses' orders go to them."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from sidecar.clock import Clock
from sidecar.errors import ChannelError
from sidecar.hooks import Sink
from sidecar.model import Availability, ChangeState, Knob, MetricInfo, Order, Outcome, Sample, Status, TrainerIdentity
from sidecar.recording import Recorder
from sidecar.trainer import catalogue
from sidecar.trainer.listener import Listener
from sidecar.trainer.peer import Peer, peer_uid
from sidecar.trainer.rank import Rank
from sidecar.trainer.ringreader import RingReader
from sidecar.trainer.units import Member, Unit
from spikewatch import protocol

log = logging.getLogger(__name__)

MAX_PEERS = 256
MAX_ACCEPTS = 16  # connections taken in one go
HELLO_MS = 5_000  # a peer that has not said hello by then is dropped
SETTLE_MS = 120_000  # a change must have reached every rank by then: three steps of 40 s
CHECK_LISTENER_MS = 5_000
MAX_UNITS = 64  # changes remembered


class TrainerChannel:
    """The sidecar's end. All methods are called on one asyncio loop; none of them waits.

    Where processes of several jobs or rendezvous epochs are attached, the one whose rank attached last counts: its
    ranks are exported and changed, the others are only held.
    """

    name: ClassVar[str] = "trainer"
    metrics: ClassVar[tuple[MetricInfo, ...]] = catalogue.METRICS

    def __init__(
        self,
        socket_path: Path | str,
        sink: Sink,
        clock: Clock,
        *,
        allowed_uids: Collection[int] | None = None,
        settle_ms: int = SETTLE_MS,
    ) -> None:
        """`allowed_uids`: who may attach, by default the sidecar's own user."""
        self._path = Path(socket_path)
        self._clock = clock
        self._allowed = frozenset((os.getuid(),) if allowed_uids is None else allowed_uids)
        self._settle_ms = settle_ms
        self._recorder = Recorder(sink, self.name)
        self._listener: Listener | None = None
        self._checked_ms = 0
        self._peers: dict[Peer, Rank | None] = {}
        self._units: dict[str, Unit] = {}
        self._attached = 0
        self.refused: Counter[str] = Counter()  # connections ended by us, by reason

    # --- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Listens. Needs a running loop. Raises ChannelError when the path cannot be used."""
        self._listener = Listener(self._path, others=bool(self._allowed - {os.getuid()}))
        asyncio.get_running_loop().add_reader(self._listener.socket.fileno(), self._accept)

    def close(self) -> None:
        """Hangs up on everyone and stops listening. Unconfirmed changes then end with their lease."""
        self._unlisten()
        for peer in list(self._peers):
            peer.close("shutdown")

    def _unlisten(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener.socket.fileno())
            self._listener.close()
            self._listener = None

    def _accept(self) -> None:
        for _ in range(MAX_ACCEPTS):
            if self._listener is None:
                return
            try:
                connection, _ = self._listener.socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:  # no descriptors left, or the peer was gone again
                log.warning("a trainer could not be accepted: %s", error)
                return
            connection.setblocking(False)
            uid = peer_uid(connection)
            if uid not in self._allowed or len(self._peers) >= MAX_PEERS:
                reason = "too_many" if uid in self._allowed else "uid"
                self.refused[reason] += 1
                connection.close()
                continue
            self._peers[Peer(connection, self._clock.monotonic_ms(), self._message, self._gone)] = None

    # --- what peers say ---------------------------------------------------------------------------------------------

    def _message(self, peer: Peer, message: Mapping[str, Any], fd: int | None) -> None:
        rank = self._peers.get(peer)
        kind = message["type"]
        if rank is None and kind == "hello" and fd is not None:
            self._hello(peer, message, fd)
            return
        if fd is not None:
            os.close(fd)
        if rank is None:
            peer.refuse("bad_message", "say hello first, and bring the ring")
        elif kind == "change":
            rank.set_values(message["knobs"])
            self._heard(rank, message["change"])
        elif kind == "state":
            rank.learn(message)
            for report in message["changes"]:
                self._heard(rank, report)
        elif kind == "nack":
            unit = self._units.get(message["change_id"])
            if unit is not None:
                unit.refused(rank.run_id, message["reason"])
                self._send_due(unit)
        else:
            peer.refuse("bad_message", f"{kind} is not for a sidecar")

    def _hello(self, peer: Peer, hello: Mapping[str, Any], fd: int) -> None:
        version = protocol.agree(hello["protocol"], hello["protocol_min"])
        if version is None:
            os.close(fd)
            peer.refuse("unsupported_version", f"this sidecar speaks {protocol.OLDEST} to {protocol.VERSION}")
            return
        try:
            ring = RingReader(fd)
        except ChannelError as error:
            peer.refuse("bad_message", str(error))
            return
        self._attached += 1
        rank = Rank.from_hello(hello, peer, ring, self._attached)
        self._succeed(rank)
        self._peers[peer] = rank
        peer.send({"type": "welcome", "protocol": version})
        log.info("rank %d of job %s attached (%s)", rank.rank, rank.job, rank.run_id)
        for report in hello["changes"]:
            self._heard(rank, report, fresh=True)
        for unit in self._units.values():
            self._send_due(unit, rank)

    def _succeed(self, rank: Rank) -> None:
        """A new process in a rank's place, or a new connection of the same one, ends the older."""
        for peer, other in list(self._peers.items()):
            if other is None or (other.job, other.rank) != (rank.job, rank.rank):
                continue
            if other.run_id != rank.run_id:
                for unit in self._units.values():
                    unit.give_up_on(other.run_id)
            else:
                peer.close("replaced")

    def _heard(self, rank: Rank, report: Mapping[str, Any], fresh: bool = False) -> None:
        unit = self._units.get(report["id"])
        if unit is None:
            unit = Unit(report["id"], report["values"], None, 30_000, self._clock.monotonic_ms())
            self._remember(unit)
        unit.heard(rank.run_id, rank.rank, report)
        if not fresh:
            self._send_due(unit)

    def _gone(self, peer: Peer, reason: str) -> None:
        rank = self._peers.pop(peer, None)
        if reason not in ("closed", "shutdown", "replaced"):
            self.refused[reason.partition(":")[0]] += 1
        if rank is None:
            return
        log.info("rank %d of job %s left: %s", rank.rank, rank.job, reason)
        rank.ring.close()
        for unit in self._units.values():
            unit.lost(rank.run_id, self._clock.monotonic_ms())

    # --- samples ----------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Writes the newest numbers of every rank at `now_ms`; ends the series of those that left."""
        now = self._clock.monotonic_ms()
        self._check_listener(now)
        for peer, rank in list(self._peers.items()):
            peer.tick()
            if rank is None and now - peer.accepted_ms > HELLO_MS:
                peer.close("no_hello")
        for unit in self._units.values():
            unit.age(now, self._settle_ms)
            self._send_due(unit)
        self._recorder.record(self._samples(), now_ms)

    def _samples(self) -> Iterable[Sample]:
        for rank in self._current():
            yield from rank.samples()

    def _check_listener(self, now: int) -> None:
        if now - self._checked_ms < CHECK_LISTENER_MS or (self._listener is None and not self._checked_ms):
            return
        self._checked_ms = now
        if self._listener is not None and self._listener.intact():
            return
        # Somebody removed or replaced the path: attached ranks stay, new ones could not find us.
        self._unlisten()
        try:
            self.start()
        except ChannelError as error:
            log.warning("%s", error)

    def status(self) -> Status:
        """Whether trainers can be seen, for `spikewatch_collector_up{collector="trainer"}`."""
        if self._listener is None:
            return Status(Availability.UNAVAILABLE, "not_listening")
        current = self._current()
        if not current:
            return Status(Availability.UNAVAILABLE, "no_trainer")
        if len(current) < sum(rank is not None for rank in self._peers.values()):
            return Status(Availability.DEGRADED, "several_jobs")
        return Status(Availability.AVAILABLE)

    def _current(self) -> list[Rank]:
        """The ranks of the newest job and epoch, one a rank number, in order."""
        ranks = sorted((r for r in self._peers.values() if r is not None), key=lambda r: r.attached)
        if not ranks:
            return []
        newest = ranks[-1]
        chosen = {r.rank: r for r in ranks if (r.job, r.epoch) == (newest.job, newest.epoch)}
        return [chosen[number] for number in sorted(chosen)]

    # --- orders (hooks.Actuator) ------------------------------------------------------------------------------------

    def identity(self) -> TrainerIdentity | None:
        """The newest job and epoch attached, `run_ids` in the order of `ranks`; None when nobody is."""
        ranks = self._current()
        if not ranks:
            return None
        return TrainerIdentity(
            job=ranks[0].job,
            epoch=ranks[0].epoch,
            run_ids=tuple(r.run_id for r in ranks),
            ranks=tuple(r.rank for r in ranks),
            world=max(r.world for r in ranks),
        )

    def knobs(self) -> Mapping[str, Knob]:
        """What every attached rank can change and has at the same value, within the bounds of all of them."""
        return self._merged()[0]

    def unavailable(self) -> Mapping[str, str]:
        """Knobs that `knobs` leaves out, each with the reason."""
        return self._merged()[1]

    def _merged(self) -> tuple[dict[str, Knob], dict[str, str]]:
        ranks = self._current()
        knobs: dict[str, Knob] = {}
        reasons: dict[str, str] = {}
        for rank in ranks:
            reasons.update(rank.unavailable)
        for name in dict.fromkeys(name for rank in ranks for name in rank.knobs):
            mine = [rank.knobs[name] for rank in ranks if name in rank.knobs]
            if len(mine) < len(ranks):
                reasons.setdefault(name, "not every rank has it")
            elif len({(k.value, k.unit, k.scope) for k in mine}) > 1:
                reasons[name] = "the ranks have different values: " + ", ".join(str(k.value) for k in mine)
            else:
                low = [k.minimum for k in mine if k.minimum is not None]
                high = [k.maximum for k in mine if k.maximum is not None]
                first = mine[0]
                knobs[name] = Knob(
                    name,
                    first.value,
                    max(low, default=None),
                    min(high, default=None),
                    first.unit,
                    first.scope,
                )
        return knobs, reasons

    def apply(self, order: Order) -> None:
        """Sends a new order to every attached rank. The same `change_id` again does nothing."""
        if order.change_id in self._units:
            return
        unit = Unit(order.change_id, order.values, order.expect, order.lease_ms, self._clock.monotonic_ms())
        self._remember(unit)
        ranks = self._current()
        if not ranks:
            unit.refusal = "no_trainer"
        for rank in ranks:
            unit.members[rank.run_id] = Member(rank.rank)
        for rank in ranks:
            self._send_due(unit, rank)

    def renew(self, change_id: str, lease_ms: int) -> None:
        """Prolongs the lease on every rank; lost packets do no harm, the next renewal comes."""
        unit = self._units.get(change_id)
        if unit is not None and not unit.failed:
            unit.lease_ms = lease_ms
            self._send(unit, {"type": "renew", "change_id": change_id, "lease_ms": lease_ms})

    def keep(self, change_id: str) -> None:
        """Confirms on every rank, once every rank has applied; before that, or when it failed, does nothing."""
        if self.outcome(change_id).state is ChangeState.APPLIED and not self._units[change_id].failed:
            self._send(self._units[change_id], {"type": "keep", "change_id": change_id})

    def revert(self, change_id: str) -> None:
        """Undoes on every rank, also on those that come back later."""
        unit = self._units.get(change_id)
        if unit is not None:
            unit.fail("order")
            self._send_due(unit)

    def outcome(self, change_id: str) -> Outcome:
        """What is known of a change on all its ranks; `step` is the latest of theirs."""
        unit = self._units.get(change_id)
        if unit is None:
            return Outcome(ChangeState.UNKNOWN)
        now = next((r.knobs for r in self._current() if r.run_id in unit.members), {})
        return unit.outcome({name: knob.value for name, knob in now.items()})

    def _send_due(self, unit: Unit, only: Rank | None = None) -> None:
        for rank in [only] if only is not None else self._present():
            verb = unit.due(rank.run_id, fresh=only is not None)
            if verb == "revert":
                rank.peer.send({"type": "revert", "change_id": unit.change_id})
            elif verb == "set":
                rank.peer.send(
                    {
                        "type": "set",
                        "change_id": unit.change_id,
                        "values": unit.values,
                        "expect": dict(unit.expect or {}),
                        "lease_ms": unit.lease_ms,
                    }
                )

    def _send(self, unit: Unit, message: Mapping[str, Any]) -> None:
        for rank in self._present():
            if rank.run_id in unit.members:
                rank.peer.send(message)

    def _present(self) -> list[Rank]:
        return [rank for rank in self._peers.values() if rank is not None]

    def _remember(self, unit: Unit) -> None:
        self._units[unit.change_id] = unit
        while len(self._units) > MAX_UNITS:
            del self._units[next(iter(self._units))]
