"""NFS mounts of the trainer, from /proc/<pid>/mountstats: the only place that sees their traffic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sidecar.model import Sample

OPERATIONS = ("READ", "WRITE", "OPEN", "LOOKUP", "GETATTR", "ACCESS", "READDIR")
_MAX_MOUNTS = 16
_MAX_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Operation:
    """One kind of request since the mount. Times are seconds over all requests."""

    requests: int
    transmissions: int
    timeouts: int
    queue_seconds: float
    rtt_seconds: float
    total_seconds: float


@dataclass(slots=True)
class Mount:
    """One NFS mount. Bytes are those exchanged with the server."""

    path: str
    read_bytes: int | None = None
    written_bytes: int | None = None
    operations: dict[str, Operation] = field(default_factory=dict)


def parse(text: str) -> list[Mount]:
    """The NFS mounts, each path once; other file systems say nothing here."""
    found: dict[str, Mount] = {}
    current: Mount | None = None
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["device"]:
            current = None
            if "mounted" in words and any(word in ("nfs", "nfs4") for word in words[5:]):
                path = words[words.index("mounted") + 2] if len(words) > words.index("mounted") + 2 else ""
                current = found.setdefault(path, Mount(path))
        elif current is not None and words:
            _take(current, words)
    return list(found.values())


def _take(mount: Mount, words: list[str]) -> None:
    name, numbers = words[0].rstrip(":"), words[1:]
    try:
        if name == "bytes" and len(numbers) >= 6:
            mount.read_bytes, mount.written_bytes = int(numbers[4]), int(numbers[5])
        elif name in OPERATIONS and len(numbers) >= 8:
            requests, transmissions, timeouts, _, _, queue, rtt, total = (int(number) for number in numbers[:8])
            mount.operations[name] = Operation(
                requests, transmissions, timeouts, queue / 1000, rtt / 1000, total / 1000
            )
    except ValueError:
        return  # another layout: unknown


def read(root: Path, pids: Iterable[int]) -> list[Mount]:
    """The mounts that the given processes see; those of one container are the same. Unreadable ones are left out."""
    found: dict[str, Mount] = {}
    for pid in pids:
        try:
            with open(root / str(pid) / "mountstats", "rb") as file:
                text = file.read(_MAX_BYTES).decode("utf-8", "replace")
        except OSError:
            continue  # ended, or another user's
        for mount in parse(text):
            if len(found) < _MAX_MOUNTS:
                found.setdefault(mount.path, mount)
    return list(found.values())


def samples(mounts: Iterable[Mount]) -> Iterator[Sample]:
    """Counters since the mount."""
    for mount in mounts:
        labels = (("mount", mount.path),)
        if mount.read_bytes is not None and mount.written_bytes is not None:
            yield Sample("spikewatch_io_nfs_read_bytes_total", labels, mount.read_bytes)
            yield Sample("spikewatch_io_nfs_written_bytes_total", labels, mount.written_bytes)
        for name, operation in mount.operations.items():
            both = (*labels, ("op", name.lower()))
            for metric, value in (
                ("requests_total", operation.requests),
                ("retransmissions_total", max(0, operation.transmissions - operation.requests)),
                ("timeouts_total", operation.timeouts),
                ("rtt_seconds_total", operation.rtt_seconds),
                ("request_seconds_total", operation.total_seconds),
            ):
                yield Sample(f"spikewatch_io_nfs_{metric}", both, value)
