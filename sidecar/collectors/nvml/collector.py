"""The collector of NVIDIA GPUs: asks a child that talks to the driver, and outlives whatever the driver does to it."""

from __future__ import annotations

import errno
import logging
import math
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from sidecar.collectors.gpu import catalogue
from sidecar.collectors.gpu.reading import Gpus, Reading
from sidecar.collectors.nvml import faults, names, wire
from sidecar.collectors.nvml.evidence import EVIDENCE
from sidecar.collectors.nvml.process import NvmlChild, Settings
from sidecar.collectors.nvml.viatrainer import TrainerGpus
from sidecar.errors import CollectError
from sidecar.hooks import CollectorSettings, Section
from sidecar.model import JSON, Availability, Finding, MetricInfo, Sample, Status
from sidecar.settings import Duration, FilePath

SOURCES = {
    "memory": "nvmlDeviceGetMemoryInfo_v2 (v1 with old drivers)",
    "utilization": "nvmlDeviceGetUtilizationRates",
    "gpm": "nvmlGpmMetricsGet, mean of the fast samples",
    "clocks": "nvmlDeviceGetCurrentClocksEventReasons, nvmlDeviceGetClockInfo, field values 74 to 76 and 269 to 271",
    "power": "field values 186 and 83, nvmlDeviceGetEnforcedPowerLimit",
    "pcie": "field values 197, 198 and 94",
    "nvlink": "field values 138 and 139, or 202 and 204",
    "temperature": "nvmlDeviceGetTemperatureV, field value 82",
    "ecc": "field values 3, 4, 31 and 142 to 145",
    "xid": "nvmlEventSetWait_v2",
    "processes": "nvmlDeviceGetComputeRunningProcesses_v3",
    "driver": "NVML",
    "derived": "GPM and utilization, fast samples",
}

_START_S = 3.0  # a probe waits no longer for a child that begins; eight GPUs without persistence take a minute
_INIT_HANGS, _FIRST_READ_HANGS = 30, 5  # as multiples of `hang`: a minute, ten seconds
_SKIP_S, _SKIP_MAX_S = 60.0, 600.0  # a GPU that hung is left alone, longer each time
_RESTART_S, _RESTART_MAX_S = 2.0, 60.0
_STARTING = Status(
    Availability.UNAVAILABLE,
    "driver_starting",
    "wait: the driver is being initialised; persistence mode on the node makes it fast",
)
_NO_DEVICE = Status(
    Availability.UNAVAILABLE,
    "no_device",
    "let the container see the node's GPUs: NVIDIA_VISIBLE_DEVICES=all and NVIDIA_DRIVER_CAPABILITIES=utility, a CDI"
    " annotation, or a runtimeClass; without any, attach the trainer: its own NVML is used",
)
_NO_GPU = Status(Availability.UNAVAILABLE, "no_gpu", _NO_DEVICE.fix)

_log = logging.getLogger(__name__)


class NvmlSettings(CollectorSettings):
    """`collectors: {nvml: …}`."""

    deadline: Duration = Field(10_000, ge=50)
    worth: int = Field(90, ge=0, le=100)
    fast: Duration = Field(
        200, ge=150
    )  # activity (GPM) and utilization; GPM needs more than 100 ms between two samples
    slow: Duration = Field(10_000, ge=1_000)  # temperatures, clocks
    rare: Duration = Field(30_000, ge=1_000)  # errors, processes, which GPUs there are
    hang: Duration = Field(2_000, ge=100)  # a driver that is silent for so long hangs
    library_path: FilePath | None = None  # libnvidia-ml.so.1, where it is not in the loader's path
    sharing: Literal["auto", "none", "mps", "processes"] = "auto"  # auto cannot see processes of other pods everywhere
    give_up_after: int | None = Field(None, ge=1)  # failed starts in a row after which the sidecar ends itself
    run_dir: FilePath | None = None  # the sidecar's own by default: there an attached trainer leaves what it sees
    dev_root: FilePath = Path("/dev")
    proc_root: FilePath = Path("/proc")


