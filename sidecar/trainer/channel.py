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
from sidecar.model import Availability, Knob, MetricInfo, Order, Outcome, Sample, Status, TrainerIdentity, labels_of
from sidecar.recording import Recorder
from sidecar.trainer import catalogue
from sidecar.trainer.dumps import Dump, Dumps
from sidecar.trainer.listener import Listener
from sidecar.trainer.orders import SETTLE_MS, Orders
from sidecar.trainer.peer import Peer, peer_uid
from sidecar.trainer.rank import Rank, merge_knobs
from sidecar.trainer.ringreader import RingReader
from sidecar.trainer.serving import Workers
from spikewatch import protocol

log = logging.getLogger(__name__)

MAX_PEERS = 256
MAX_ACCEPTS = 16  # connections taken in one go
HELLO_MS = 5_000  # a peer that has not said hello by then is dropped
CHECK_LISTENER_MS = 5_000


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
        self._orders = Orders(clock, settle_ms)
        self._recorder = Recorder(sink, self.name)
        self._listener: Listener | None = None
        self._checked_ms = 0
        self._peers: dict[Peer, Rank | None] = {}
        self._workers = Workers()
        self._dumps = Dumps()
        self._left: dict[str, Rank] = {}  # by run_id: whose connection broke and who may come back
        self._attached = 0
        self._off: dict[int, str] = {}  # by rank: why its client turned itself off
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
        self._dumps.close()

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
        if rank is None and kind == "worker" and fd is not None:
            self._worker(peer, message, fd)
            return
        if rank is not None and kind == "dumped":
            self._dumps.received(rank.rank, message, fd, self._clock.now_ms())
            return
        if fd is not None:
            os.close(fd)
        if rank is None:
            peer.refuse("bad_message", "say hello first, and bring the ring")
        elif kind == "change":
            rank.set_values(message["knobs"])
            self._orders.heard(rank, message["change"], self._present())
        elif kind == "state":
            rank.learn(message)
            for report in message["changes"]:
                self._orders.heard(rank, report, self._present())
        elif kind == "nack":
            self._orders.refused(rank, message["change_id"], message["reason"], self._present())
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
        self._off.pop(hello["rank"], None)
        rank = Rank.from_hello(hello, peer, ring, self._attached)
        self._succeed(rank)
        self._peers[peer] = rank
        peer.send({"type": "welcome", "protocol": version})
        log.info("rank %d of job %s attached (%s)", rank.rank, rank.job, rank.run_id)
        self._orders.attached(rank, hello["changes"])

    def _worker(self, peer: Peer, message: Mapping[str, Any], fd: int) -> None:
        version = protocol.agree(message["protocol"], message["protocol_min"])
        if version is None:
            os.close(fd)
            peer.refuse("unsupported_version", f"this sidecar speaks {protocol.OLDEST} to {protocol.VERSION}")
            return
        try:
            self._workers.add(peer, message, fd)
        except ChannelError as error:
            peer.refuse("bad_message", str(error))
            return
        peer.send({"type": "welcome", "protocol": version})

    def _succeed(self, rank: Rank) -> None:
        """A new process in a rank's place, or a new connection of the same one, ends the older."""
        for peer, other in list(self._peers.items()):
            if other is None or (other.job, other.rank) != (rank.job, rank.rank):
                continue
            if other.run_id != rank.run_id:
                self._orders.replaced(other)
            else:
                peer.close("replaced")
        self._left.pop(rank.run_id, None)
        for other in [r for r in self._left.values() if (r.job, r.rank) == (rank.job, rank.rank)]:
            self._orders.replaced(other)
            del self._left[other.run_id]

    def _gone(self, peer: Peer, reason: str) -> None:
        rank = self._peers.pop(peer, None)
        self._workers.gone(peer)
        if reason not in ("closed", "shutdown", "replaced"):
            self.refused[reason.partition(":")[0]] += 1
        if rank is None:
            return
        log.info("rank %d of job %s left: %s", rank.rank, rank.job, reason)
        rank.ring.close()
        if rank.about.get("off"):
            self._off[rank.rank] = rank.about["off"]
        self._orders.left(rank)
        self._left[rank.run_id] = rank
        while len(self._left) > MAX_PEERS:
            del self._left[next(iter(self._left))]

    # --- samples ----------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Writes the newest numbers of every rank at `now_ms`; ends the series of those that left."""
        now = self._clock.monotonic_ms()
        self._check_listener(now)
        for peer, rank in list(self._peers.items()):
            peer.tick()
            if rank is None and peer not in self._workers and now - peer.accepted_ms > HELLO_MS:
                peer.close("no_hello")
        self._orders.tick(self._present())
        self._recorder.record(self._samples(), now_ms)

    def _samples(self) -> Iterable[Sample]:
        for rank in self._current():
            yield from rank.samples()
        yield from self._workers.samples()
        for number, reason in self._off.items():
            yield Sample(catalogue.CLIENT_OFF.name, labels_of({"rank": str(number), "reason": reason}), 1.0)

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

    # --- dumps ------------------------------------------------------------------------------------------------------

    def ask_for_dumps(self, dump_id: str) -> tuple[int, ...]:
        """Asks every attached rank for its flight recorder; returns the ranks. The answers come to `dumps`."""
        ranks = self._current()
        for rank in ranks:
            rank.peer.send({"type": "dump", "what": "flight_recorder", "dump_id": dump_id})
        return tuple(rank.rank for rank in ranks)

    def dumps(self) -> Mapping[int, Dump]:
        """The newest answer of each rank, also of one that has left since."""
        return self._dumps.known()

    def dump(self, rank: int) -> bytes:
        """The content of a rank's newest dump: JSON of torch's flight recorder; empty where there is none."""
        return self._dumps.read(rank)

    def status(self) -> Status:
        """Whether trainers can be seen, for `spikewatch_collector_up{collector="trainer"}`."""
        if self._listener is None:
            return Status(Availability.UNAVAILABLE, "not_listening")
        current = self._current()
        if not current:
            return Status(Availability.UNAVAILABLE, "no_trainer")
        if len(current) < len(self._present()):
            return Status(Availability.DEGRADED, "several_jobs")
        return Status(Availability.AVAILABLE)

    def _present(self) -> list[Rank]:
        return [rank for rank in self._peers.values() if rank is not None]

    def _current(self) -> list[Rank]:
        """The ranks of the newest job and epoch, one a rank number, in order."""
        ranks = sorted(self._present(), key=lambda r: r.attached)
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
        return merge_knobs(self._current())[0]

    def unavailable(self) -> Mapping[str, str]:
        """Knobs that `knobs` leaves out, each with the reason."""
        return merge_knobs(self._current())[1]

    def apply(self, order: Order) -> None:
        """Sends a new order to every attached rank. The same `change_id` again does nothing.

        What all ranks share is ordered at global rank 0 only, which agrees on it with the others by itself; where
        that rank is attached elsewhere, the order is refused as `not_leader`.
        """
        ranks = self._current()
        if any(rank.world > 1 and rank.shares(order.values) for rank in ranks):
            self._orders.give(order, [rank for rank in ranks if rank.rank == 0], "not_leader")
        else:
            self._orders.give(order, ranks)

    def renew(self, change_id: str, lease_ms: int) -> None:
        """Prolongs the lease on every rank; a lost packet does no harm, the next renewal comes."""
        self._orders.renew(change_id, lease_ms, self._present())

    def keep(self, change_id: str) -> None:
        """Confirms on every rank, once every rank has applied; before that, or when it failed, does nothing."""
        self._orders.keep(change_id, self._present())

    def revert(self, change_id: str) -> None:
        """Undoes on every rank, also on those that come back later."""
        self._orders.revert(change_id, self._present())

    def outcome(self, change_id: str) -> Outcome:
        """What is known of a change on all its ranks; `step` is the latest of theirs."""
        return self._orders.outcome(change_id, self._current())
