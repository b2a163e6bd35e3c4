"""Readers of /proc/<pid>: plain facts, None where the kernel does not tell."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_KERNEL_THREAD = 0x00200000  # PF_KTHREAD in the flags of stat


class Process(NamedTuple):
    """One line of stat. CPU and start are in clock ticks, memory in pages."""

    pid: int
    command: str  # comm: at most 15 bytes, set by the program
    state: str  # R, S, D, Z …
    parent: int
    cpu_ticks: int  # user and system, of all its threads; what it collected from dead children is not in it
    threads: int
    start_ticks: int  # since boot
    rss_pages: int
    kernel: bool


def pids(root: Path) -> list[int]:
    """Every visible process. Raises OSError when the folder cannot be listed."""
    return [int(name) for name in os.listdir(root) if name.isdigit()]


def self_pid(root: Path) -> int | None:
    """Our pid as this proc mount counts it; None where it does not show us."""
    try:
        return int(os.readlink(root / "self"))
    except (OSError, ValueError):
        return None


def read_process(root: Path, pid: int) -> Process | None:
    """None for a process that ended, or that a restricted mount does not show."""
    try:
        with open(root / str(pid) / "stat", "rb") as file:
            line = file.read()
    except OSError:  # ENOENT, ESRCH: ended; EACCES: hidden
        return None
    return _process(pid, line)


class _StatFile:
    """An open stat file, and what was read from it last."""

    __slots__ = ("fd", "line", "process")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.line = b""
        self.process: Process | None = None


class StatFiles:
    """Reads the same processes again and again: a stat file that is kept open costs a third of one opened anew, and one
    that says what it said before is not taken apart again.

    An open file belongs to its process: once that has ended reading it fails, also where the number is taken again.
    """

    def __init__(self, root: Path, limit: int = 256) -> None:
        """`limit`: files kept open; processes beyond it are opened each time."""
        self._root, self._limit = str(root), limit
        self._files: dict[int, _StatFile] = {}

    def read(self, pids: Iterable[int]) -> list[Process]:
        """Those of `pids` that can be read now; the same object as before where nothing changed. Call it with all that
        are there: others are let go of.
        """
        files: dict[int, _StatFile] = {}
        before, found = self._files, []
        for pid in pids:
            file = before.pop(pid, None)
            line = None if file is None else _pread(file.fd)
            if line is None:  # new, or ended and perhaps begun anew under its number
                if file is not None:
                    os.close(file.fd)
                file = self._open(pid)
                line = None if file is None else _pread(file.fd)
            if file is None:
                continue
            if line is not None and line != file.line:
                file.line, file.process = line, _process(pid, line)
            if line is None or len(files) >= self._limit:
                os.close(file.fd)
            else:
                files[pid] = file
            if line is not None and file.process is not None:
                found.append(file.process)
        for file in before.values():
            os.close(file.fd)
        self._files = files
        return found

    def _open(self, pid: int) -> _StatFile | None:
        try:
            return _StatFile(os.open(f"{self._root}/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC))
        except OSError:  # ENOENT, ESRCH: ended; EACCES: hidden
            return None

    def close(self) -> None:
        """Lets go of every file."""
        for file in self._files.values():
            os.close(file.fd)
        self._files = {}


def _pread(fd: int) -> bytes | None:
    try:
        return os.pread(fd, 1024, 0)
    except OSError:  # ESRCH: ended
        return None


def _process(pid: int, line: bytes) -> Process | None:
    # the command stands in parentheses and may itself hold spaces and parentheses
    opening, closing = line.find(b"("), line.rfind(b")")
    rest = line[closing + 2 :].split(b" ", 22)
    if opening < 0 or len(rest) < 22:
        return None
    return Process(
        pid,
        line[opening + 1 : closing].decode("utf-8", "replace"),
        rest[0].decode(),
        int(rest[1]),
        int(rest[11]) + int(rest[12]),
        int(rest[17]),
        int(rest[19]),
        int(rest[21]),
        bool(int(rest[6]) & _KERNEL_THREAD),
    )


def count_fds(root: Path, pid: int) -> int | None:
    """Open descriptors; none for a process that just ended, None where we may not look (another user's)."""
    try:
        return len(os.listdir(root / str(pid) / "fd"))
    except (FileNotFoundError, ProcessLookupError):
        return 0
    except OSError:
        return None


def voluntary_switches(root: Path, pid: int) -> int | None:
    """How often the main thread gave up the CPU by itself."""
    try:
        text = (root / str(pid) / "status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith("voluntary_ctxt_switches:"):
            return int(line.split()[1])
    return None


def boot_time(root: Path) -> int | None:
    """Unix seconds of the boot; None where the mount does not tell."""
    try:
        with open(root / "stat", encoding="utf-8") as file:
            for line in file:
                if line.startswith("btime "):
                    return int(line.split()[1])
    except OSError:
        return None
    return None
