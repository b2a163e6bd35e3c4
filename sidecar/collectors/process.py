"""The processes of the pod: the sidecar itself, and what each command uses, read from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from sidecar.collectors.procfs import Process, StatFiles, boot_time, count_fds, pids, self_pid, voluntary_switches
from sidecar.collectors.tiers import SLOW
from sidecar.errors import CollectError
from sidecar.hooks import CollectorSettings
from sidecar.model import Availability, Evidence, Labels, MetricInfo, Sample, Status
from sidecar.settings import Duration

OTHER = "other"  # the command of everything beyond `max_commands`

# A listing of a process's descriptors costs up to 0.3 ms: a node's whole process list would take the interval.
DETAIL_LIMIT = 500

_BY_COMMAND = ("role", "command")


_KERNEL = Evidence("device", "2026-11-29", "Linux 6.18")


def _info(name: str, kind: str, unit: str, text: str, labels: tuple[str, ...], source: str) -> MetricInfo:
    scope: Literal["process", "pod"] = "pod" if labels else "process"
    metric: Literal["counter", "gauge"] = "counter" if kind == "counter" else "gauge"
    return MetricInfo(f"spikewatch_{name}", metric, unit, text, labels, source, scope, verified=_KERNEL)


class ProcessSettings(CollectorSettings):
    """`collectors: {process: …}`."""

    interval: Duration = Field(5_000, ge=50)
    proc_root: Path = Path("/proc")
    max_commands: int = Field(32, ge=1, le=1000)  # label values for each role; the rest is summed as "other"


@dataclass(slots=True)
class _Usage:
    """What one command of one role uses now."""

    processes: int = 0
    threads: int = 0
    rss_bytes: int = 0
    fds: int | None = 0  # None once one of its processes denied them
    cpu_seconds: float = field(default=0.0)


class ProcessCollector:
    """Reads every process visible under `proc_root`, grouped by command.

    Role `sidecar` is this process and its descendants, role `pod` everything else. CPU counters never fall when a
    process exits: what it used stays in its command's total. Kernel threads are left out, zombies use nothing.
    """

    name: ClassVar[str] = "process"
    settings: ClassVar[type[CollectorSettings]] = ProcessSettings
    metrics: ClassVar[tuple[MetricInfo, ...]] = (
        _info("process_cpu_seconds_total", "counter", "seconds", "CPU used by the sidecar.", (), "stat 14, 15"),
        _info("process_resident_memory_bytes", "gauge", "bytes", "Resident memory of the sidecar.", (), "stat 24"),
        _info("process_threads", "gauge", "", "Threads of the sidecar.", (), "stat 20"),
        _info("process_open_fds", "gauge", "", "Open descriptors of the sidecar.", (), "fd/"),
        _info("process_start_time_seconds", "gauge", "seconds", "Unix time at which it started.", (), "stat 22, btime"),
        _info("process_voluntary_context_switches_total", "counter", "", "How often the sidecar waited.", (), "status"),
        _info("command_processes", "gauge", "", "Processes of a command, without zombies.", _BY_COMMAND, "stat"),
        _info("command_cpu_seconds_total", "counter", "seconds", "CPU used by a command.", _BY_COMMAND, "stat 14, 15"),
        _info(
            "command_resident_memory_bytes",
            "gauge",
            "bytes",
            "Sum of the resident memory of its processes; shared pages count in each.",
            _BY_COMMAND,
            "stat 24",
        ),
        _info("command_threads", "gauge", "", "Threads of a command.", _BY_COMMAND, "stat 20"),
        _info(
            "command_open_fds",
            "gauge",
            "",
            "Open descriptors of a command; absent where one of its processes denies them.",
            _BY_COMMAND,
            "fd/",
        ),
    )

    def __init__(self, settings: ProcessSettings) -> None:
        self._root = settings.proc_root
        self._max_commands = settings.max_commands
        self._ticks = float(os.sysconf("SC_CLK_TCK"))
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._cpu: dict[tuple[int, int], int] = {}  # (pid, start) → ticks seen last
        self._stats = StatFiles(settings.proc_root)
        self._fds: dict[tuple[int, int], int | None] = {}  # (pid, start) → open descriptors
        self._fds_at_ms: int | None = None
        self._totals: dict[tuple[str, str], int] = {}  # (role, command) → ticks, also of processes gone by now

    def probe(self) -> Status:
        """Degraded where only our own processes, or not all of their descriptors, are visible."""
        try:
            visible = pids(self._root)
        except FileNotFoundError:
            return Status(
                Availability.UNAVAILABLE, "no_proc", "mount proc, or set collectors.process.proc_root to where it is"
            )
        except PermissionError:
            return Status(
                Availability.DENIED, "proc_denied", "mount proc without hidepid, or run as the trainer's user"
            )
        processes = {p.pid: p for p in self._read(visible)}
        own = _descendants(processes, self_pid(self._root))
        others = [p for p in processes.values() if p.pid not in own]
        if not own:
            return Status(
                Availability.DEGRADED, "self_not_visible", "mount the proc of the sidecar's own PID namespace"
            )
        if not others:
            return Status(
                Availability.DEGRADED,
                "only_own_processes_visible",
                "set shareProcessNamespace: true in the pod's spec",
            )
        if any(count_fds(self._root, p.pid) is None for p in others[:DETAIL_LIMIT]):
            return Status(
                Availability.DEGRADED,
                "descriptors_denied",
                "run the sidecar with the trainer's runAsUser and the same capabilities",
            )
        return Status(Availability.AVAILABLE)

    def sample(self, now_ms: int) -> Iterable[Sample]:
        """The sidecar and every command. Raises CollectError when /proc cannot be listed."""
        try:
            visible = pids(self._root)
        except OSError as e:
            raise CollectError(self.name, "proc_unreadable", f"{self._root}: {e.strerror}") from e
        processes = {p.pid: p for p in self._read(visible)}
        me = self_pid(self._root)
        self._count(processes, now_ms)
        usages = self._group(processes, _descendants(processes, me))
        if me in processes:
            yield from self._self(processes[me])
        for (role, command), usage in usages.items():
            labels = (("command", command), ("role", role))
            yield from _command(usage, labels)

    def close(self) -> None:
        """Lets go of the stat files."""
        self._stats.close()

    def _read(self, visible: list[int]) -> Iterator[Process]:
        return (process for process in self._stats.read(visible) if not process.kernel)

    def _self(self, process: Process) -> Iterator[Sample]:
        yield Sample("spikewatch_process_cpu_seconds_total", (), process.cpu_ticks / self._ticks)
        yield Sample("spikewatch_process_resident_memory_bytes", (), process.rss_pages * self._page)
        yield Sample("spikewatch_process_threads", (), process.threads)
        for name, value in (
            ("open_fds", count_fds(self._root, process.pid)),
            ("voluntary_context_switches_total", voluntary_switches(self._root, process.pid)),
        ):
            if value is not None:
                yield Sample(f"spikewatch_process_{name}", (), value)
        boot = boot_time(self._root)
        if boot is not None:
            yield Sample("spikewatch_process_start_time_seconds", (), boot + process.start_ticks / self._ticks)

    def _group(self, processes: dict[int, Process], own: set[int]) -> dict[tuple[str, str], _Usage]:
        named = {p.pid: ("sidecar" if p.pid in own else "pod", p.command) for p in processes.values()}
        self._make_room(set(named.values()))
        usages: dict[tuple[str, str], _Usage] = {}
        seen: dict[tuple[int, int], int] = {}
        for process in processes.values():
            key = named[process.pid]
            if key not in self._totals:
                key = (key[0], OTHER)
            usage = usages.setdefault(key, _Usage())
            identity = (process.pid, process.start_ticks)
            seen[identity] = process.cpu_ticks
            spent = process.cpu_ticks - self._cpu.get(identity, 0)
            self._totals[key] = self._totals.get(key, 0) + max(spent, 0)
            if process.state != "Z":
                self._add(usage, process)
        self._cpu = seen
        for key in self._totals:
            usages.setdefault(key, _Usage()).cpu_seconds = self._totals[key] / self._ticks
        return usages

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

    def _add(self, usage: _Usage, process: Process) -> None:
        usage.processes += 1
        usage.threads += process.threads
        usage.rss_bytes += process.rss_pages * self._page
        fds = self._fds.get((process.pid, process.start_ticks), 0)
        usage.fds = None if fds is None or usage.fds is None else usage.fds + fds

    def _make_room(self, present: set[tuple[str, str]]) -> None:
        """Gives every command a total while there is room; commands that are gone make room first."""
        for role in ("sidecar", "pod"):
            held = [key for key in self._totals if key[0] == role and key[1] != OTHER]
            wanted = sorted(key for key in present if key[0] == role and key not in self._totals)
            gone = [key for key in held if key not in present]
            excess = len(held) + len(wanted) - self._max_commands
            for key in gone[: max(excess, 0)]:
                del self._totals[key]
                held.remove(key)
            for key in wanted[: self._max_commands - len(held)]:
                self._totals[key] = 0


def _command(usage: _Usage, labels: Labels) -> Iterator[Sample]:
    yield Sample("spikewatch_command_processes", labels, usage.processes)
    yield Sample("spikewatch_command_cpu_seconds_total", labels, usage.cpu_seconds)
    yield Sample("spikewatch_command_resident_memory_bytes", labels, usage.rss_bytes)
    yield Sample("spikewatch_command_threads", labels, usage.threads)
    if usage.fds is not None:
        yield Sample("spikewatch_command_open_fds", labels, usage.fds)


def _descendants(processes: dict[int, Process], root: int | None) -> set[int]:
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
