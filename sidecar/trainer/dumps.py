"""Flight-recorder dumps that were asked of the ranks: kept as the sealed files they came in, one a rank."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_SIZE = 16 << 20  # bytes
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE


@dataclass(frozen=True, slots=True)
class Dump:
    """The newest answer of a rank. Without content, `detail` says why."""

    rank: int
    what: str
    taken_ms: int
    size: int
    detail: str


class Dumps:
    """Answers by rank. The memory of a dump is its trainer's, until it is read."""

    def __init__(self) -> None:
        self._known: dict[int, Dump] = {}
        self._files: dict[int, int] = {}

    def received(self, rank: int, message: Mapping[str, Any], fd: int | None, now_ms: int) -> None:
        """Takes `fd` over. What is no sealed file of the size it claims is kept as an answer without content."""
        size, detail = message["size"], message["detail"]
        if fd is None:
            size, detail = 0, detail or "no file came with it"
        elif not _sealed(fd, size):
            os.close(fd)
            fd, size, detail = None, 0, "what came is no sealed file of that size"
        self._forget(rank)
        self._known[rank] = Dump(rank, message["what"], now_ms, size, detail)
        if fd is not None:
            self._files[rank] = fd

    def known(self) -> Mapping[int, Dump]:
        """The newest answer of each rank that was asked."""
        return dict(self._known)

    def read(self, rank: int) -> bytes:
        """The content; empty where there is none."""
        fd = self._files.get(rank)
        return b"" if fd is None else os.pread(fd, MAX_SIZE, 0)

    def _forget(self, rank: int) -> None:
        fd = self._files.pop(rank, None)
        if fd is not None:
            os.close(fd)

    def close(self) -> None:
        for rank in list(self._files):
            self._forget(rank)


def _sealed(fd: int, size: int) -> bool:
    try:
        info = os.fstat(fd)
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        return False
    return stat.S_ISREG(info.st_mode) and info.st_size == size <= MAX_SIZE and seals & _SEALS == _SEALS
