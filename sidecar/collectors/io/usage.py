"""What each command reads and writes, from /proc/<pid>/io, and how long it stood still for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sidecar.collectors.io.targets import Names
from sidecar.collectors.procfs import Process
from sidecar.model import Sample

_THREADS = 512  # looked at in one sample, over all processes
_ENOUGH = 1 << 20  # bytes a process must have read between two samples before a ratio says anything
_READAHEAD = 1.05  # the kernel reads a little more than was asked for


@dataclass(frozen=True, slots=True)
class Counters:
    """Bytes since the process began. `asked` are those of read() and its like, which mmap and io_uring bypass."""

    asked: int
    written: int  # by write() and its like
    read_bytes: int  # fetched from storage
    write_bytes: int  # sent to storage


@dataclass(slots=True)
class _Totals:
    """What one command has done since we look; it stays when its processes end."""

    asked: int = 0
    written: int = 0
    read_bytes: int = 0
    write_bytes: int = 0
    delay_ticks: int = 0
    hit_asked: int = 0  # of this interval, for the ratio
    hit_read: int = 0
    unknown: bool = False
    blocked: int = 0
    present: bool = False


def read_counters(root: Path, pid: int) -> Counters:
    """Raises OSError: gone (ENOENT, ESRCH) or denied (EACCES)."""
    with open(f"{root}/{pid}/io", "rb") as file:  # no Path in what runs for every process: it costs more than the read
        words = file.read(512).split()
    found = dict(zip(words[::2], map(int, words[1::2]), strict=False))
    return Counters(found[b"rchar:"], found[b"wchar:"], found[b"read_bytes:"], found[b"write_bytes:"])


def delay_accounting(root: Path) -> bool:
    """Whether the kernel counts how long tasks waited for block devices (sysctl kernel.task_delayacct)."""
    try:
        return (root / "sys/kernel/task_delayacct").read_text().strip() == "1"
    except OSError:
        return False


def _delay_ticks(root: Path, pid: int) -> int:
    """Field 42 of stat. Raises OSError."""
    with open(f"{root}/{pid}/stat", "rb") as file:
        line = file.read(4096)
    return int(line[line.rfind(b")") + 1 :].split()[39])


class Usage:
    """Follows the processes it is given."""

    def __init__(self, root: Path = Path("/proc")) -> None:
        self._root = root
        self._ticks = float(os.sysconf("SC_CLK_TCK"))
        self._last: dict[tuple[int, int], tuple[Counters, int]] = {}
        self._totals: dict[str, _Totals] = {}
        self._names = Names()
        self.denied = 0  # processes that do not let us read their numbers
        self.seen = 0

    def samples(self, processes: list[Process]) -> Iterator[Sample]:
        """By command. A process that is new counts from its first sample on; what it did before is not ours."""
        for gone in self._names.make_room({process.command for process in processes}):
            self._totals.pop(gone, None)
        for totals in self._totals.values():
            totals.present = False
            totals.hit_asked, totals.hit_read, totals.unknown, totals.blocked = 0, 0, False, 0
        counts_delay = delay_accounting(self._root)
        current: dict[tuple[int, int], tuple[Counters, int]] = {}
        self.denied = self.seen = 0
        threads = _THREADS
        for process in processes:
            try:
                counters = read_counters(self._root, process.pid)
                delay = _delay_ticks(self._root, process.pid) if counts_delay else 0
            except PermissionError:
                self.denied += 1
                continue
            except (OSError, KeyError, ValueError, IndexError):
                continue  # it ended
            self.seen += 1
            totals = self._totals.setdefault(self._names(process.command), _Totals())
            totals.present = True
            key = (process.pid, process.start_ticks)
            before = self._last.get(key)
            if before is not None:
                _add(totals, counters, before[0])
                totals.delay_ticks += max(0, delay - before[1])
            current[key] = (counters, delay)
            if threads > 0:
                blocked, looked = _blocked(self._root, process, threads)
                totals.blocked += blocked
                threads -= looked
        self._last = current
        for command, totals in self._totals.items():
            yield from self._samples(command, totals, counts_delay)

    def _samples(self, command: str, totals: _Totals, counts_delay: bool) -> Iterator[Sample]:
        labels = (("command", command),)
        for name, value in (
            ("requested_read_bytes_total", totals.asked),
            ("requested_write_bytes_total", totals.written),
            ("storage_read_bytes_total", totals.read_bytes),
            ("storage_write_bytes_total", totals.write_bytes),
        ):
            yield Sample(f"spikewatch_io_{name}", labels, value)
        if totals.present:
            yield Sample("spikewatch_io_blocked_threads", labels, totals.blocked)
        if counts_delay:
            yield Sample("spikewatch_io_block_delay_seconds_total", labels, totals.delay_ticks / self._ticks)
        if totals.hit_asked >= _ENOUGH and not totals.unknown:
            ratio = 1 - min(1.0, totals.hit_read / totals.hit_asked)
            yield Sample("spikewatch_io_page_cache_hit_ratio", labels, ratio)


def _add(totals: _Totals, now: Counters, before: Counters) -> None:
    asked, fetched = now.asked - before.asked, now.read_bytes - before.read_bytes
    totals.asked += max(0, asked)
    totals.written += max(0, now.written - before.written)
    totals.read_bytes += max(0, fetched)
    totals.write_bytes += max(0, now.write_bytes - before.write_bytes)
    if fetched > asked * _READAHEAD + _ENOUGH:
        totals.unknown = True  # it fetched more than it asked for: by mmap, io_uring or sendfile, which ask otherwise
    if asked >= _ENOUGH:
        totals.hit_asked += asked
        totals.hit_read += fetched


def _blocked(root: Path, process: Process, limit: int) -> tuple[int, int]:
    """(threads in uninterruptible sleep, threads looked at)."""
    if process.threads <= 1:
        return int(process.state == "D"), 1
    folder = f"{root}/{process.pid}/task"
    blocked = looked = 0
    try:
        for name in os.listdir(folder)[:limit]:
            looked += 1
            with open(f"{folder}/{name}/stat", "rb") as file:
                line = file.read(256)
            blocked += line[line.rfind(b")") + 2 : line.rfind(b")") + 3] == b"D"
    except OSError:
        pass  # it ended while we looked: what was seen counts
    return blocked, looked
