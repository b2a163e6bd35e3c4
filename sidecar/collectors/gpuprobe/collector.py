"""The collector `gpu_probe`: once a period a child asks the GPU what it could deliver right now. Off by default."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from sidecar.collectors.gpuprobe.catalogue import METRICS, PREFIX, READINGS
from sidecar.collectors.gpuprobe.situation import BESIDE_S, Asker
from sidecar.errors import CollectError
from sidecar.hooks import CollectorSettings
from sidecar.model import Availability, Labels, MetricInfo, Sample, Status, labels_of
from sidecar.settings import Duration

_GONE = ("no_driver", "no_device")
_FIXES = {
    "no_driver": "give the sidecar the GPU (runtimeClassName: nvidia, NVIDIA_VISIBLE_DEVICES), or leave gpu_probe off",
    "no_device": "set NVIDIA_VISIBLE_DEVICES for the sidecar's container, or leave gpu_probe off",
    "no_state": "mount a volume at collectors.gpu_probe.state that the sidecar may write to",
    "skipped_exclusive": "nvidia-smi -c DEFAULT, where more than one process may use the GPU",
    "skipped_mps": "collectors: {gpu_probe: {under_mps: true}}, where a fault may reach the trainer",
    "skipped_busy": "collectors: {gpu_probe: {beside_busy: true}}, or touch the window file in pauses",
    "skipped_budget": "collectors: {gpu_probe: {gpu_seconds_per_minute: …}}",
}


class GpuProbeSettings(CollectorSettings):
    """`collectors: {gpu_probe: …}`. Off unless it is switched on: a probe takes GPU time and a context's memory."""

    enabled: bool = False
    deadline: Duration = Field(90_000, ge=50)
    worth: int = Field(30, ge=0, le=100)
    period: Duration = Field(60_000, ge=10_000)  # between two turns
    device: int = Field(0, ge=0)  # among those the sidecar may see
    state: Path = Path("/var/lib/spikewatch/probes")  # budget and baselines
    job: str = ""  # ranks with the same name probe in the same second
    gpu_seconds_per_minute: float = Field(2e-3, gt=0, le=1)
    full: bool = False  # every probe the moment allows, not the light ones only
    beside_busy: bool = False  # also beside a GPU that works
    under_mps: bool = False
    window_file: Path | None = None  # while it is there, the trainer is in a pause
    preflight_file: Path | None = None  # until it is there, the trainer has not begun
    ask: str = "http://127.0.0.1:9478"  # the sidecar's own API: phases, Xids, step time; empty: nothing is asked


