"""Where a job writes what NCCL and PyTorch tell: as configured, and as the trainer's own environment says."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_PROCESSES = 256  # looked at, at most
_ENVIRONMENT = 1 << 20  # bytes read of a process's environment
_WANTED = (
    "NCCL_DEBUG_FILE",
    "NCCL_INSPECTOR_DUMP_DIR",
    "TORCH_FR_DUMP_TEMP_FILE",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
)


@dataclass(slots=True)
class Found:
    """Globs of logs and Inspector files, prefixes of the flight recorder's files."""

    logs: set[str] = field(default_factory=set)
    inspector: set[str] = field(default_factory=set)
    dumps: str = ""
    pipes: str = ""
    seen: int = 0  # processes whose environment we could read
    denied: int = 0  # processes of others, whose environment we may not read


def discover(proc_root: Path, ours: frozenset[int]) -> Found:
    """Reads a handful of variables of every process but `ours`, and where its output goes if that is a file.

    Their paths hold in their own mount namespace, so they are reached through `/proc/<pid>/root` where that differs
    from ours. Needs what reading /proc/<pid>/environ needs: the same user, or CAP_SYS_PTRACE.
    """
    found = Found()
    try:
        pids = sorted(int(name) for name in os.listdir(proc_root) if name.isdigit())
    except OSError:
        return found
    for pid in [pid for pid in pids if pid not in ours][:_PROCESSES]:
        process = proc_root / str(pid)
        try:
            with open(process / "environ", "rb") as file:
                variables = dict(_variables(file.read(_ENVIRONMENT)))
        except FileNotFoundError:
            continue
        except OSError:
            found.denied += 1
            continue
        found.seen += 1
        if variables:
            _take(found, variables, _root(process, proc_root))
            found.logs.update(_outputs(process))
    return found


def _variables(environ: bytes) -> Iterator[tuple[str, str]]:
    for entry in environ.split(b"\0"):
        name, _, value = entry.partition(b"=")
        key = name.decode("utf-8", "replace")
        if key in _WANTED and value:
            yield key, value.decode("utf-8", "surrogateescape")


def _take(found: Found, variables: Mapping[str, str], root: str) -> None:
    if (log := variables.get("NCCL_DEBUG_FILE", "")).startswith("/"):
        found.logs.add(root + _glob(log))
    if (folder := variables.get("NCCL_INSPECTOR_DUMP_DIR", "")).startswith("/"):
        found.inspector.add(f"{root}{_escaped(folder.rstrip('/'))}/*.log")
    dumps = variables.get("TORCH_FR_DUMP_TEMP_FILE") or variables.get("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "")
    if dumps.startswith("/"):
        found.dumps = root + dumps
    if (pipes := variables.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "")).startswith("/"):
        found.pipes = root + pipes


def _glob(path: str) -> str:
    """NCCL puts the host for %h and the process for %p."""
    return re.sub(r"%.", "*", _escaped(path))


def _escaped(path: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", path)


def _root(process: Path, proc_root: Path) -> str:
    """What to put before a path of the process; "" where it sees the same files as we do."""
    try:
        theirs, ours = os.stat(process / "root"), os.stat(proc_root / "self" / "root")
    except OSError:
        return ""
    return "" if (theirs.st_dev, theirs.st_ino) == (ours.st_dev, ours.st_ino) else str(process / "root")


def _outputs(process: Path) -> Iterator[str]:
    for number in ("1", "2"):
        link = process / "fd" / number
        try:
            target = os.readlink(link)
        except OSError:
            continue
        if target.startswith("/") and not target.startswith("/dev/") and not target.endswith(" (deleted)"):
            yield _escaped(str(link))  # through the descriptor: right in every mount namespace
