"""Readers of /proc/<pid>: plain facts, None where the kernel does not tell."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_KERNEL_THREAD = 0x00200000  # PF_KTHREAD in the flags of stat


@dataclass(frozen=True, slots=True)
class Process:
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
    # the command stands in parentheses and may itself hold spaces and parentheses
    opening, closing = line.find(b"("), line.rfind(b")")
    rest = line[closing + 1 :].split()
    if opening < 0 or len(rest) < 22:
        return None
    return Process(
        pid=pid,
        command=line[opening + 1 : closing].decode("utf-8", "replace"),
        state=rest[0].decode(),
        parent=int(rest[1]),
        kernel=bool(int(rest[6]) & _KERNEL_THREAD),
        cpu_ticks=int(rest[11]) + int(rest[12]),
        threads=int(rest[17]),
        start_ticks=int(rest[19]),
        rss_pages=int(rest[21]),
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
