"""The io_uring rings of other processes: what their owners have under way, read from /proc/<pid>/fdinfo.

The kernel fills in the ring's numbers only if it gets the ring's lock at once; where the owner holds it, the file has
none of them. Such a reading is tried again and then is *unknown*, never zero. Each reading takes that lock, so a ring
is read at most once a second.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sidecar.collectors.io.targets import Names
from sidecar.collectors.procfs import Process
from sidecar.model import Sample

LINK = "anon_inode:[io_uring]"
TRIES = 3  # with a queue depth of 128 about one reading in ten finds the lock taken
MAX_RINGS = 64
_MAX_FDS = 4096  # descriptors looked at in one process
_WORD = 1 << 32

_FIELD = re.compile(
    r"^(SqMask|SqThread|SqTotalTime|SqWorkTime|CachedSqHead|CqHead|CqTail|CachedCqTail):\s*(-?\d+)", re.M
)
_OVERFLOWED = re.compile(r"^\s+user_data=\d+, res=-?\d+, flags=[0-9a-fx]+", re.M)


@dataclass(frozen=True, slots=True)
class RingState:
    """One reading. The counters are the kernel's, modulo 2^32; None where this kernel does not print them."""

    submitted: int | None  # requests the kernel has taken from the queue
    completed: int | None  # results it has posted
    unreaped: int | None  # posted, and not yet taken by the owner
    overflowed: int | None  # results that found the completion queue full and wait for room now
    poll_thread: int | None  # the kernel thread that polls for the owner; None without one
    poll_total_us: int | None  # how long that thread has run, and how much of it was work
    poll_work_us: int | None

    @property
    def in_flight(self) -> int | None:
        """Requests under way. Not to be trusted for multishot requests, which post more than one result."""
        if self.submitted is None or self.completed is None:
            return None
        return (self.submitted - self.completed) % _WORD


def parse(text: str) -> RingState | None:
    """None where the lock was taken: the file then lacks what stands in it on every kernel."""
    if "SqMask:" not in text and "SqThread:" not in text:
        return None
    found = {name: int(value[:20]) for name, value in _FIELD.findall(text)}
    head, tail = found.get("CqHead"), found.get("CqTail")
    thread = found.get("SqThread")
    _, listed, overflow = text.partition("CqOverflowList:")
    return RingState(
        submitted=found.get("CachedSqHead"),
        completed=found.get("CachedCqTail"),
        unreaped=None if head is None or tail is None else (tail - head) % _WORD,
        overflowed=len(_OVERFLOWED.findall(overflow)) if listed else None,
        poll_thread=thread if thread is not None and thread > 0 else None,
        poll_total_us=found.get("SqTotalTime"),
        poll_work_us=found.get("SqWorkTime"),
    )


def read(root: Path, pid: int, fd: int, tries: int = TRIES) -> RingState | None:
    """None: unknown, for the lock was taken each time. Raises OSError (gone, or denied)."""
    for _ in range(tries):
        with open(f"{root}/{pid}/fdinfo/{fd}", "rb") as file:
            state = parse(file.read(1 << 20).decode("ascii", "replace"))
        if state is not None:
            return state
    return None


def descriptors(root: Path, pid: int, known: set[int], shared_inode: int) -> list[int]:
    """One descriptor for each ring of a process whose inode is not among the `known`, to which they are added.

    Copies of a descriptor, in the process or in its children, are the same ring. A kernel that gives all rings one
    inode, the `shared_inode`, does not let copies be told apart. Raises OSError (gone, or denied).
    """
    folder = f"{root}/{pid}/fd"
    found = []
    for name in os.listdir(folder)[:_MAX_FDS]:
        try:
            if os.readlink(f"{folder}/{name}") != LINK:
                continue
            inode = os.stat(f"{folder}/{name}").st_ino
        except OSError:
            continue  # closed since the listing
        if inode == shared_inode or inode not in known:
            known.add(inode)
            found.append(int(name))
    return found


def shared_inode() -> int:
    """The inode of descriptors that have none of their own, such as an event's."""
    fd = os.eventfd(0)
    try:
        return os.fstat(fd).st_ino
    finally:
        os.close(fd)


