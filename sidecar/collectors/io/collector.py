"""The collector `io`: rings, processes, pressure, files, devices, NFS and the read probe, each at a pace of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from sidecar.collectors.io import devices, features, nfs, pressure
from sidecar.collectors.io.catalogue import METRICS
from sidecar.collectors.io.files import DataFile, PageCache, choose, named, opened
from sidecar.collectors.io.offload import Offload
from sidecar.collectors.io.prober import Prober, ReadProbeSettings
from sidecar.collectors.io.rings import Rings
from sidecar.collectors.io.targets import targets
from sidecar.collectors.io.usage import Usage, delay_accounting
from sidecar.collectors.procfs import Process
from sidecar.collectors.tiers import CALM, RARE, SLOW, TICK, Part, Tiered
from sidecar.errors import CollectError
from sidecar.hooks import CollectorSettings, Section
from sidecar.model import Availability, Finding, MetricInfo, Sample, Status

_LIST_MS = 600_000  # a data set changes rarely, and its server has better things to do

_SHARED = "set shareProcessNamespace: true in the pod's spec, and run the sidecar as the trainer's user"


class IoSettings(CollectorSettings):
    """`collectors: {io: …}`."""

    globs: ClassVar[tuple[str, ...]] = ("files", "offload_paths")

    worth: int = Field(60, ge=0, le=100)
    commands: tuple[str, ...] = ()  # processes to look at; none given: all of the pod's but the sidecar's own
    files: tuple[str, ...] = ()  # globs of the dataset; none given: what the pod's processes have open for reading
    offload_paths: tuple[str, ...] = ()  # folders that parameters or optimizer states are offloaded to
    read_probe: ReadProbeSettings = ReadProbeSettings()
    proc_root: Path = Path("/proc")
    sys_root: Path = Path("/sys")
    cgroup_root: Path = Path("/sys/fs/cgroup")


class IoCollector:
    """Passive, but for the read probe, which is off unless asked for."""

    name: ClassVar[str] = "io"
    settings: ClassVar[type[CollectorSettings]] = IoSettings
    metrics: ClassVar[tuple[MetricInfo, ...]] = METRICS

    def __init__(self, settings: IoSettings) -> None:
        self._settings = settings
        self._root = settings.proc_root
        self._rings = Rings(self._root)
        self._usage = Usage(self._root)
        self._cache = PageCache()
        self._prober = Prober(settings.read_probe)
        self._offload = Offload([Path(p) for p in settings.offload_paths], settings.sys_root, settings.proc_root)
        self._turns: dict[str, int] = {}  # device → when it was last measured
        self._feature: features.Feature | None = None
        self._processes: list[Process] = []
        self._files: list[DataFile] = []
        self._listed_ms: int | None = None  # when the files that were named were looked for
        self._devices: list[devices.Device] = []
        self._stood_still: tuple[int, float] | None = None  # when, seconds of pressure by then
        self._share: float | None = None  # of the newest interval
        self._tiers = Tiered(
            self.name,
            [
                Part("processes", SLOW, self._look),  # first: the others read what it finds
                Part("files", RARE, self._residency),
                Part("mounts", RARE, self._mounts),
                Part("usage", CALM, self._used),
                Part("rings", CALM, self._ringed),
                Part("pressure", TICK, self._pressed),
                Part("devices", CALM, self._busy),
                Part("offload", TICK, self._offload.samples),
                Part("probe", TICK, self._probed),
            ],
        )

    def probe(self) -> Status:
        """Degraded where the pod's processes are not visible, or none lets us read its numbers."""
        self._feature = features.probe(self._root)
        try:
            self._processes = targets(self._root, self._settings.commands)
        except OSError as e:
            return Status(Availability.UNAVAILABLE, "no_proc", f"mount /proc into the container ({e.strerror})")
        if not self._processes:
            return Status(Availability.DEGRADED, "no_other_processes_visible", _SHARED)
        list(self._usage.samples(self._processes))
        if not self._usage.seen:
            return Status(Availability.DEGRADED, "process_io_denied", _SHARED)
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

    def findings(self) -> Iterator[Finding]:
        """For `spikewatch doctor`."""
        feature = self._feature or features.probe(self._root)
        yield Finding(
            "io_uring",
            Status(Availability.AVAILABLE)
            if feature.works
            else Status(Availability.DENIED, feature.reason, feature.fix),
            f"{feature.operations} operations; {len(self._rings)} rings open in the pod",
        )
        if self._rings.denied or self._usage.denied:
            detail = f"{self._usage.denied} processes deny their numbers, {self._usage.seen} give them"
            yield Finding("process io", Status(Availability.DENIED, "process_io_denied", _SHARED), detail)
        if not pressure.totals(self._root / "pressure/io"):
            fix = "boot the node with psi=1"
            yield Finding("pressure", Status(Availability.UNAVAILABLE, "no_pressure_information", fix))
        if not delay_accounting(self._root):
            fix = "set kernel.task_delayacct to 1 on the node"
            yield Finding("block delay", Status(Availability.UNAVAILABLE, "delay_accounting_off", fix))
        if self._cache.problem:
            fix = "run the sidecar as the owner of the data, on Linux 6.5 or newer"
            yield Finding("page cache", Status(Availability.DEGRADED, "cachestat_refused", fix), self._cache.problem)
        for path in self._offload.missing:
            fix = "mount it into the pod from a local disk, or take it out of offload_paths"
            yield Finding(f"offload to {path}", Status(Availability.DEGRADED, "no_block_device", fix))
        if self._settings.read_probe.enabled and self._prober.problem:
            yield Finding("read probe", Status(Availability.DEGRADED, "read_probe_failed"), self._prober.problem)

    def close(self) -> None:
        """Ends a probe that is running."""
        self._prober.close()

    def _look(self, now_ms: int) -> Iterator[Sample]:
        try:
            self._processes = targets(self._root, self._settings.commands)
        except OSError as e:
            raise CollectError(self.name, "proc_unreadable", f"{self._root}: {e.strerror}") from e
        self._rings.discover(self._processes)
        self._offload.look(self._processes)
        if not self._settings.files:
            self._files = choose(opened(self._root, self._processes), seed=now_ms)
        elif self._listed_ms is None or now_ms - self._listed_ms >= _LIST_MS:
            self._listed_ms = now_ms
            self._files = choose(named(self._settings.files), seed=now_ms)
        numbers = {file.device for file in self._files}
        self._devices = devices.devices_of(numbers, self._settings.sys_root, self._root)
        if self._feature is None:
            self._feature = features.probe(self._root)
        yield Sample("spikewatch_io_uring_allowed", (), float(self._feature.works))

    def _busy(self, now_ms: int) -> Iterator[Sample]:
        every = {device.name: device for device in (*self._devices, *self._offload.devices())}
        return devices.samples(every.values())

    def _residency(self, now_ms: int) -> Iterator[Sample]:
        if self._settings.read_probe.enabled:
            self._offload.list_files()
        if self._files:
            yield from self._cache.samples(self._files)

    def _mounts(self, now_ms: int) -> Iterator[Sample]:
        return nfs.samples(nfs.read(self._root, (process.pid for process in self._processes[:32])))

    def _used(self, now_ms: int) -> Iterator[Sample]:
        return self._usage.samples(self._processes)

    def _ringed(self, now_ms: int) -> Iterator[Sample]:
        return self._rings.samples()

    def _pressed(self, now_ms: int) -> Iterator[Sample]:
        by_scope = {"node": self._read_pressure(self._root / "pressure/io")}
        refaults = {"node": _entry(self._root / "vmstat", "workingset_refault_file")}
        if self._processes:
            # what the trainer itself sees as its control group
            group = self._root / str(self._processes[0].pid) / "root" / str(self._settings.cgroup_root).lstrip("/")
            by_scope["container"] = self._read_pressure(group / "io.pressure")
            refaults["container"] = _entry(group / "memory.stat", "workingset_refault_file")
        nearest = by_scope.get("container") or by_scope["node"]
        if "some" in nearest:
            self._measure(now_ms, nearest["some"])
        for scope, totals in by_scope.items():
            for kind, seconds in totals.items():
                yield Sample("spikewatch_io_pressure_seconds_total", (("kind", kind), ("scope", scope)), seconds)
        for scope, pages in refaults.items():
            if pages is not None:
                yield Sample("spikewatch_io_page_cache_refaults_total", (("scope", scope),), pages)

    def _read_pressure(self, path: Path) -> dict[str, float]:
        try:
            return pressure.totals(path)
        except OSError:
            return {}  # another user's root: only the node's own is left

    def _measure(self, now_ms: int, seconds: float) -> None:
        before, self._stood_still = self._stood_still, (now_ms, seconds)
        if before is not None and now_ms > before[0]:
            self._share = (seconds - before[1]) * 1000 / (now_ms - before[0])

    def _probed(self, now_ms: int) -> Iterator[Sample]:
        """One device at a time, the one not measured for longest of those that something seems to wait for."""
        data = self._devices[0].name if len(self._devices) == 1 else ""
        waits = {data: (self._files, self._share)}
        for device, files, busy in self._offload.measurable():
            # waiting for asynchronous requests is no pressure to the kernel, so a busy device is a suspicion, too
            waits[device] = (files or waits.get(device, ([], None))[0], max(busy, self._share or 0.0))
        limit = self._settings.read_probe.pressure
        asking = [device for device, (files, share) in waits.items() if files and share is not None and share >= limit]
        device = min(asking, key=lambda name: self._turns.get(name, 0), default=data)
        idle = not self._prober.busy
        self._prober.visit(now_ms, waits[device][0], device, waits[device][1])
        if idle and self._prober.busy:
            self._turns[device] = now_ms
        return self._prober.samples()


def _entry(path: Path, key: str) -> int | None:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            for line in file:
                name, _, value = line.partition(" ")
                if name == key:
                    return int(value)
    except (OSError, ValueError):
        return None
    return None
