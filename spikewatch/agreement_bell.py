"""One process a node looks at the store; it rings the others when there is something to see.

The processes of a node find each other by an abstract socket that all of a session know. Whoever binds it first is the
one that looks; when it dies the name is free again. A ring carries nothing: whoever hears it reads the store himself.
Where there is no such socket to be had, every process looks for itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import socket
import struct
import threading

MAX_LISTENERS = 128  # processes of one job on one node


class Bell:
    """Used by one thread, but for `wake`."""

    def __init__(self) -> None:
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()  # the number of a closed descriptor may be somebody else's by now
        self._open = True
        self._address = b""
        self._socket: socket.socket | None = None  # the one others connect to, or the one we are connected by
        self._others: list[socket.socket] = []
        self.looks = True  # whether this process is the one that looks

    def tune(self, session: str) -> None:
        """Finds the others of this session on this node; the same session again does nothing."""
        address = b"\0spikewatch-" + hashlib.sha256(session.encode()).hexdigest()[:32].encode()
        if address != self._address:
            self._hang_up()
            self._address = address
            self._find()

    def _find(self) -> None:
        try:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)
            try:
                self._socket.bind(self._address)
                self._socket.listen(MAX_LISTENERS)
                self.looks = True
            except OSError:  # taken
                self._socket.connect(self._address)
                if _uid(self._socket) != os.getuid():
                    raise PermissionError("a stranger's") from None
                self.looks = False
        except OSError:  # this node has no such sockets, or somebody else has ours
            self._hang_up()
            self.looks = True

    def wait(self, seconds: float) -> bool:
        """Waits for a ring, a `wake` or the time. Whether it was a ring."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if self._socket is not None:
            poll.register(self._socket, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(seconds * 1000)}
        if self._wake in ready:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake)
        if self._socket is None or self._socket.fileno() not in ready:
            return False
        return self._let_in() if self.looks else self._heard()

    def _let_in(self) -> bool:
        assert self._socket is not None
        with contextlib.suppress(OSError):
            other, _ = self._socket.accept()
            other.setblocking(False)
            if _uid(other) == os.getuid() and len(self._others) < MAX_LISTENERS:
                self._others.append(other)
            else:
                other.close()
        return False

    def _heard(self) -> bool:
        assert self._socket is not None
        try:
            if self._socket.recv(1):
                return True
        except BlockingIOError:
            return False
        except OSError:
            pass
        self._hang_up()  # the one that looked is gone
        self._find()
        return True  # what it may have seen and not told

    def ring(self) -> None:
        """There is something to see."""
        for other in list(self._others):
            try:
                other.send(b"!")
            except BlockingIOError:
                continue  # it has rings enough to wake up to
            except OSError:
                other.close()
                self._others.remove(other)

    def wake(self) -> None:
        """Ends a `wait`. From any thread."""
        with self._lock:
            if self._open:
                os.eventfd_write(self._wake, 1)

    def _hang_up(self) -> None:
        for one in (self._socket, *self._others):
            if one is not None:
                one.close()
        self._socket, self._others = None, []

    def close(self) -> None:
        self._hang_up()
        with self._lock:
            self._open = False
            os.close(self._wake)

    def forked(self) -> None:
        """In the child of a fork: a loader's worker that outlives us must not keep our place."""
        self._hang_up()


def _uid(connection: socket.socket) -> int:
    return int(struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1])
