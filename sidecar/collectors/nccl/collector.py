"""The collector `nccl`: logs, Inspector, flight recorder and RAS, each as far as it is there."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from sidecar.collectors.nccl import inspector
from sidecar.collectors.nccl.asking import Ras, RasSettings
from sidecar.collectors.nccl.catalogue import METRICS
from sidecar.collectors.nccl.dumps import Dumps
from sidecar.collectors.nccl.grammar import LogParser
from sidecar.collectors.nccl.logbook import Logbook
from sidecar.collectors.nccl.sources import Found, discover
from sidecar.collectors.nccl.tail import MAX_BACKLOG, Tail
from sidecar.collectors.nccl.timings import Timings
from sidecar.hooks import CollectorSettings
from sidecar.model import Availability, Finding, MetricInfo, Sample, Status
from sidecar.settings import Duration

_WRITE = "set NCCL_DEBUG=INFO and NCCL_DEBUG_FILE on a volume that both containers mount, or collectors.nccl.logs"
_SLOW_ROW = 3  # collectives: from here on something is wrong
_SUSPICIOUS_MS = 300_000  # how long after the last sign
_DISCOVER_MS = 30_000
_DUMPS_MS = 60_000  # between two requests for dumps


class FlightRecorderSettings(BaseModel):
    """`collectors: {nccl: {flight_recorder: …}}`; both are found in the trainer's environment where visible."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dumps: str = ""  # TORCH_FR_DUMP_TEMP_FILE of the trainer: the rank is put behind it
    pipes: str = ""  # TORCH_NCCL_DEBUG_INFO_PIPE_FILE of the trainer
    request: bool = False  # ask for dumps through the pipes when collectives are slow or timed out


class NcclSettings(CollectorSettings):
    """`collectors: {nccl: …}`."""

    globs: ClassVar[tuple[str, ...]] = ("logs", "inspector")

    deadline: Duration = Field(15_000, ge=50)  # a RAS service may take seconds to answer
    worth: int = Field(60, ge=0, le=100)
    logs: tuple[str, ...] = ()  # globs of NCCL_DEBUG_FILE and of the trainer's own log
    inspector: tuple[str, ...] = ()  # globs of the Inspector's files
    discover: bool = True  # find them in the environment of the pod's processes
    flight_recorder: FlightRecorderSettings = FlightRecorderSettings()
    ras: RasSettings = RasSettings()
    wait_limit: Duration = Field(100, ge=1)
    alignment: int = Field(512, ge=1, le=1 << 20)  # bytes
    max_backlog: int = Field(MAX_BACKLOG, ge=1 << 20)  # bytes of a file; older text is skipped and counted
    max_read: int = Field(8 << 20, ge=1 << 20)  # bytes a sample
    max_files: int = Field(64, ge=1, le=1024)
    proc_root: Path = Path("/proc")


