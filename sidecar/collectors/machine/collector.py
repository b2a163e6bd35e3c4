"""The collector `cgroup`: CPU quota, memory, OOM kills, pressure and shared memory of trainer and sidecar."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from sidecar.collectors.io.targets import targets
from sidecar.collectors.machine import control
from sidecar.collectors.machine.told import ToldGroup
from sidecar.collectors.tiers import CALM, SLOW, Part, Tiered
from sidecar.errors import CollectError
from sidecar.hooks import CollectorSettings, Section
from sidecar.model import Availability, Evidence, MetricInfo, Sample, Status
from sidecar.settings import FilePath

KERNEL = Evidence("device", "2026-11-29", "Linux 6.18, control groups v1; v2 in the kernel's layout")
LAYOUT = Evidence("fake", "2026-11-29", "files in the kernel's layout of control groups v2")
TRAINER, SIDECAR = "trainer", "sidecar"

_SHARED = (
    "attach the trainer (it then tells of its own group), or set shareProcessNamespace: true in the pod's spec and run"
    " the sidecar as the trainer's user"
)


def _info(
    name: str, unit: str, text: str, source: str, labels: tuple[str, ...] = ("group",), verified: Evidence = KERNEL
) -> MetricInfo:
    kind: Literal["counter", "gauge"] = "counter" if name.endswith("_total") else "gauge"
    return MetricInfo(f"spikewatch_{name}", kind, unit, text, labels, source, "container", "exact", verified)


METRICS: tuple[MetricInfo, ...] = (
    _info("cgroup_cpu_seconds_total", "seconds", "CPU used by a container.", "cpu.stat, cpuacct.usage"),
    _info("cgroup_cpu_quota_cores", "cores", "CPU it may use; absent without a limit.", "cpu.max, cpu.cfs_quota_us"),
    _info("cgroup_cpu_periods_total", "", "Periods of its CPU quota.", "cpu.stat"),
    _info("cgroup_cpu_throttled_periods_total", "", "Periods in which it was held back.", "cpu.stat"),
    _info("cgroup_cpu_throttled_seconds_total", "seconds", "Time its threads were held back.", "cpu.stat"),
    _info("cgroup_memory_used_bytes", "bytes", "Memory charged to it, page cache included.", "memory.current"),
    _info("cgroup_memory_limit_bytes", "bytes", "Memory it may use; absent without a limit.", "memory.max"),
    _info(
        "cgroup_memory_available_bytes",
        "bytes",
        "What it may still take: the tightest limit around it less what is used, page cache that can be dropped not"
        " counted, or the machine's free memory where that is less.",
        "memory.max, memory.current, memory.stat, meminfo",
    ),
    _info("cgroup_memory_cache_bytes", "bytes", "Page cache charged to it.", "memory.stat"),
    _info(
        "cgroup_memory_high_total",
        "",
        "How often it was slowed down for reaching memory.high.",
        "memory.events",
        verified=LAYOUT,
    ),
    _info("cgroup_oom_kills_total", "", "Processes killed for want of memory.", "memory.events, memory.oom_control"),
    _info(
        "cgroup_pressure_seconds_total",
        "seconds",
        "Time in which some or all of its tasks stood still for CPU or memory.",
        "cpu.pressure, memory.pressure",
        ("group", "resource", "kind"),
    ),
    _info("shm_size_bytes", "bytes", "Size of /dev/shm, where loader workers put batches.", "statvfs"),
    _info("shm_used_bytes", "bytes", "What of it is taken.", "statvfs"),
)


class CgroupSettings(CollectorSettings):
    """`collectors: {cgroup: …}`."""

    worth: int = Field(60, ge=0, le=100)
    commands: tuple[str, ...] = ()  # the trainer's command; none given: the pod's process with the most memory
    proc_root: Path = Path("/proc")
    cgroup_root: Path = Path("/sys/fs/cgroup")
    shm: Path = Path("/dev/shm")
    run_dir: FilePath | None = None  # the sidecar's own by default: there an attached trainer tells of its group


class CgroupCollector:
    """Group `trainer` is read through /proc/<pid>/root, where that is allowed, else an attached trainer tells of it;
    `sidecar` is our own.
    """

    name: ClassVar[str] = "cgroup"
    settings: ClassVar[type[CollectorSettings]] = CgroupSettings
    metrics: ClassVar[tuple[MetricInfo, ...]] = METRICS

    def __init__(self, settings: CgroupSettings, wall: Callable[[], float] = time.time) -> None:
        """`wall`: seconds since 1970, to tell how old the trainer's answer is."""
        self._settings = settings
        self._told = ToldGroup(settings.run_dir, wall) if settings.run_dir is not None else None
        self._roots: dict[str, tuple[Path, int | str]] = {}  # group → what its file system begins with, and a process
        self._tiers = Tiered(
            self.name,
            [
                Part("processes", SLOW, self._look),
                Part("groups", CALM, self._groups),
                Part("room", SLOW, self._room),
                Part("shm", SLOW, self._shm),
            ],
        )

    def probe(self) -> Status:
        """Degraded where only our own group is visible."""
        list(self._look(0))
        if SIDECAR not in self._roots:
            return Status(Availability.UNAVAILABLE, "no_control_groups", "mount /sys/fs/cgroup into the container")
        if TRAINER not in self._roots and not self._is_told():
            return Status(Availability.DEGRADED, "trainer_group_not_visible", _SHARED)
        return Status(Availability.AVAILABLE)

    def sample(self, now_ms: int) -> Iterable[Sample]:
        """Everything known now."""
        return self._tiers.sample(now_ms)

    def sections(self, now_ms: int) -> Iterable[Section]:
        """As `sample`, part by part."""
        return self._tiers.sections(now_ms)

    def stretch(self, factor: int) -> None:
        """The slow parts become slower with the rest."""
        self._tiers.stretch(factor)

    def close(self) -> None:
        """The trainer need not tell any more."""
        if self._told is not None:
            self._told.stop()

    def _look(self, now_ms: int) -> Iterator[Sample]:
        """Finds the trainer anew: it may have been restarted. One that cannot be seen is asked to tell."""
        self._find()
        if self._told is not None:
            if TRAINER in self._roots:
                self._told.stop()
            else:
                self._told.ask()
        yield from ()

    def _find(self) -> None:
        proc = self._settings.proc_root
        self._roots = {}
        if self._settings.cgroup_root.is_dir():
            self._roots[SIDECAR] = (Path("/"), "self")
        try:
            found = targets(proc, self._settings.commands)
        except OSError:
            return
        for process in found[:8]:
            root = proc / str(process.pid) / "root"
            if os.access(root / self._inside(self._settings.cgroup_root), os.R_OK | os.X_OK):
                self._roots[TRAINER] = (root, process.pid)
                return

    def _is_told(self) -> bool:
        """Whether the trainer's group is not visible, but the trainer just told of it."""
        return self._told is not None and TRAINER not in self._roots and self._told.look()

    def _inside(self, path: Path) -> str:
        return str(path).lstrip("/")

    def _groups(self, now_ms: int) -> Iterator[Sample]:
        told = self._is_told()
        if not self._roots and not told:
            raise CollectError(self.name, "no_control_groups", f"{self._settings.cgroup_root} is not there")
        for group, (root, pid) in self._roots.items():
            path = root / self._inside(self._settings.cgroup_root)
            yield from control.samples(group, control.read(path, self._settings.proc_root, pid))
        if told and self._told is not None:
            yield from control.samples(TRAINER, self._told.reading())

    def _room(self, now_ms: int) -> Iterator[Sample]:
        for group, (root, pid) in self._roots.items():
            path = root / self._inside(self._settings.cgroup_root)
            yield from control.room(group, path, self._settings.proc_root, pid)
        if self._told is not None and self._is_told():
            yield from self._told.room(TRAINER)

    def _shm(self, now_ms: int) -> Iterator[Sample]:
        for group, (root, _) in self._roots.items():
            try:
                room = os.statvfs(root / self._inside(self._settings.shm))
            except OSError:
                continue  # a container without /dev/shm, or one that ended
            labels = (("group", group),)
            yield Sample("spikewatch_shm_size_bytes", labels, room.f_blocks * room.f_frsize)
            yield Sample("spikewatch_shm_used_bytes", labels, (room.f_blocks - room.f_bfree) * room.f_frsize)
        if self._told is not None and self._is_told():
            yield from self._told.shm(TRAINER)
