"""When the storage is measured, and the child process that does it. Off unless asked for; only on suspicion.

A probe competes with the job for the disk. So it runs at idle priority, for seconds, over a bounded number of bytes,
at most once in ten minutes, and only while tasks stand still for input or output.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from pydantic import BaseModel, ConfigDict, Field

from sidecar.collectors.io.files import DataFile, choose
from sidecar.collectors.io.readprobe import Plan, Result
from sidecar.model import Sample, labels_of
from sidecar.settings import Duration

OUTCOMES = ("measured", "failed", "timeout")
_PATHS = 64  # files in one probe
_GRACE_MS = 10_000  # beyond its own time limit: start-up, and a slow last read
_MODULE = "sidecar.collectors.io.readprobe"


class ReadProbeSettings(BaseModel):
    """`collectors: {io: {read_probe: …}}`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = False
    every: Duration = Field(600_000, ge=60_000)  # at most once in this time
    pressure: float = Field(0.2, ge=0, le=1)  # share of time that tasks stood still, from which on it is a suspicion
    block: int = Field(128 << 10, ge=4096, le=16 << 20)  # bytes
    depth: int = Field(32, ge=1, le=128)
    max_bytes: int = Field(256 << 20, ge=1 << 20, le=4 << 30)
    seconds: float = Field(2.0, gt=0, le=30)


class Prober:
    """At most one child. Never waits for it."""

    def __init__(
        self, settings: ReadProbeSettings, command: Sequence[str] = (sys.executable, "-I", "-m", _MODULE)
    ) -> None:
        """`command` gets the plan as its last argument."""
        self._settings = settings
        self._command = tuple(command)
        self._child: subprocess.Popen[bytes] | None = None
        self._started_ms: int | None = None
        self._device = ""
        self._killed = False
        self._outcomes: Counter[str] = Counter()
        self._results: dict[str, tuple[int, Result]] = {}  # device → when, what
        self.problem = ""

    @property
    def busy(self) -> bool:
        """Whether a child is at work, or hangs."""
        return self._child is not None

    def visit(self, now_ms: int, files: Sequence[DataFile], device: str, pressure: float | None) -> None:
        """Takes in what came, and starts a probe of `files` on `device` if there is a suspicion."""
        self._take(now_ms)
        asked = self._settings.enabled and pressure is not None and pressure >= self._settings.pressure
        recent = self._started_ms is not None and now_ms - self._started_ms < self._settings.every
        if asked and files and not recent and self._child is None:
            self._start(now_ms, files, device)

    def _start(self, now_ms: int, files: Sequence[DataFile], device: str) -> None:
        chosen = choose((f for f in files if f.size >= self._settings.block), _PATHS, seed=now_ms)
        if not chosen:
            return
        self._started_ms, self._device, self._killed = now_ms, device, False
        plan = Plan(
            paths=tuple(file.path for file in chosen),
            block=self._settings.block,
            depth=self._settings.depth,
            max_bytes=self._settings.max_bytes,
            seconds=self._settings.seconds,
            seed=now_ms,
        )
        try:
            self._child = subprocess.Popen(
                [*self._command, json.dumps(asdict(plan))],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # a signal for the sidecar's terminal is not for it
            )
        except OSError as e:
            self._outcomes["failed"] += 1
            self.problem = f"cannot start: {e.strerror}"

    def _take(self, now_ms: int) -> None:
        child = self._child
        if child is None:
            return
        if child.poll() is None:
            late = now_ms - (self._started_ms or 0) > self._settings.seconds * 1000 + _GRACE_MS
            if late and not self._killed:
                self._killed = True
                self._outcomes["timeout"] += 1
                self.problem = "the storage did not answer in time"
                child.send_signal(signal.SIGKILL)  # one that hangs in the kernel stays; no other is started then
            return
        self._child = None
        out, err = child.communicate()  # it has ended: what it wrote is in the pipes
        if self._killed:
            return
        try:
            result = Result(**json.loads(out))
        except (ValueError, TypeError):
            self._outcomes["failed"] += 1
            self.problem = err.decode("utf-8", "replace").strip()[-200:] or f"exit code {child.returncode}"
            return
        self._outcomes["measured"] += 1
        self._results[self._device] = (now_ms, result)
        self.problem = "" if result.direct else "the file system takes no direct reads: what was read came from memory"

    def samples(self) -> Iterator[Sample]:
        """Nothing while it is off."""
        if not self._settings.enabled:
            return
        for outcome in OUTCOMES:
            yield Sample("spikewatch_storage_probes_total", (("outcome", outcome),), self._outcomes[outcome])
        for device, (when, result) in self._results.items():
            if result.direct and result.bytes:  # anything else says nothing about the storage
                labels = labels_of({"device": device, "engine": result.engine})
                yield Sample("spikewatch_storage_probe_bytes_per_second", labels, result.bytes_per_second)
                yield Sample("spikewatch_storage_probe_timestamp_seconds", labels, when / 1000)

    def close(self) -> None:
        """Ends the child."""
        if self._child is not None:
            self._child.kill()
            try:
                self._child.communicate(timeout=1)
            except subprocess.TimeoutExpired:
                self.problem = "a probe hangs in the kernel"
