"""The client's own thread: keeps the connection, answers orders, watches leases, publishes what is in progress."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from spikewatch import contact, flight, protocol
from spikewatch.changes import Ledger
from spikewatch.identity import identify
from spikewatch.knobs import KnobSet
from spikewatch.layout import FIELDS
from spikewatch.meter import Meter
from spikewatch.refusal import Refused
from spikewatch.ring import RingWriter
from spikewatch.telemetry import Telemetry

log = logging.getLogger("spikewatch")

THREAD_NAME = "spikewatch"
PERIOD = 0.15  # seconds between two live records while a long step or wait is under way: 6.7 a second
CALM = 7  # periods between two turns while steps leave records by themselves and no change is open
FIRST_RETRY, LAST_RETRY = 0.5, 5.0  # seconds; the longest must let a restarted sidecar back well inside a 30 s lease
LOOK = 1.0  # seconds between two looks at whether knobs have come, gone or moved by themselves
HELLO_TIMEOUT = 5.0  # seconds a sidecar may take to say welcome
MAX_IN_A_ROW = 32  # packets read before the other duties get their turn

_STEP_SECONDS = FIELDS.index("step_seconds_total")
_DATA_WAIT = FIELDS.index("data_wait_seconds_total")


class Agent:
    """Runs in a daemon thread. Every error ends in a counter and a new connection, never in the trainer."""

    def __init__(
        self, path: str, job: str | None, run_id: str, meter: Meter, ring: RingWriter, ledger: Ledger, knobs: KnobSet
    ) -> None:
        self.path = path
        self.connected = False
        self.telemetry = Telemetry(meter, ring)
        self._job = job
        self._run_id = run_id
        self._meter = meter
        self._ring = ring
        self._ledger = ledger
        self._knobs = knobs
        self.duties: tuple[Callable[[], None], ...] = ()  # what else is to be done at every turn
        self._socket: socket.socket | None = None
        self._welcomed = False
        self._hello_by = 0.0
        self._retry, self._try_at = FIRST_RETRY, 0.0
        self._said: Any = None  # the knobs as last told
        self._look_at = 0.0
        self._live = [0.0, 0.0]  # largest step and wait seconds published
        self._stop = threading.Event()
        self._waker = -1  # an eventfd that ends a pause
        self._waking = threading.Lock()  # the number of a closed descriptor may be somebody else's by now
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)

    @property
    def stopping(self) -> threading.Event:
        """Set when the run ends."""
        return self._stop

    def start(self) -> None:
        self._waker = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread.start()

    def stop(self, timeout: float = 1.0) -> bool:
        """Publishes the last totals, says goodbye by closing, and ends the thread. Whether it has ended in time."""
        self._stop.set()
        with self._waking:
            if self._waker >= 0:
                os.eventfd_write(self._waker, 1)
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def forked(self) -> None:
        """In the child of a fork: lets go of the connection. A loader worker that held it would keep it open, and with
        it the picture of a living trainer, for the seconds by which it outlives one that was killed.
        """
        if self._socket is not None:
            self._socket.close()
        if self._waker >= 0:
            os.close(self._waker)
            self._waker = -1

    def _run(self) -> None:
        try:
            self._work()
        finally:
            with self._waking:
                os.close(self._waker)
                self._waker = -1

    def _work(self) -> None:
        failures = 0  # in a row
        while True:
            stopping = self._stop.is_set()
            try:
                self._turn()
                failures = 0
            except OSError as error:  # the other end died, hung or never spoke: its trouble, not an error of ours
                self._drop(str(error))
            except Exception as error:  # noqa: BLE001  the trainer must not see our mistakes
                self._meter.errors += 1
                self._drop(f"{type(error).__name__}: {error}")
                failures += 1
                self._stop.wait(min(PERIOD * 2**failures, LAST_RETRY))  # or it would take the trainer's core
            if stopping:
                self._drop("")
                return

    def _turn(self) -> None:
        now = time.monotonic()
        pause = PERIOD * CALM if self._publish() else PERIOD
        self.telemetry.tick(now)
        if self._ledger.expire():
            pause = PERIOD
        for duty in self.duties:
            duty()
        if self._socket is None:
            if now >= self._try_at:
                self._connect(now)
            if self._socket is None:
                self._stop.wait(pause)
                return
        if not self._welcomed and now > self._hello_by:
            raise TimeoutError("no welcome")
        if self._welcomed:
            self._tell_news()
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN)
        poll.register(self._waker, select.POLLIN)
        if poll.poll(0 if self._stop.is_set() else pause * 1000):
            self._read()

    def _publish(self) -> bool:
        """Writes the live record. Whether one could be spared, for steps are ending and leave records themselves."""
        now = self._meter.now()  # before the record is made, see `Meter.record`
        record = list(self._meter.record(now))
        for place, field in enumerate((_STEP_SECONDS, _DATA_WAIT)):
            self._live[place] = record[field] = max(record[field], self._live[place])
        self._ring.write_live(record)
        return now - self._meter.ended < 2e9 * PERIOD

    # --- connection -------------------------------------------------------------------------------------------------

    def _connect(self, now: float) -> None:
        self._try_at = now + self._retry
        self._retry = min(self._retry * 2, LAST_RETRY)
        try:
            self._socket = contact.opened()  # kept at once, so that a fork at any moment finds it
            if not contact.call(self._socket, self.path, lambda: protocol.encode(self._hello()), self._ring.fd):
                self._drop("another user's socket")
                return
        except OSError as error:  # nobody there, or no longer: the usual case without a sidecar
            self._drop(str(error))
            return
        self._welcomed, self._hello_by = False, now + HELLO_TIMEOUT

    def _hello(self) -> dict[str, Any]:
        me = identify(self._job)
        self._ledger.news.clear()  # the hello tells all of it
        return {
            "type": "hello",
            "protocol": protocol.VERSION,
            "protocol_min": protocol.OLDEST,
            "job": me.job,
            "run_id": self._run_id,
            "rank": me.rank,
            "local_rank": me.local_rank,
            "world": me.world,
            "epoch": me.epoch,
            "framework": me.framework,
            "backend": me.backend,
            **self._state(),
        }

    def _state(self) -> dict[str, Any]:
        self._said = (knobs, unavailable, about) = self._now()
        return {
            "step": self._meter.steps,
            "knobs": knobs,
            "unavailable": unavailable,
            "changes": self._ledger.reports(),
            "about": about,
        }

    def _now(self) -> tuple[list[dict[str, Any]], dict[str, str], dict[str, str]]:
        return self._knobs.describe(), self._knobs.unavailable(), self.telemetry.about

    def _drop(self, reason: str) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # closing ends nothing while a process forked from us has it
            self._socket.close()
            log.debug("the sidecar's connection ended: %s", reason)
        self._socket, self._welcomed, self.connected = None, False, False

    def _send(self, message: Mapping[str, Any]) -> None:
        # A sidecar that does not read fills the socket: BlockingIOError then costs it the connection, not us time.
        if self._socket is not None:
            self._socket.send(protocol.encode(message))

    def _tell_news(self) -> None:
        if self._ledger.news:
            self._publish()  # who hears of a change finds it in the ring, too
        while self._ledger.news:
            self._send_change(self._ledger.news.popleft(), answer=False)
        now = time.monotonic()
        if now < self._look_at and not self._stop.is_set():  # describing every knob takes a fifth of a millisecond
            return
        self._look_at = now + LOOK
        if self._now() != self._said:
            self._send({"type": "state", **self._state()})

    def _send_change(self, change_id: str, answer: bool) -> None:
        report = self._ledger.report(change_id)
        if report is not None:
            self._send({"type": "change", "change": report, "knobs": dict(self._knobs.values()), "answer": answer})

    # --- orders -----------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        for _ in range(MAX_IN_A_ROW):
            if self._socket is None:
                return
            try:
                data, _, flags, _ = self._socket.recvmsg(protocol.MAX_PACKET)
            except BlockingIOError:
                return
            except OSError as error:
                self._drop(str(error))
                return
            if not data:
                self._drop("closed by the sidecar")
                return
            try:
                if flags & socket.MSG_TRUNC:
                    raise protocol.Malformed("larger than a packet may be")
                message = protocol.decode(data)
            except protocol.Malformed as error:
                self._send(protocol.nack("bad_message", str(error)))
                continue
            self._handle(message)

    def _handle(self, message: Mapping[str, Any]) -> None:
        kind = message["type"]
        if not self._welcomed:
            if kind == "welcome" and protocol.OLDEST <= message["protocol"] <= protocol.VERSION:
                self._welcomed = self.connected = True
                self._retry = FIRST_RETRY
            else:
                self._drop(f"refused: {message.get('reason', kind)} {message.get('detail', '')}")
                self._retry = LAST_RETRY
            return
        if kind == "get":
            self._send({"type": "state", **self._state()})
            return
        if kind == "dump":
            self._dump(message)
            return
        if kind not in ("set", "renew", "keep", "revert"):
            self._send(protocol.nack("bad_message", f"{kind} is not for a trainer"))
            return
        change_id = message["change_id"]
        try:
            if kind == "set":
                ranks = message.get("ranks", 1)
                self._ledger.set(change_id, message["values"], message["expect"], message["lease_ms"], ranks)
            elif kind == "renew":
                self._ledger.renew(change_id, message["lease_ms"])
            elif kind == "keep":
                self._ledger.keep(change_id)
            else:
                self._ledger.revert(change_id)
        except Refused as refusal:
            self._send(protocol.nack(refusal.reason, refusal.detail, change_id))
        self._send_change(change_id, answer=True)

    def _dump(self, asked: Mapping[str, Any]) -> None:
        answer = {"type": "dumped", "what": asked["what"], "dump_id": asked["dump_id"], "size": 0, "detail": ""}
        try:
            data = flight.dump()
            fd = flight.sealed(data)
        except Refused as refusal:
            self._send({**answer, "detail": refusal.detail[: protocol.MAX_TEXT]})
            return
        try:
            if self._socket is not None:
                socket.send_fds(self._socket, [protocol.encode({**answer, "size": len(data)})], [fd])
        finally:
            os.close(fd)
