"""The journal's lines on stdout, written without ever waiting for who reads them."""

from __future__ import annotations

import os
import select

PIECE = select.PIPE_BUF
"""A pipe that is writable takes this much without waiting."""

MOST = 1 << 20  # bytes of a line that are kept back while nobody reads


class Lines:
    """Writes whole lines: what did not fit of one comes before the next, and a line that cannot begin is refused."""

    def __init__(self, fd: int = 1) -> None:
        self._fd = fd
        self._rest = b""

    def write(self, line: str) -> None:
        """Raises BlockingIOError where the reader takes nothing more, other OSErrors where it is gone."""
        self._push()
        if self._rest:
            raise BlockingIOError("the reader of the journal's lines takes nothing more")
        data = line.encode() + b"\n"
        if len(data) > MOST:
            raise OSError("the line is longer than anybody expects")
        self._rest = data
        self._push()
        if len(self._rest) == len(data):
            self._rest = b""
            raise BlockingIOError("the reader of the journal's lines takes nothing more")

    def _push(self) -> None:
        while self._rest and select.select([], [self._fd], [], 0)[1]:
            try:
                written = os.write(self._fd, self._rest[:PIECE])
            except BlockingIOError:  # somebody has made the descriptor non-blocking
                return
            except OSError:
                self._rest = b""  # nobody will ever read the end of it
                raise
            self._rest = self._rest[written:]