@dataclass(slots=True)
class _Totals:
    """What the rings of one command add up to. Counters go on when a ring is closed."""

    rings: int = 0
    in_flight: int | None = None
    unreaped: int | None = None
    overflowing: int | None = None
    completions: int = 0
    overflows: int = 0
    unknown: int = 0
    poll_total_us: int = 0
    poll_work_us: int = 0
    polled: bool = False
    counted: bool = False  # whether any reading had counters


@dataclass(slots=True)
class Rings:
    """Follows all rings of the processes it is given."""

    root: Path = Path("/proc")
    read: Callable[[Path, int, int], RingState | None] = read
    denied: int = 0  # processes whose descriptors we may not see
    _places: list[tuple[Process, int]] = field(default_factory=list)
    _last: dict[tuple[int, int, int], RingState] = field(default_factory=dict)
    _totals: dict[str, _Totals] = field(default_factory=dict)
    _names: Names = field(default_factory=Names)

    def discover(self, processes: list[Process]) -> None:
        """Looks for rings. A listing costs a microsecond a descriptor, so not with every sample."""
        self._places, self.denied = [], 0
        known: set[int] = set()
        shared = shared_inode()
        for process in processes:
            try:
                found = descriptors(self.root, process.pid, known, shared)
            except PermissionError:
                self.denied += 1
                continue
            except OSError:
                continue  # it ended
            self._places += [(process, fd) for fd in found]
        del self._places[MAX_RINGS:]

    def __len__(self) -> int:
        """Rings known now."""
        return len(self._places)

    def samples(self) -> Iterator[Sample]:
        """Reads every known ring. Nothing where no ring was ever seen: the pod does not use io_uring."""
        for gone in self._names.make_room({process.command for process, _ in self._places}):
            self._totals.pop(gone, None)
        for totals in self._totals.values():
            totals.rings, totals.in_flight, totals.unreaped, totals.overflowing = 0, None, None, None
        last: dict[tuple[int, int, int], RingState] = {}
        for process, fd in self._places:
            totals = self._totals.setdefault(self._names(process.command), _Totals())
            key = (process.pid, process.start_ticks, fd)
            try:
                state = self.read(self.root, process.pid, fd)
            except OSError:
                continue  # closed, or its owner ended
            totals.rings += 1
            if state is None:
                totals.unknown += 1
                if key in self._last:
                    last[key] = self._last[key]
                continue
            _add(totals, state, self._last.get(key))
            last[key] = state
        self._last = last
        for command, totals in self._totals.items():
            yield from _samples(command, totals)


def _add(totals: _Totals, state: RingState, before: RingState | None) -> None:
    for name, value in (
        ("in_flight", state.in_flight),
        ("unreaped", state.unreaped),
        ("overflowing", state.overflowed),
    ):
        if value is not None:
            setattr(totals, name, (getattr(totals, name) or 0) + value)
    if state.completed is not None:
        totals.counted = True
        if before is not None and before.completed is not None:
            totals.completions += (state.completed - before.completed) % _WORD
    if state.overflowed:
        # those listed before may still be among them: at least the increase is new
        totals.overflows += max(0, state.overflowed - ((before and before.overflowed) or 0))
    if state.poll_total_us is not None and state.poll_thread is not None:
        totals.polled = True
        totals.poll_total_us += max(0, state.poll_total_us - ((before and before.poll_total_us) or 0))
        totals.poll_work_us += max(0, (state.poll_work_us or 0) - ((before and before.poll_work_us) or 0))


def _samples(command: str, totals: _Totals) -> Iterator[Sample]:
    labels = (("command", command),)

    def one(name: str, value: float) -> Sample:
        return Sample(f"spikewatch_io_uring_{name}", labels, value)

    yield one("rings", totals.rings)
    yield one("unknown_readings_total", totals.unknown)
    if totals.counted:
        yield one("completions_total", totals.completions)
        yield one("cq_overflows_total", totals.overflows)
    for name, value in (
        ("in_flight", totals.in_flight),
        ("unreaped_completions", totals.unreaped),
        ("overflowing_completions", totals.overflowing),
    ):
        if value is not None:
            yield one(name, value)
    if totals.polled:
        yield one("sqpoll_seconds_total", totals.poll_total_us / 1e6)
        yield one("sqpoll_busy_seconds_total", totals.poll_work_us / 1e6)
