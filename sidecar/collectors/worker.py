"""One collector's thread: it does the waiting, so that nobody else has to."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice

from sidecar.errors import CollectError
from sidecar.hooks import Collector, Section, Sectioned, Spending, Stretchable
from sidecar.model import Availability, Sample, Status

_log = logging.getLogger(__name__)
_MAX_SECTIONS = 100
_SEEING = frozenset({Availability.AVAILABLE, Availability.DEGRADED})


@dataclass(slots=True)
class Job:
    """One visit: its thread fills in the outcome and sets `done` last; until then only the thread may touch it."""

    t_ms: int
    probe: bool  # ask the collector what it can see before sampling
    stretch: int = 1  # how many times as seldom as it wants to the collector is to work
    status: Status | None = None  # the answer, where asked
    sections: list[tuple[str, list[Sample] | None]] = field(default_factory=list)  # None: as before
    error: CollectError | None = None
    seconds: float = 0.0
    cpu_seconds: float = 0.0  # used by this visit, and since the one before by the collector's children
    done: threading.Event = field(default_factory=threading.Event)


class Worker:
    """Runs jobs one at a time. A daemon thread: one that hangs in the kernel must not keep the process from ending."""

    def __init__(
        self,
        collector: Collector,
        *,
        max_samples: int = 10_000,
        on_done: Callable[[], None] | None = None,
        timer: Callable[[], float] = time.perf_counter,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        """`on_done` is called in the thread after each job and must not raise; `timer` and `cpu` measure it, in
        seconds of time and of the thread's CPU.
        """
        self._collector = collector
        self._max_samples = max_samples
        self._on_done = on_done
        self._timer, self._cpu = timer, cpu
        self._spent_elsewhere = 0.0
        self._stretch = 1
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name=f"collector-{collector.name}", daemon=True)
        self._thread.start()

    def start(self, job: Job) -> None:
        """Hands a job over. Only one may be under way."""
        self._jobs.put(job)

    def stop(self) -> None:
        """Asks the thread to close the collector and end, once it is free."""
        self._jobs.put(None)

    def join(self, timeout_s: float) -> bool:
        """Whether the thread has ended within `timeout_s`."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _loop(self) -> None:
        while (job := self._jobs.get()) is not None:
            started, cpu = self._timer(), self._cpu()
            try:
                self._visit(job)
            except CollectError as e:
                job.error = e
            # The one boundary around foreign code: the runner counts it, shows it and backs off.
            except (Exception, SystemExit) as e:  # noqa: BLE001
                job.error = CollectError(self._collector.name, "exception", f"{type(e).__name__}: {e}")
            job.seconds, job.cpu_seconds = self._timer() - started, self._cpu() - cpu + self._elsewhere()
            job.done.set()
            if self._on_done is not None:
                self._on_done()
        try:
            self._collector.close()
        except Exception as e:  # noqa: BLE001 - the last act of foreign code
            _log.warning("collector %s could not be closed: %s: %s", self._collector.name, type(e).__name__, e)

    def _elsewhere(self) -> float:
        """CPU that the collector's children used since the last visit."""
        if not isinstance(self._collector, Spending):
            return 0.0
        try:
            total = self._collector.cpu_seconds()
        except Exception as e:  # noqa: BLE001 - foreign code; its sample is worth more than its bill
            _log.debug("what %s spends is not known: %s", self._collector.name, e)
            return 0.0
        since, self._spent_elsewhere = total - self._spent_elsewhere, total
        return max(0.0, since)

    def _visit(self, job: Job) -> None:
        if job.stretch != self._stretch and isinstance(self._collector, Stretchable):
            self._collector.stretch(job.stretch)
            self._stretch = job.stretch
        if job.probe:
            job.status = self._collector.probe()
            if job.status.state not in _SEEING:
                return
        collector, room = self._collector, self._max_samples
        sections: Iterable[Section]
        if isinstance(collector, Sectioned):
            sections = collector.sections(job.t_ms)
        else:
            sections = (Section("", collector.sample(job.t_ms)),)
        found: list[tuple[str, list[Sample] | None]] = []
        for section in islice(sections, _MAX_SECTIONS):
            # a generator is exhausted here, in the thread, and an endless one is cut off
            samples = None if section.samples is None else list(islice(section.samples, room + 1))
            room -= len(samples or ())
            if room < 0:
                raise CollectError(collector.name, "too_many_samples", f"more than {self._max_samples} samples")
            found.append((section.name, samples))
        job.sections = found
