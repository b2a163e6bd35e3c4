"""Finds the sidecar and speaks first: only to a socket of our own user or root, and before that not a word."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Mapping


def opened() -> socket.socket:
    """A non-blocking socket of the kind the sidecar listens on."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    connection.setblocking(False)
    return connection


def listener_uid(connection: socket.socket) -> int:
    """The user whose process listens at the other end, as the kernel knows it."""
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(uid)


def trusted_uids(environ: Mapping[str, str]) -> set[int]:
    """Whose sidecar is spoken to: our own user's, root's, and those in `$SPIKEWATCH_TRUSTED_UIDS` (1001,1002)."""
    named = environ.get("SPIKEWATCH_TRUSTED_UIDS", "").split(",")
    return {0, os.getuid(), *(int(uid) for uid in named if uid.strip().isdecimal())}


def call(connection: socket.socket, path: str, hello: Callable[[], bytes], fd: int) -> bool:
    """Sends what `hello` returns with the descriptor `fd`. False where the socket is another user's. Raises OSError."""
    trusted = trusted_uids(os.environ)
    if os.stat(path).st_uid not in trusted:
        return False  # somebody else's socket: not a word, and no descriptor
    connection.connect(path)
    if listener_uid(connection) not in trusted:
        return False
    socket.send_fds(connection, [hello()], [fd])
    return True
