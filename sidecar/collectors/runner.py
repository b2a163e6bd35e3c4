"""Drives every collector: when it is due, how long it may take, what its silence means. `tick` never blocks."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Sequence

from sidecar.clock import Clock
from sidecar.collectors.budget import Cost, adjust
from sidecar.collectors.worker import Job, Worker
from sidecar.hooks import Collector, CollectorSettings, Sink
from sidecar.model import Availability, MetricInfo, Sample, Status, labels_of
from sidecar.recording import Recorder

METRICS: tuple[MetricInfo, ...] = (
    MetricInfo("spikewatch_collector_up", "gauge", "", "Whether the newest sample succeeded.", ("collector",)),
    MetricInfo(
        "spikewatch_collector_status",
        "gauge",
        "",
        "Always 1: what the collector can see, and why not more.",
        ("collector", "state", "reason"),
    ),
    MetricInfo(
        "spikewatch_collector_duration_seconds",
        "gauge",
        "seconds",
        "How long the newest finished sample took.",
        ("collector",),
    ),
    MetricInfo(
        "spikewatch_collector_errors_total", "counter", "", "Samples that failed or came too late.", ("collector",)
    ),
    MetricInfo(
        "spikewatch_collector_refused_samples_total",
        "counter",
        "",
        "Samples dropped because a series limit of the store was hit.",
        ("collector",),
    ),
    MetricInfo(
        "spikewatch_collector_cpu_seconds_total",
        "counter",
        "seconds",
        "CPU a collector used, its children and the storing of its samples included.",
        ("collector",),
    ),
    MetricInfo(
        "spikewatch_collector_stretch",
        "gauge",
        "",
        "How many times as seldom as configured the collector works, to stay within the CPU budget; 1 is its own pace.",
        ("collector",),
    ),
    MetricInfo(
        "spikewatch_collector_cpu_budget_ratio",
        "gauge",
        "ratio",
        "CPU all collectors together may use, as a ratio of one core; absent where there is no limit.",
    ),
)

BACKOFF_MAX_MS = 60_000  # NVML without permission is worth another try a minute later, not a second
PROBE_EVERY_MS = 60_000  # what can be seen changes rarely: a trainer that attaches, a file system that mounts
BUDGET_EVERY_MS = 30_000  # long enough for a reading every 10 s to count as what it is

_log = logging.getLogger(__name__)


class Runner:
    """Owns the threads, deadlines and back-off of all collectors, and says of each whether it is up.

    A collector that fails, cannot see anything or misses its deadline is down: its series end, the reason is in
    `spikewatch_collector_status`, and it is tried again after a pause that doubles up to a minute. Nothing waits
    for it; while its thread hangs, it is not called again.
    """

    def __init__(
        self,
        collectors: Iterable[tuple[Collector, CollectorSettings]],
        sink: Sink,
        clock: Clock,
        *,
        on_done: Callable[[], None] | None = None,
        timer: Callable[[], float] = time.perf_counter,
        cpu: Callable[[], float] = time.thread_time,
        cpu_budget: float | None = None,
    ) -> None:
        """Starts one thread per collector.

        `cpu_budget`: what all collectors together may use, as a ratio of a core; where they use more, those with the
        lowest `worth` are asked less often. None: no limit.

        `on_done` is called in such a thread when a sample is there; handing `collect` to the event loop from it
        saves the wait for the next tick. Collectors with `enabled: false` are left out.
        """
        self._clock = clock
        self._cpu_budget = cpu_budget
        self._budget_at_ms: int | None = None
        self._cpu = cpu
        self._desks = [
            _Desk(collector, settings, sink, Worker(collector, on_done=on_done, timer=timer, cpu=cpu))
            for collector, settings in collectors
            if settings.enabled
        ]
        self._own = Recorder(sink, "runner")

    def due(self, now_ms: int) -> Sequence[str]:
        """Names of the collectors that `tick(now_ms)` would start."""
        return [desk.name for desk in self._desks if desk.due(now_ms)]

    def tick(self, now_ms: int) -> None:
        """Takes in what is finished, marks down what is late, starts what is due, writes the self-metrics."""
        self.poll(now_ms)
        self._balance(self._clock.monotonic_ms())
        self._own.record(self._samples(), now_ms)

    def poll(self, now_ms: int) -> None:
        """`tick` without self-metrics: called between ticks, it lets a collector be faster than them."""
        self.collect()
        monotonic = self._clock.monotonic_ms()
        for desk in self._desks:
            desk.expire(now_ms, monotonic)
            if desk.due(now_ms):
                desk.start(now_ms, monotonic)

    @property
    def fastest_ms(self) -> int | None:
        """The shortest interval of any collector; None where there is none."""
        return min((desk.interval for desk in self._desks), default=None)

    def collect(self) -> None:
        """Takes in what is finished: samples go to the sink with the time of the tick that asked for them."""
        for desk in self._desks:
            if desk.job is not None and desk.job.done.is_set():
                started = self._cpu()
                desk.collect(self._clock.now_ms())
                desk.spend(self._cpu() - started)

    def _balance(self, monotonic_ms: int) -> None:
        """Compares what the collectors used with what they may use, and paces them by it."""
        if self._cpu_budget is None:
            return
        if self._budget_at_ms is None:
            self._budget_at_ms = monotonic_ms
        elapsed = monotonic_ms - self._budget_at_ms
        if elapsed < BUDGET_EVERY_MS:
            return
        self._budget_at_ms = monotonic_ms
        wanted = adjust([desk.cost(elapsed) for desk in self._desks], self._cpu_budget)
        for desk in self._desks:
            desk.pace(wanted[desk.name], self._cpu_budget)

    def _samples(self) -> Iterable[Sample]:
        for desk in self._desks:
            yield from desk.samples()
        if self._cpu_budget is not None:
            yield Sample("spikewatch_collector_cpu_budget_ratio", (), self._cpu_budget)

    def settle(self, timeout_s: float) -> bool:
        """Waits until no sample is under way and takes in what came; for tests and one-shot use. False: time is up."""
        end = time.monotonic() + timeout_s
        settled = all(d.job is None or d.job.done.wait(max(0.0, end - time.monotonic())) for d in self._desks)
        self.collect()
        return settled

    def end(self, t_ms: int) -> None:
        """Ends every series: another runner takes over, perhaps with other collectors."""
        for desk in self._desks:
            desk.end(t_ms)
        self._own.end(t_ms)

    def close(self, timeout_s: float = 1.0) -> list[str]:
        """Ends the threads. Returns the names of those that hang; they die with the process."""
        for desk in self._desks:
            desk.worker.stop()
        end = time.monotonic() + timeout_s
        return [d.name for d in self._desks if not d.worker.join(max(0.0, end - time.monotonic()))]


class _Desk:
    """What the runner knows of one collector."""

    def __init__(self, collector: Collector, settings: CollectorSettings, sink: Sink, worker: Worker) -> None:
        self.name = collector.name
        self.worker = worker
        self.job: Job | None = None
        self._settings = settings
        self._sink = sink
        self._recorders: dict[str, Recorder] = {}  # by section
        self._refused = 0  # by sections that are gone
        self._late = False  # the job under way missed its deadline: its result will not count
        self._deadline = 0
        self._next_ms: int | None = None  # None: at once
        self._probe_at_ms: int | None = None
        self._seen = Status(Availability.AVAILABLE)  # the newest answer of probe()
        self._status: Status | None = None  # None until the first outcome: not known is not down
        self._seconds: float | None = None
        self._failures = 0
        self._errors = 0
        self._stretch = 1
        self._cpu_seconds = 0.0
        self._cpu_counted = 0.0  # of them what the budget has seen
        self._begun = False  # the first visit pays for imports and children: no measure of what follows

    @property
    def interval(self) -> int:
        """Milliseconds from one sample to the next now."""
        return self._settings.interval * self._stretch

    def spend(self, cpu_seconds: float) -> None:
        self._cpu_seconds += cpu_seconds

    def cost(self, elapsed_ms: int) -> Cost:
        """What it used since this was asked last."""
        used, self._cpu_counted = self._cpu_seconds - self._cpu_counted, self._cpu_seconds
        return Cost(self.name, used * 1000 / elapsed_ms, self._settings.worth, self._stretch)

    def pace(self, stretch: int, budget: float) -> None:
        if stretch != self._stretch:
            text = "collector %s works %s (all may use %.2g of a core)"
            pace = f"{stretch} times as seldom as configured" if stretch > 1 else "as often as configured again"
            _log.log(logging.WARNING if stretch > self._stretch else logging.INFO, text, self.name, pace, budget)
            self._stretch = stretch

    def due(self, now_ms: int) -> bool:
        return self.job is None and (self._next_ms is None or now_ms >= self._next_ms)

    def start(self, now_ms: int, monotonic_ms: int) -> None:
        probe = self._probe_at_ms is None or now_ms >= self._probe_at_ms
        self._late = False
        self._deadline = monotonic_ms + self._settings.deadline
        self._schedule(now_ms)
        self.job = Job(now_ms, probe, self._stretch)
        self.worker.start(self.job)

    def _schedule(self, now_ms: int) -> None:
        """The next slot after now on the grid the first sample began; slots that passed meanwhile are skipped."""
        interval = self.interval
        slot = now_ms if self._next_ms is None else self._next_ms
        self._next_ms = slot + interval * ((now_ms - slot) // interval + 1)

    def expire(self, now_ms: int, monotonic_ms: int) -> None:
        if self.job is not None and not self._late and monotonic_ms > self._deadline:
            self._late = True
            self._down(now_ms, Status(Availability.UNAVAILABLE, "deadline"), error=True)

    def collect(self, now_ms: int) -> None:
        job = self.job
        if job is None or not job.done.is_set():
            return
        self.job = None
        self._cpu_seconds += job.cpu_seconds
        if not self._begun:
            self._begun, self._cpu_counted = True, self._cpu_seconds
        if self._late:
            self._next_ms = now_ms + self._pause()  # one that hung for an hour is not called again at once
            return
        self._seconds = job.seconds
        if job.status is not None:
            self._seen = job.status
            self._probe_at_ms = job.t_ms + PROBE_EVERY_MS
        if job.error is not None:
            self._down(job.t_ms, Status(Availability.UNAVAILABLE, job.error.reason), error=True, why=str(job.error))
        elif self._seen.state in (Availability.UNAVAILABLE, Availability.DENIED):
            self._down(job.t_ms, self._seen, error=False)
        else:
            self._failures = 0
            self._become(self._seen)
            self._record(job)

    def _record(self, job: Job) -> None:
        """Each section by itself; those that are left out end."""
        for name in self._recorders.keys() - {name for name, _ in job.sections}:
            self._drop(name, job.t_ms)
        for name, samples in job.sections:
            if samples is not None:
                recorder = self._recorders.get(name)
                if recorder is None:
                    recorder = self._recorders[name] = Recorder(self._sink, self.name)
                recorder.record(samples, job.t_ms)

    def _drop(self, name: str, t_ms: int) -> None:
        recorder = self._recorders.pop(name)
        recorder.end(t_ms)
        self._refused += recorder.refused

    def end(self, t_ms: int) -> None:
        for name in list(self._recorders):
            self._drop(name, t_ms)

    def _down(self, t_ms: int, status: Status, *, error: bool, why: str = "") -> None:
        self._errors += error
        self._failures += 1
        self._next_ms = t_ms + self._pause()
        self._probe_at_ms = None  # what could be seen may be what has changed
        self.end(t_ms)
        self._become(status, why)

    def _pause(self) -> int:
        interval = self.interval
        return max(interval, min(interval << min(self._failures, 20), BACKOFF_MAX_MS))

    def _become(self, status: Status, why: str = "") -> None:
        before, self._status = self._status, Status(status.state, _machine_readable(status.reason))
        if self._status != before and (before is not None or status.state is not Availability.AVAILABLE):
            level = logging.INFO if status.state is Availability.AVAILABLE else logging.WARNING
            reason = why or status.reason
            _log.log(level, "collector %s is %s%s", self.name, status.state.value, reason and f": {reason}")

    def _refused_now(self) -> int:
        return self._refused + sum(recorder.refused for recorder in self._recorders.values())

    def samples(self) -> Iterable[Sample]:
        labels = (("collector", self.name),)
        yield Sample("spikewatch_collector_errors_total", labels, self._errors)
        yield Sample("spikewatch_collector_refused_samples_total", labels, self._refused_now())
        yield Sample("spikewatch_collector_cpu_seconds_total", labels, self._cpu_seconds)
        yield Sample("spikewatch_collector_stretch", labels, float(self._stretch))
        if self._seconds is not None:
            yield Sample("spikewatch_collector_duration_seconds", labels, self._seconds)
        if self._status is None:
            return
        yield from status_samples(self.name, self._status)


def status_samples(name: str, status: Status) -> Iterable[Sample]:
    """Whether a collector is up, and what it can see; also for one that the event loop drives by itself."""
    up = status.state in (Availability.AVAILABLE, Availability.DEGRADED)
    yield Sample("spikewatch_collector_up", (("collector", name),), float(up))
    labels = labels_of({"collector": name, "state": status.state.value, "reason": status.reason})
    yield Sample("spikewatch_collector_status", labels, 1.0)


def _machine_readable(reason: str) -> str:
    """A label value of bounded size, whatever a plugin wrote."""
    return re.sub(r"[^a-z0-9]+", "_", reason.lower())[:64].strip("_")