class NcclCollector:
    """Reads what NCCL and PyTorch write about communication; asks only where it was told to."""

    name: ClassVar[str] = "nccl"
    settings: ClassVar[type[CollectorSettings]] = NcclSettings
    metrics: ClassVar[tuple[MetricInfo, ...]] = METRICS

    def __init__(self, settings: NcclSettings) -> None:
        self._settings = settings
        limits = {"max_files": settings.max_files, "max_backlog": settings.max_backlog}
        self._logs = Tail(settings.logs, **limits)
        self._records = Tail(settings.inspector, **limits)
        self._parsers: dict[str, LogParser] = {}
        self._logbook = Logbook(settings.alignment)
        self._timings = Timings(settings.wait_limit / 1000)
        self._dumps = Dumps(settings.flight_recorder.dumps, settings.flight_recorder.pipes)
        self._ras = Ras(settings.ras)
        self._found = Found()
        self._discovered_ms: int | None = None
        self._suspicious_ms: int | None = None
        self._timeouts = 0
        self._followed = False
        self._requested_ms: int | None = None

    def probe(self) -> Status:
        """Degraded where there is nothing to read: no job that uses NCCL, or none that tells where it writes."""
        self._discover()
        if self._logs.matching() or self._records.matching() or self._dumps.reachable:
            return Status(Availability.AVAILABLE)
        if self._logs.patterns or self._records.patterns:
            fix = "check collectors.nccl.logs and .inspector; the folder must be mounted into both containers"
            return Status(Availability.DEGRADED, "no_file_matches", fix)
        if self._found.denied and not self._found.seen:
            fix = "run the sidecar as the trainer's user, or set collectors.nccl.logs"
            return Status(Availability.DEGRADED, "trainer_environment_denied", fix)
        return Status(Availability.DEGRADED, "nothing_to_read", _WRITE)

    def findings(self) -> Iterator[Finding]:
        """For `spikewatch doctor`: each source."""
        yield self._finding("NCCL logs", self._logs, _WRITE)
        yield self._finding("NCCL Inspector", self._records, "build NCCL's Inspector plugin: see docs/nccl.md")
        if self._settings.ras.enabled and self._ras.refusal:
            yield Finding("NCCL RAS", Status(Availability.DEGRADED, "not_asked"), self._ras.refusal)

    def _finding(self, what: str, tail: Tail, fix: str) -> Finding:
        detail = f"{tail.matching()} files match, {len(tail)} are followed"
        if tail.counts.errors:
            status = Status(Availability.DENIED, "cannot_be_read", "run the sidecar as the trainer's user or group")
        elif not tail.matching():
            status = Status(Availability.UNAVAILABLE, "no_file", fix)
        else:
            status = Status(Availability.AVAILABLE)
        return Finding(what, status, detail)

    def sample(self, now_ms: int) -> Iterable[Sample]:
        """Takes in what was written since the last sample, and gives everything known."""
        if self._discovered_ms is None or now_ms - self._discovered_ms >= _DISCOVER_MS:
            self._discovered_ms = now_ms
            self._discover()
        for piece in self._logs.read(self._settings.max_read):
            parser = self._parsers.setdefault(piece.path, LogParser())
            self._logbook.see(parser.parse(piece.text), now_ms)
        self._forget_parsers()
        for piece in self._records.read(self._settings.max_read):
            lines = piece.text.count("\n")
            self._timings.see(lines, inspector.parse(piece.text), now_ms)
        for rank, entries in self._dumps.new():
            self._timings.dumped(rank, entries, now_ms)
        timings = tuple(self._timings.samples(now_ms))
        self._act(now_ms)
        yield from timings
        self._followed = self._followed or len(self._logs) > 0
        if self._followed:  # without a log nobody watches, and then nothing is zero
            yield from self._logbook.samples()
        yield from self._logbook.progress(self._dumps.progress)
        if self._dumps.reachable:
            yield from self._dumps.samples()
        yield from self._ras.samples(now_ms)
        yield from self._reading()

    def close(self) -> None:
        """Closes the files."""
        self._logs.close()
        self._records.close()

    def _act(self, now_ms: int) -> None:
        """What is done only when something looks wrong."""
        if self._logbook.timeouts > self._timeouts or self._timings.slow_rows >= _SLOW_ROW:
            self._timeouts, self._suspicious_ms = self._logbook.timeouts, now_ms
        suspicion = self._suspicious_ms is not None and now_ms - self._suspicious_ms <= _SUSPICIOUS_MS
        if suspicion and self._settings.flight_recorder.request:
            if self._requested_ms is None or now_ms - self._requested_ms >= _DUMPS_MS:
                self._requested_ms = now_ms
                self._dumps.request()
        self._ras.visit(
            now_ms, suspicion=suspicion, version=self._logbook.version, complete_ms=self._logbook.complete_at_ms
        )

    def _discover(self) -> None:
        if not self._settings.discover:
            return
        self._found = discover(self._settings.proc_root, frozenset({os.getpid()}))
        self._logs.patterns = tuple(sorted({*self._settings.logs, *self._found.logs}))
        self._records.patterns = tuple(sorted({*self._settings.inspector, *self._found.inspector}))
        self._dumps.look(
            self._settings.flight_recorder.dumps or self._found.dumps,
            self._settings.flight_recorder.pipes or self._found.pipes,
        )

    def _forget_parsers(self) -> None:
        if len(self._parsers) > self._settings.max_files:
            self._parsers.clear()  # only caches are lost

    def _reading(self) -> Iterator[Sample]:
        counts = self._logs.counts
        yield Sample("spikewatch_nccl_log_bytes_total", (), counts.bytes)
        yield Sample("spikewatch_nccl_log_lines_total", (), counts.lines)
        yield Sample("spikewatch_nccl_log_skipped_bytes_total", (), counts.skipped_bytes)
        yield Sample("spikewatch_nccl_log_gaps_total", (), counts.gaps)
        yield Sample("spikewatch_nccl_log_files", (), len(self._logs))
        if self._records.patterns:
            yield Sample("spikewatch_nccl_unmatched_records_total", (), self._timings.unmatched)
