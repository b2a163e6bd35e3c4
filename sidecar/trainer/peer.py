"""One connection from a trainer process. Nothing it sends can raise out of here or make it wait."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from spikewatch import protocol

log = logging.getLogger(__name__)

MAX_IN_A_ROW = 16  # packets read before other peers get their turn
MAX_UNSENT = 64
MAX_PER_TICK = 2000  # packets; a client of ours sends a handful


def peer_uid(connection: socket.socket) -> int:
    """The uid of the process at the other end, as the kernel knows it."""
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(uid)


class Peer:
    """Reads packets on the running loop and hands checked messages on, with the descriptor that came along."""

    def __init__(
        self,
        connection: socket.socket,
        accepted_ms: int,
        on_message: Callable[[Peer, Mapping[str, Any], int | None], None],
        on_gone: Callable[[Peer, str], None],
    ) -> None:
        """`connection` is non-blocking. `on_message` owns the descriptor it is given."""
        self.accepted_ms = accepted_ms
        self._socket = connection
        self._on_message = on_message
        self._on_gone = on_gone
        self._unsent: deque[bytes] = deque()
        self._this_tick = 0
        self._loop = asyncio.get_running_loop()
        self.open = True
        self._loop.add_reader(connection.fileno(), self._readable)

    def tick(self) -> None:
        """A new interval for the rate limit."""
        self._this_tick = 0

    def _readable(self) -> None:
        try:
            for _ in range(MAX_IN_A_ROW):
                if not self.open or not self._receive():
                    return
        except Exception as error:
            log.warning("a trainer's connection was dropped", exc_info=error)
            self.close("internal_error")

    def _receive(self) -> bool:
        """Handles one packet; False when there is none."""
        try:
            data, fds, flags, _ = socket.recv_fds(self._socket, protocol.MAX_PACKET, 1, socket.MSG_CMSG_CLOEXEC)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self.close(f"lost: {error.strerror}")
            return False
        try:
            if not data:
                self.close("closed")
                return False
            self._this_tick += 1
            if self._this_tick > MAX_PER_TICK:
                self.close("flood")
                return False
            if flags & socket.MSG_TRUNC:
                self.refuse("bad_message", f"larger than {protocol.MAX_PACKET} bytes")
                return False
            try:
                message = protocol.decode(data)
            except protocol.Malformed as error:
                self.refuse("bad_message", str(error))
                return False
            fd = fds.pop() if fds else None
            self._on_message(self, message, fd)
            return True
        finally:
            for fd in fds:
                with contextlib.suppress(OSError):
                    os.close(fd)

    def send(self, message: Mapping[str, Any]) -> None:
        """Sends now or when the peer reads again; a peer that does not read is dropped."""
        if not self.open:
            return
        data = protocol.encode(message)
        if self._unsent or not self._try(data):
            self._unsent.append(data)
            if len(self._unsent) > MAX_UNSENT:
                self.close("not_reading")
            elif len(self._unsent) == 1:
                self._loop.add_writer(self._socket.fileno(), self._writable)

    def _try(self, data: bytes) -> bool:
        try:
            self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self.close(f"lost: {error.strerror}")
        return True

    def _writable(self) -> None:
        while self._unsent and self.open:
            if not self._try(self._unsent[0]):
                return
            if self._unsent:
                self._unsent.popleft()
        if self.open:
            self._loop.remove_writer(self._socket.fileno())

    def refuse(self, reason: str, detail: str) -> None:
        """Says why, and hangs up."""
        self.send(protocol.nack(reason, detail))
        self.close(reason)

    def close(self, reason: str) -> None:
        """Hangs up; `reason` goes to the owner. More than once is fine."""
        if not self.open:
            return
        self.open = False
        self._unsent.clear()
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        self._on_gone(self, reason)
