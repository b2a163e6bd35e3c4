"""A declared serving worker: how long it has had nothing to do, how long it took to start, how much memory it holds.

    worker = spikewatch.worker("tokenizer")
    with worker.request():
        ...

Standard library only. Call it in the process that serves: after the fork, where a server forks its workers.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from spikewatch import contact, layout, procinfo, protocol
from spikewatch.layout import MISSING
from spikewatch.ring import RingWriter

log = logging.getLogger("spikewatch")

THREAD_NAME = "spikewatch worker"
PERIOD = 0.5  # seconds between two records
FIRST_RETRY, LAST_RETRY = 0.5, 5.0
HELLO_TIMEOUT = 5.0
MAX_ERRORS = 16  # in the client's thread; then the worker is no longer shown


class Activity:
    """Requests under way and served. `now` is a clock in seconds."""

    def __init__(self, now: Callable[[], float] = procinfo.since_boot) -> None:
        self._now = now
        self._lock = threading.Lock()  # held for an addition; requests may come from any thread
        self._idle_since = now()
        self._busy = 0
        self.served = 0
        self.first_served_at: float | None = None

    def begins(self) -> None:
        with self._lock:
            self._busy += 1

    def ends(self) -> None:
        now = self._now()
        with self._lock:
            self._busy -= 1
            self.served += 1
            self._idle_since = now
            if self.first_served_at is None:
                self.first_served_at = now

    def idle_seconds(self) -> float:
        """Since the last request ended, or since the worker was declared; 0 while one is under way."""
        with self._lock:
            return 0.0 if self._busy else max(0.0, self._now() - self._idle_since)


class Worker:
    """What `worker` returns. Nothing here raises or waits."""

    def __init__(self, client: Client | None = None) -> None:
        self._client = client
        if client is not None:
            _end_in_forks(self)

    @property
    def active(self) -> bool:
        """Whether anything is measured: not inert, closed or forked."""
        return self._client is not None

    @property
    def connected(self) -> bool:
        """Whether a sidecar listens at the moment."""
        return self._client is not None and self._client.connected

    def request(self) -> Request:
        """`with worker.request():` around serving one request."""
        return Request(None if self._client is None else self._client.activity)

    def close(self) -> None:
        """The worker ends: its series do, too."""
        client, self._client = self._client, None
        if client is not None:
            client.stop()

    def _forked(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.forked()


class Request:
    """One request, from entering the block to leaving it, however it is left."""

    __slots__ = ("_activity",)

    def __init__(self, activity: Activity | None) -> None:
        self._activity = activity

    def __enter__(self) -> None:
        if self._activity is not None:
            self._activity.begins()

    def __exit__(self, *exception: object) -> None:
        if self._activity is not None:
            self._activity.ends()


def worker(name: str = "worker", *, socket: str | None = None) -> Worker:
    """Declares this process a serving worker called `name`. Never raises, never waits.

    `socket`: the sidecar's, else `$SPIKEWATCH_SOCKET`, else /run/spikewatch/trainer.sock. Inert with
    `SPIKEWATCH_DISABLE=1`.
    """
    if os.environ.get("SPIKEWATCH_DISABLE", "") not in ("", "0"):
        return Worker()
    try:
        path = socket or os.environ.get("SPIKEWATCH_SOCKET") or protocol.DEFAULT_SOCKET
        client = Client(path, name[: protocol.MAX_TEXT] or "worker", Activity())
        client.start()
        return Worker(client)
    except Exception as error:  # noqa: BLE001  the server goes on exactly as without us
        log.warning("spikewatch stays off: %r", error)
        return Worker()


class Client:
    """Publishes one worker's numbers from a thread of its own, and keeps the connection."""

    def __init__(self, path: str, name: str, activity: Activity) -> None:
        self.activity = activity
        self.connected = False
        self._path, self._name, self._run_id = path, name, secrets.token_hex(8)
        self._ring = RingWriter(layout.WORKER_FIELDS, ())
        self._started = procinfo.started_at()
        self._errors = 0
        self._socket: socket.socket | None = None
        self._hello_by = self._try_at = 0.0
        self._retry = FIRST_RETRY
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float = 1.0) -> None:
        """Ends the thread and, once it has ended, gives the ring's memory back."""
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)
        if not self._thread.is_alive():
            self._ring.close()

    def forked(self) -> None:
        """In the child of a fork: lets go of the connection and the ring, which are the parent's."""
        if self._socket is not None:
            self._socket.close()
        with contextlib.suppress(OSError, BufferError):
            self._ring.close()

    def values(self) -> dict[str, float]:
        """By field of `layout.WORKER_FIELDS`; what is not known is missing."""
        first, resident = self.activity.first_served_at, procinfo.resident_bytes()
        return {
            "written_at": time.monotonic(),
            "idle_seconds": self.activity.idle_seconds(),
            "cold_start_seconds": MISSING if first is None or self._started is None else first - self._started,
            "resident_bytes": MISSING if resident is None else float(resident),
            "requests_total": float(self.activity.served),
            "errors_total": float(self._errors),
        }

    def _run(self) -> None:
        while not self._stop.is_set() and self._errors < MAX_ERRORS:
            try:
                self._turn()
            except OSError as error:  # the other end died or never spoke
                self._drop(str(error))
            except Exception as error:  # noqa: BLE001  the server must not see our mistakes
                self._errors += 1
                self._drop(repr(error))
        self._drop("")

    def _turn(self) -> None:
        values = self.values()
        self._ring.write_live([values[name] for name in layout.WORKER_FIELDS])
        now = time.monotonic()
        if self._socket is None and now >= self._try_at:
            self._connect(now)
        if self._socket is None:
            self._stop.wait(PERIOD)
            return
        if not self.connected and now > self._hello_by:
            raise TimeoutError("no welcome")
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN)
        if poll.poll(PERIOD * 1000):
            self._read(self._socket)

    def _connect(self, now: float) -> None:
        self._try_at = now + self._retry
        self._retry = min(self._retry * 2, LAST_RETRY)
        hello = {"type": "worker", "protocol": protocol.VERSION, "protocol_min": protocol.OLDEST}
        try:
            self._socket = contact.opened()  # kept at once, so that a fork at any moment finds it
            packet = protocol.encode({**hello, "name": self._name, "run_id": self._run_id})
            if not contact.call(self._socket, self._path, lambda: packet, self._ring.fd):
                self._drop("another user's socket")
        except OSError as error:
            self._drop(str(error))
        self._hello_by = now + HELLO_TIMEOUT

    def _read(self, connection: socket.socket) -> None:
        data = connection.recv(protocol.MAX_PACKET)
        if not data:
            self._drop("closed by the sidecar")
            return
        try:
            kind = protocol.decode(data)["type"]
        except protocol.Malformed as error:
            self._drop(str(error))
            return
        if kind == "welcome":
            self.connected, self._retry = True, FIRST_RETRY
        else:
            self._retry = LAST_RETRY
            self._drop(kind)

    def _drop(self, reason: str) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
            log.debug("the sidecar's connection ended: %s", reason)
        self._socket, self.connected = None, False


def _end_in_forks(made: Worker) -> None:
    reference = weakref.ref(made)

    def in_child() -> None:
        forked: Any = reference()
        if forked is not None:
            forked._forked()

    os.register_at_fork(after_in_child=in_child)