class NvmlCollector:
    """One child process at a time. It is started again when the driver has failed, and without a GPU that hung."""

    name: ClassVar[str] = "nvml"
    settings: ClassVar[type[CollectorSettings]] = NvmlSettings
    metrics: ClassVar[tuple[MetricInfo, ...]] = catalogue.metrics(SOURCES, EVIDENCE)

    def __init__(
        self,
        settings: NvmlSettings,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        *,
        end: Callable[[], None] = lambda: os.kill(os.getpid(), signal.SIGTERM),
    ) -> None:
        """`end` ends the sidecar, for `give_up_after`; a container that ends is started again by Kubernetes."""
        self._settings = settings
        self._now = clock
        self._end = end
        self._child: NvmlChild | None = None
        self._abandoned: list[NvmlChild] = []  # in state D: they end when the driver lets go of them
        self._ready = False  # the present child has delivered a report
        self._report: JSON | None = None  # one that `probe` has read and `sample` has not used
        self._readings: list[Reading] = []
        self._failure: Status | None = None
        self._failures, self._start_at = 0, 0.0
        self._skip: dict[int, tuple[str, float, float]] = {}  # GPU → UUID, when to try again, pause then
        self._xids: dict[str, dict[int, int]] = {}
        self._calls: dict[str, list[float]] = {}  # of children before the present one
        self._present_calls: dict[str, list[float]] = {}
        self._past: dict[str, names.Past] = {}
        self._told: object = None
        self._told_ms = 0
        self._gpus = Gpus()
        self._cpu = 0.0  # of children before the present one
        self._stretch = 1
        folder = settings.run_dir
        self._trainer = TrainerGpus(folder / "gpus", wall) if folder is not None else None
        self._through = False  # what is known comes from the trainer

    # --- the contract ------------------------------------------------------------------------------------------------

    def probe(self) -> Status:
        """Starts a child where there is none, and says what it can see."""
        if not self._settings.library_path and not self._has_device():
            return self._through_trainer(_NO_DEVICE)
        status = self._own_eyes()
        if status.reason == "no_library":
            return self._through_trainer(status)
        if self._trainer is not None:
            self._trainer.stop()
        self._through = False
        return status

    def _through_trainer(self, otherwise: Status) -> Status:
        """Where there is no GPU to be seen from here, an attached trainer is asked for what it sees of its own."""
        if self._trainer is None:
            return otherwise
        self._trainer.ask()
        self._report = self._trainer.report()
        self._through = self._report is not None
        return Status(Availability.DEGRADED, "seen_through_trainer", otherwise.fix) if self._through else otherwise

    def _own_eyes(self) -> Status:
        if self._child is None:
            self._reap()
            if self._abandoned:
                return faults.whole(wire.HUNG)
            if self._now() < self._start_at:
                return self._failure or _STARTING
            self._start()
        if not self._ready and self._report is None:
            self._report = self._ask(_START_S)
            if self._child is None:
                return self._failure or _STARTING
            if self._report is None:
                return self._slow_start()
        return self._status(self._report["gpus"] if self._report is not None else None)

    def sample(self, now_ms: int) -> Iterable[Sample]:
        """Every GPU that answers. Raises CollectError where the driver hangs, failed or is still starting."""
        self._refresh()
        return [*self._gpus.quick(self._readings), *self._steady()]

    def sections(self, now_ms: int) -> Iterable[Section]:
        """As `sample`; what changes seldom only when it did, and every ten seconds."""
        self._refresh()
        told = [(r.gpu, r.index, r.up, id(r.steady), r.info, r.capabilities) for r in self._readings]
        due = told != self._told or now_ms - self._told_ms >= self._settings.slow
        if due:
            self._told, self._told_ms = told, now_ms
        return (
            Section("activity", self._gpus.quick(self._readings)),
            Section("state", self._steady() if due else None),
        )

    def _refresh(self) -> None:
        report, self._report = self._report, None
        if report is None and self._through and self._trainer is not None:
            report = self._trainer.report()
            if report is None:
                raise CollectError(self.name, "trainer_silent", "the trainer no longer says what its GPUs do")
        if report is None:
            if self._child is None:
                raise self._error()
            if not self._ready:
                raise CollectError(self.name, _STARTING.reason)
            self._retry_skipped()
            report = self._ask(self._settings.hang / 1000)
            if report is None:
                raise self._hangs() if self._child is not None else self._error()
        self._ready = self._child is not None
        self._failures, self._failure = 0, None
        self._count_xids(report["xids"])
        self._present_calls = report["calls"]
        self._readings = [self._reading(gpu) for gpu in report["gpus"]]
        for uuid in self._past.keys() - {r.gpu for r in self._readings}:  # MIG devices that are gone
            del self._past[uuid]
            self._xids.pop(uuid, None)

    def findings(self) -> Iterator[Finding]:
        """One line for each GPU, and one for each thing of it that cannot be had."""
        for reading in self._readings:
            who = f"GPU {reading.index} {reading.info.get('name', '')} ({reading.gpu})"
            if not reading.up:
                yield Finding(who, reading.capabilities.get("device", _NO_GPU))
                continue
            yield Finding(who, Status(Availability.AVAILABLE), f"sharing: {reading.info['sharing']}")
            for capability, status in reading.capabilities.items():
                yield Finding(f"GPU {reading.index}: {capability}", status)

    def stretch(self, factor: int) -> None:
        """The child's own pace."""
        self._stretch = factor
        if self._child is not None:
            self._child.tell(f"s{factor}")

    def cpu_seconds(self) -> float:
        """Of all children so far."""
        return self._cpu + (self._child.cpu_seconds if self._child is not None else 0.0)

    def close(self) -> None:
        """Ends the child."""
        if self._child is not None:
            self._drop()
        if self._trainer is not None:
            self._trainer.stop()
        self._reap()

    # --- the child ---------------------------------------------------------------------------------------------------

    def _has_device(self) -> bool:
        root = self._settings.dev_root
        return any((root / name).exists() for name in ("nvidiactl", "nvidia0", "dxg"))

    def _start(self) -> None:
        settings = self._settings
        library = str(settings.library_path) if settings.library_path else ""
        skip = {gpu: uuid for gpu, (uuid, retry_at, _) in self._skip.items() if self._now() < retry_at < math.inf}
        told = Settings(library, settings.fast, settings.slow, settings.rare, skip)
        self._child = NvmlChild(told, settings.proc_root)
        self._ready = False
        if self._stretch > 1:
            self._child.tell(f"s{self._stretch}")

    def _ask(self, timeout_s: float) -> JSON | None:
        """A report; None where none came in time, or the driver failed (then there is no child any more)."""
        child = self._child
        if child is None:
            return None
        try:
            report = child.ask(timeout_s)
        except CollectError as e:
            self._failed(Status(Availability.UNAVAILABLE, e.reason))
            return None
        if report is not None and "failed" in report:
            status = faults.whole(int(report["failed"]))
            self._failed(faults.CGROUP_LOST if self._cgroup_lost() else status)
            return None
        return report

    def _failed(self, status: Status) -> None:
        """Ends the child; the next one starts after a pause that doubles up to a minute."""
        self._failure = status
        self._failures += 1
        self._start_at = self._now() + min(_RESTART_S * 2 ** (self._failures - 1), _RESTART_MAX_S)
        self._drop()
        limit = self._settings.give_up_after
        if limit is not None and self._failures == limit:
            _log.error("the NVIDIA driver failed %d times in a row (%s): ending the sidecar", limit, status.reason)
            self._end()

    def _cgroup_lost(self) -> bool:
        """The devices are there, but the kernel does not let us open them whatever their mode says."""
        node = self._settings.dev_root / "nvidiactl"
        try:
            os.close(os.open(node, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
        except OSError as e:
            return e.errno == errno.EPERM
        return False

    def _slow_start(self) -> Status:
        """A child without a first report: still starting, or hanging in the driver."""
        child = self._child
        if child is None:
            return self._failure or _STARTING
        patience = _INIT_HANGS if child.where()[0] < 0 else _FIRST_READ_HANGS
        if time.monotonic() - child.started <= patience * self._settings.hang / 1000:
            return _STARTING
        self._hangs()
        return faults.whole(wire.HUNG)

    def _hangs(self) -> CollectError:
        """A child that does not answer. One in state D can only be waited for: whoever came next would hang, too."""
        child = self._child
        assert child is not None
        gpu, call = child.where()
        text = f"{call or 'the NVML process'}{f' on GPU {gpu}' if gpu >= 0 else ''} does not return"
        if child.state() == "D":
            self._failure = faults.whole(wire.HUNG)
            return CollectError(self.name, "driver_hung", text + " and cannot be interrupted")
        if gpu >= 0:
            known = next((r.gpu for r in self._readings if r.index == str(gpu)), "")
            _, _, pause = self._skip.get(gpu, ("", 0.0, _SKIP_S / 2))
            pause = min(pause * 2, _SKIP_MAX_S)
            self._skip[gpu] = known, self._now() + pause, pause
            _log.error("%s: it is left alone for %g s, the others go on", text, pause)
        self._failure = faults.whole(wire.HUNG)
        self._drop()
        self._start_at = 0.0
        return CollectError(self.name, "driver_hung", text)

    def _retry_skipped(self) -> None:
        for gpu, (uuid, retry_at, pause) in self._skip.items():
            if self._now() >= retry_at and self._child is not None:
                self._skip[gpu] = uuid, math.inf, pause
                self._child.tell(f"u{gpu}")

    def _drop(self) -> None:
        child, self._child = self._child, None
        self._ready, self._report = False, None
        if child is None:
            return
        self._cpu += child.cpu_seconds
        for call, (count, seconds) in self._present_calls.items():
            total = self._calls.setdefault(call, [0, 0.0])
            total[0] += count
            total[1] += seconds
        self._present_calls = {}
        if not child.kill():
            self._abandoned.append(child)

    def _reap(self) -> None:
        self._abandoned = [child for child in self._abandoned if not child.reap()]

    def _error(self) -> CollectError:
        failure = self._failure or _STARTING
        return CollectError(self.name, failure.reason)

    # --- what it says ------------------------------------------------------------------------------------------------

    def _status(self, gpus: list[JSON] | None) -> Status:
        if gpus is not None:
            self._readings = [self._reading(gpu) for gpu in gpus]
        if not self._readings:
            return _NO_GPU
        down = [r for r in self._readings if not r.up]
        if down:
            status = down[0].capabilities["device"]
            state = Availability.UNAVAILABLE if len(down) == len(self._readings) else Availability.DEGRADED
            return Status(state, status.reason, status.fix)
        for capability in ("gpm", "memory", "utilization", "xid"):
            for reading in self._readings:
                status = reading.capabilities.get(capability, Status(Availability.AVAILABLE))
                if status.state is not Availability.AVAILABLE:
                    return Status(Availability.DEGRADED, f"{capability}_{status.reason}", status.fix)
        return Status(Availability.AVAILABLE)

    def _reading(self, gpu: JSON) -> Reading:
        uuid = str(gpu["gpu"])
        listening = not gpu["codes"].get("xid")
        if listening and not gpu["parent"]:
            self._xids.setdefault(uuid, {})
        xids = self._xids.get(uuid) if listening else None
        return names.reading(gpu, self._settings.sharing, xids, self._past.setdefault(uuid, names.Past()))

    def _count_xids(self, events: Iterable[tuple[str, int, int]]) -> None:
        for uuid, xid, count in events:
            seen = self._xids.setdefault(uuid, {})
            seen[xid] = seen.get(xid, 0) + count

    def _steady(self) -> list[Sample]:
        found = list(self._gpus.steady(self._readings))
        for call in sorted({*self._calls, *self._present_calls}):
            before, now = self._calls.get(call, (0, 0.0)), self._present_calls.get(call, (0, 0.0))
            labels = (("call", call),)
            found.append(Sample("spikewatch_gpu_driver_calls_total", labels, float(before[0] + now[0])))
            found.append(Sample("spikewatch_gpu_driver_call_seconds_total", labels, before[1] + now[1]))
        return found
