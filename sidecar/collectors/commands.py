"""What each command of the pod uses: processes grouped by name and by whose they are, kept up between readings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sidecar.collectors.procfs import Process, count_fds
from sidecar.collectors.tiers import SLOW

OTHER = "other"  # the command of everything beyond `max_commands`
SIDECAR, POD = "sidecar", "pod"

# A listing of a process's descriptors costs up to 0.3 ms: a node's whole process list would take the interval.
DETAIL_LIMIT = 500

Key = tuple[str, str]  # (role, command)


@dataclass(slots=True)
class Usage:
    """What one command of one role uses now."""

    processes: int = 0
    threads: int = 0
    rss_pages: int = 0
    fds: int | None = 0  # None once one of its processes denied them
    cpu_ticks: int = field(default=0)  # also of processes gone by now


class Commands:
    """Most processes do nothing from one reading to the next: the sums are corrected by those that did, and made anew
    where processes came, went or changed their name.

    CPU totals never fall when a process exits: what it used stays in its command's total.
    """

    def __init__(self, root: Path, max_commands: int) -> None:
        """`max_commands`: commands of each role with a total of their own."""
        self._root, self._max_commands = root, max_commands
        self._seen: dict[int, Process] = {}
        self._keys: dict[int, Key] = {}
        self._me: int | None = None
        self._cpu: dict[tuple[int, int], int] = {}  # (pid, start) → ticks seen last
        self._fds: dict[tuple[int, int], int | None] = {}  # (pid, start) → open descriptors
        self._fds_at_ms: int | None = None
        self._totals: dict[Key, int] = {}
        self._usages: dict[Key, Usage] = {}

    def update(self, processes: Sequence[Process], me: int | None, now_ms: int) -> Mapping[Key, Usage]:
        """Takes in a reading of every process; `me`: the sidecar's pid."""
        changed = self._changed(processes) if me == self._me else None
        if changed is None or self._fds_at_ms is None or now_ms - self._fds_at_ms >= SLOW:
            self._anew({p.pid: p for p in processes}, me, now_ms)
        else:
            for before, now in changed:
                self._correct(before, now)
        return self._usages

    def _changed(self, processes: Sequence[Process]) -> list[tuple[Process, Process]] | None:
        """(before, now) of processes that did something; None where the groups are no longer the same."""
        if len(processes) != len(self._seen):
            return None
        found = []
        for process in processes:
            before = self._seen.get(process.pid)
            if before is process:
                continue
            if before is None or _belongs(before) != _belongs(process):
                return None
            found.append((before, process))
        return found

    def _correct(self, before: Process, now: Process) -> None:
        key = self._keys[now.pid]
        spent = max(now.cpu_ticks - before.cpu_ticks, 0)
        self._seen[now.pid] = now
        self._cpu[now.pid, now.start_ticks] = now.cpu_ticks
        self._totals[key] += spent
        usage = self._usages[key]
        usage.cpu_ticks += spent
        if now.state != "Z":
            usage.threads += now.threads - before.threads
            usage.rss_pages += now.rss_pages - before.rss_pages

    # --- from the beginning ------------------------------------------------------------------------------------------

    def _anew(self, processes: dict[int, Process], me: int | None, now_ms: int) -> None:
        self._count(processes, now_ms)
        own = descendants(processes, me)
        named = {p.pid: (SIDECAR if p.pid in own else POD, p.command) for p in processes.values()}
        self._make_room(set(named.values()))
        usages: dict[Key, Usage] = {}
        seen: dict[tuple[int, int], int] = {}
        for process in processes.values():
            key = named[process.pid]
            if key not in self._totals:
                key = named[process.pid] = (key[0], OTHER)
            usage = usages.setdefault(key, Usage())
            identity = (process.pid, process.start_ticks)
            seen[identity] = process.cpu_ticks
            spent = process.cpu_ticks - self._cpu.get(identity, 0)
            self._totals[key] = self._totals.get(key, 0) + max(spent, 0)
            if process.state != "Z":
                self._add(usage, process)
        for key, ticks in self._totals.items():
            usages.setdefault(key, Usage()).cpu_ticks = ticks
        self._seen, self._keys, self._me, self._cpu, self._usages = processes, named, me, seen, usages

    def _count(self, processes: dict[int, Process], now_ms: int) -> None:
        """Descriptors of everybody now and then, of newcomers at once: a listing costs more than all other reading."""
        again = self._fds_at_ms is None or now_ms - self._fds_at_ms >= SLOW
        if again:
            self._fds_at_ms = now_ms
        before, self._fds = self._fds, {}
        few = len(processes) <= DETAIL_LIMIT
        for process in processes.values():
            identity = (process.pid, process.start_ticks)
            if again or identity not in before:
                self._fds[identity] = count_fds(self._root, process.pid) if few else None
            else:
                self._fds[identity] = before[identity]

    def _add(self, usage: Usage, process: Process) -> None:
        usage.processes += 1
        usage.threads += process.threads
        usage.rss_pages += process.rss_pages
        fds = self._fds.get((process.pid, process.start_ticks), 0)
        usage.fds = None if fds is None or usage.fds is None else usage.fds + fds

    def _make_room(self, present: set[Key]) -> None:
        """Gives every command a total while there is room; commands that are gone make room first."""
        for role in (SIDECAR, POD):
            held = [key for key in self._totals if key[0] == role and key[1] != OTHER]
            wanted = sorted(key for key in present if key[0] == role and key not in self._totals)
            gone = [key for key in held if key not in present]
            excess = len(held) + len(wanted) - self._max_commands
            for key in gone[: max(excess, 0)]:
                del self._totals[key]
                held.remove(key)
            for key in wanted[: self._max_commands - len(held)]:
                self._totals[key] = 0


def _belongs(process: Process) -> tuple[int, str, int, bool]:
    """What a process is counted by."""
    return process.start_ticks, process.command, process.parent, process.state == "Z"


def descendants(processes: Mapping[int, Process], root: int | None) -> set[int]:
    """`root` and everything below it; empty where it is not visible."""
    children: dict[int, list[int]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process.pid)
    found: set[int] = set()
    open_ = [root] if root in processes else []
    while open_:
        pid = open_.pop()
        if pid is not None and pid not in found:
            found.add(pid)
            open_.extend(children.get(pid, ()))
    return found
