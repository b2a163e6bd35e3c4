"""Whether io_uring may be used here, and what stands in the way."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from pathlib import Path

from sidecar.collectors.io.syscalls import Kernel
from sidecar.collectors.io.uring import Ring

_READ = 22

_WHY = {
    errno.ENOSYS: "kernel_without_io_uring",
    errno.EPERM: "seccomp",
    errno.ENOMEM: "locked_memory",
}
_FIX = {
    "kernel_without_io_uring": "run on Linux 5.6 or newer, in a runtime that knows io_uring",
    "seccomp": "allow io_uring_setup, io_uring_enter and io_uring_register in the container's seccomp profile",
    "sysctl": "set kernel.io_uring_disabled to 0 on the node",
    "locked_memory": "raise the container's limit of locked memory (ulimit -l)",
}


@dataclass(frozen=True, slots=True)
class Feature:
    """The answer: `reason` and `fix` are empty where it works."""

    works: bool
    reason: str = ""
    fix: str = ""
    operations: int = 0


def probe(proc_root: Path = Path("/proc"), kernel: Kernel | None = None) -> Feature:
    """Sets up a ring of two entries and gives it back: under a millisecond. It tells about this container only."""
    try:
        ring = Ring(2, kernel)
    except OSError as e:
        reason = _WHY.get(e.errno or 0, errno.errorcode.get(e.errno or 0, "unknown").lower())
        if reason == "seccomp" and _disabled(proc_root):
            reason = "sysctl"
        return Feature(False, reason, _FIX.get(reason, ""))
    try:
        operations = ring.operations()
    except OSError:
        operations = frozenset()  # before 5.6 nobody could ask
    finally:
        ring.close()
    if operations and _READ not in operations:
        return Feature(False, "no_read_operation", _FIX["kernel_without_io_uring"], len(operations))
    return Feature(True, operations=len(operations))


def _disabled(proc_root: Path) -> bool:
    """Whether the node forbids it. The file exists since 6.6."""
    try:
        return (proc_root / "sys/kernel/io_uring_disabled").read_text().strip() in ("1", "2")
    except OSError:
        return False
