"""What the kernel says of this process: when it began, and how much memory it holds."""

from __future__ import annotations

import os
import time
from pathlib import Path

_START_TIME, _RESIDENT = 19, 1  # positions in /proc/self/stat after the name, and in /proc/self/statm; see proc(5)


def since_boot() -> float:
    """Seconds since boot, time asleep included: the clock that process start times are in."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def started_at(proc_root: str = "/proc") -> float | None:
    """When this process began, in seconds since boot to 10 ms; None where /proc does not tell."""
    try:
        after_name = Path(proc_root, "self", "stat").read_text().rpartition(")")[2].split()
        return int(after_name[_START_TIME]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def resident_bytes(proc_root: str = "/proc") -> int | None:
    """Resident memory (RSS) of this process in bytes; None where /proc does not tell."""
    try:
        pages = Path(proc_root, "self", "statm").read_text().split()[_RESIDENT]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
