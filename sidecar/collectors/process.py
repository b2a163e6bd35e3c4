"""The processes of the pod: the sidecar itself, and what each command uses, read from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from sidecar.collectors.commands import DETAIL_LIMIT, Commands, Key, Usage, descendants
from sidecar.collectors.procfs import Process, StatFiles, boot_time, count_fds, pids, self_pid, voluntary_switches
from sidecar.collectors.tiers import SLOW
from sidecar.errors import CollectError
from sidecar.hooks import CollectorSettings
from sidecar.model import Availability, Evidence, Labels, MetricInfo, Sample, Status
from sidecar.settings import Duration

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
        self._ticks = float(os.sysconf("SC_CLK_TCK"))
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._stats = StatFiles(settings.proc_root)
        self._commands = Commands(settings.proc_root, settings.max_commands)
        self._labels: dict[Key, Labels] = {}
        self._boot: int | None = None
        self._boot_at_ms: int | None = None

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
        own = descendants(processes, self_pid(self._root))
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
        processes = list(self._read(visible))
        me = self_pid(self._root)
        usages = self._commands.update(processes, me, now_ms)
        for process in processes:
            if process.pid == me:
                yield from self._self(process, now_ms)
        if self._labels.keys() != usages.keys():
            self._labels = {key: (("command", key[1]), ("role", key[0])) for key in usages}
        for key, usage in usages.items():
            yield from self._command(usage, self._labels[key])

    def close(self) -> None:
        """Lets go of the stat files."""
        self._stats.close()

    def _read(self, visible: list[int]) -> Iterator[Process]:
        return (process for process in self._stats.read(visible) if not process.kernel)

    def _self(self, process: Process, now_ms: int) -> Iterator[Sample]:
        yield Sample("spikewatch_process_cpu_seconds_total", (), process.cpu_ticks / self._ticks)
        yield Sample("spikewatch_process_resident_memory_bytes", (), process.rss_pages * self._page)
        yield Sample("spikewatch_process_threads", (), process.threads)
        for name, value in (
            ("open_fds", count_fds(self._root, process.pid)),
            ("voluntary_context_switches_total", voluntary_switches(self._root, process.pid)),
        ):
            if value is not None:
                yield Sample(f"spikewatch_process_{name}", (), value)
        if self._boot_at_ms is None or now_ms - self._boot_at_ms >= SLOW:  # the kernel counts every interrupt for it
            self._boot, self._boot_at_ms = boot_time(self._root), now_ms
        if self._boot is not None:
            yield Sample("spikewatch_process_start_time_seconds", (), self._boot + process.start_ticks / self._ticks)

    def _command(self, usage: Usage, labels: Labels) -> Iterator[Sample]:
        yield Sample("spikewatch_command_processes", labels, usage.processes)
        yield Sample("spikewatch_command_cpu_seconds_total", labels, usage.cpu_ticks / self._ticks)
        yield Sample("spikewatch_command_resident_memory_bytes", labels, usage.rss_pages * self._page)
        yield Sample("spikewatch_command_threads", labels, usage.threads)
        if usage.fds is not None:
            yield Sample("spikewatch_command_open_fds", labels, usage.fds)