class GpuProbeCollector:
    """Keeps the last turn's numbers. The child is ended by its pid when it is late."""

    name: ClassVar[str] = "gpu_probe"
    settings: ClassVar[type[CollectorSettings]] = GpuProbeSettings
    metrics: ClassVar[tuple[MetricInfo, ...]] = METRICS

    def __init__(self, settings: GpuProbeSettings) -> None:
        self._settings = settings
        self._slot = -1
        self._readings: dict[tuple[str, Labels], float] = {}
        self._runs: dict[tuple[str, str], int] = {}
        self._successes: dict[str, float] = {}
        self._gpu_seconds = 0.0
        self._uuid = ""
        self._last: tuple[str, str] = ("", "")  # why the newest turn gave nothing
        self._child: subprocess.Popen[str] | None = None
        self._asker = Asker(settings.ask)
        self._turned_ms: int | None = None  # a turn whose effect on the trainer is not judged yet
        self._step_time_ratio: float | None = None

    def probe(self) -> Status:
        """What the newest turn came to."""
        result, reason = self._last
        if not result:
            return Status(Availability.AVAILABLE)
        kind = Availability.UNAVAILABLE if result in _GONE else Availability.DEGRADED
        return Status(kind, result, fix=_FIXES.get(result, reason))

    def sample(self, now_ms: int) -> Iterable[Sample]:
        """Runs a turn when its second has come; between turns what the last one gave. Raises CollectError."""
        slot = (now_ms - self._second() * 1000) // self._settings.period
        if slot != self._slot:
            first, self._slot = self._slot < 0, slot
            if not first or self._settings.preflight_file is not None:
                self._turn(now_ms)
        elif self._turned_ms is not None and now_ms - self._turned_ms >= BESIDE_S * 1000:
            self._turned_ms = None
            self._step_time_ratio = self._asker.step_time_ratio()
        return self._samples()

    def close(self) -> None:
        """Ends a child that is still at it."""
        self._asker.close()
        child, self._child = self._child, None
        if child is not None and child.poll() is None:
            _end(child)

    # --- a turn ---------------------------------------------------------------------------------------------------

    def _second(self) -> int:
        """At which second of a minute: the same for all ranks of a job, or each would delay all others in turn."""
        job = self._settings.job or os.environ.get("SPIKEWATCH_JOB", "")
        return int.from_bytes(hashlib.sha256(job.encode()).digest()[:4], "big") % 60

    def _turn(self, now_ms: int) -> None:
        s = self._settings
        known = self._asker.known()
        situation = {
            "recent_xid": known.recent_xid,
            "step_time_ratio": self._step_time_ratio,
            "beside_busy": s.beside_busy,
            "under_mps": s.under_mps,
            "full": s.full,
            "gpu_seconds_per_minute": s.gpu_seconds_per_minute,
            "window_open": known.window_open or (s.window_file is not None and s.window_file.exists()),
            "trainer_started": s.preflight_file is None or s.preflight_file.exists(),
            "sharing": "mps" if os.environ.get("CUDA_MPS_PIPE_DIRECTORY") else "exclusive",
        }
        seconds = s.deadline / 1000 / 3
        command = [sys.executable, "-m", "probes", "turn", "--state", str(s.state), "--device", str(s.device)]
        command += ["--deadline", f"{seconds:g}", "--situation", json.dumps(situation)]
        try:
            self._child = child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        except OSError as e:
            raise CollectError(self.name, "no_child", f"the probe process does not start: {e}") from e
        try:
            out, err = child.communicate(timeout=2.5 * seconds)
        except subprocess.TimeoutExpired:
            _end(child)
            self._count("", "timeout")
            raise CollectError(self.name, "timeout", "the probe process passed its deadline and was ended") from None
        finally:
            self._child = None
        if child.returncode not in (0, 1):
            raise CollectError(self.name, "child_failed", err.strip()[-300:] or f"exit code {child.returncode}")
        self._last, self._turned_ms, self._step_time_ratio = ("", ""), now_ms, None
        self._take([line for raw in out.splitlines() if isinstance(line := _json(raw), dict)], now_ms)

    def _take(self, lines: list[dict[str, Any]], now_ms: int) -> None:
        readings: dict[tuple[str, Labels], float] = {}
        for line in lines:
            self._uuid = str(line.get("uuid", self._uuid))
            if line.get("fake"):
                self._last = ("fake_device", "a fake CUDA driver is loaded: its numbers are not published")
            if "metric" in line:
                self._reading(readings, line)
            elif "result" in line:
                self._count(str(line.get("probe", "")), str(line["result"]))
                self._gpu_seconds += float(line.get("gpu_seconds", 0.0))
                if line["result"] == "ok":
                    self._successes[line["probe"]] = now_ms / 1000
                else:
                    self._last = (str(line["result"]), str(line.get("reason", "")))
        if readings:
            self._readings = readings

    def _reading(self, readings: dict[tuple[str, Labels], float], line: Mapping[str, Any]) -> None:
        name, probe = str(line["metric"]), str(line["probe"])
        if name not in _KNOWN:
            return
        labels = {str(k): str(v) for k, v in line["labels"].items()}
        readings[name, labels_of({"gpu": self._uuid, **labels})] = float(line["value"])
        if "baseline_ratio" in line:
            of = name.removeprefix(PREFIX) + "".join(f",{k}={v}" for k, v in sorted(labels.items()))
            compared = labels_of({"gpu": self._uuid, "of": of, "probe": probe})
            readings[f"{PREFIX}baseline_ratio", compared] = float(line["baseline_ratio"])
            readings[f"{PREFIX}degraded", compared] = float(line["verdict"] == "degraded")

    def _count(self, probe: str, result: str) -> None:
        self._runs[probe, result] = self._runs.get((probe, result), 0) + 1

    def _samples(self) -> list[Sample]:
        gpu = self._uuid
        found = [Sample(name, labels, value) for (name, labels), value in self._readings.items()]
        for (probe, result), count in self._runs.items():
            found.append(
                Sample(f"{PREFIX}runs_total", labels_of({"gpu": gpu, "probe": probe, "result": result}), count)
            )
        for probe, when in self._successes.items():
            name = f"{PREFIX}last_success_timestamp_seconds"
            found.append(Sample(name, labels_of({"gpu": gpu, "probe": probe}), when))
        found.append(Sample(f"{PREFIX}gpu_seconds_total", labels_of({"gpu": gpu}), self._gpu_seconds))
        return found


_KNOWN = frozenset(info.name for info in READINGS)


def _json(raw: str) -> object:
    try:
        return json.loads(raw)
    except ValueError:
        return None


def _end(child: subprocess.Popen[str]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        child.send_signal(number)
        try:
            child.wait(2)
            break
        except subprocess.TimeoutExpired:
            continue
    for stream in (child.stdout, child.stderr):
        if stream is not None:
            stream.close()
