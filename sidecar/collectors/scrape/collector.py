"""The collector `scrape`: one thread for each target, so that one that hangs delays no other."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from sidecar.collectors.scrape.fetch import Fetcher, Scraped
from sidecar.collectors.scrape.jobs import ScrapeSettings, Target, targets
from sidecar.errors import CollectError
from sidecar.hooks import CollectorSettings
from sidecar.model import Availability, Evidence, Finding, MetricInfo, Sample, Status, labels_of

HTTP = Evidence("device", "2026-11-29", "HTTP servers on the loopback; relabelling as Prometheus 3.5")

_TARGET = ("job", "instance")
METRICS: tuple[MetricInfo, ...] = (
    MetricInfo(
        "spikewatch_source_configured",
        "gauge",
        "",
        "Always 1: a job is configured that gives this source; its alerts apply.",
        ("source",),
        "configuration",
        "pod",
        "exact",
        HTTP,
    ),
    MetricInfo(
        "spikewatch_scrape_up",
        "gauge",
        "",
        "Whether the newest scrape of a target succeeded.",
        _TARGET,
        "HTTP",
        "pod",
        "exact",
        HTTP,
    ),
    MetricInfo(
        "spikewatch_scrape_duration_seconds",
        "gauge",
        "seconds",
        "How long the newest scrape took.",
        _TARGET,
        "HTTP",
        "pod",
        "exact",
        HTTP,
    ),
    MetricInfo(
        "spikewatch_scrape_samples",
        "gauge",
        "",
        "Samples of the newest scrape, after relabelling.",
        _TARGET,
        "HTTP",
        "pod",
        "exact",
        HTTP,
    ),
    MetricInfo(
        "spikewatch_scrape_errors_total",
        "counter",
        "",
        "Scrapes that failed; their series end.",
        _TARGET,
        "HTTP",
        "pod",
        "exact",
        HTTP,
    ),
    MetricInfo(
        "spikewatch_scrape_refused_samples_total",
        "counter",
        "",
        "Samples left out: named like the sidecar's own, or with characters that only quotes could hold.",
        _TARGET,
        "HTTP",
        "pod",
        "exact",
        HTTP,
    ),
    # The names that shipped rules read of foreign pages. Relabelling or a rule of the user's gives them; the labels are
    # the page's.
    MetricInfo(
        "spikewatch_gateway_cache_hit_ratio",
        "gauge",
        "ratio",
        "Share of lookups that a gateway's cache answered: made of what is scraped, see scrape.md.",
        (),
        "HTTP",
        "cluster",
        "averaged",
        HTTP,
    ),
    MetricInfo(
        "spikewatch_trace_sampling_ratio",
        "gauge",
        "ratio",
        "Share of traces that are kept: made of what is scraped, see scrape.md.",
        (),
        "HTTP",
        "cluster",
        "averaged",
        HTTP,
    ),
)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a thread brings back."""

    seconds: float
    scraped: Scraped | None = None
    error: CollectError | None = None


class _Desk:
    """One target, its thread, and what is known of it."""

    def __init__(self, target: Target, fetcher: Fetcher, on_done: Callable[[], None] | None) -> None:
        self.target = target
        self._fetcher = fetcher
        self._on_done = on_done
        self._orders: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[_Outcome] = queue.SimpleQueue()
        self._next_ms: int | None = None
        self._busy = False
        self.last: _Outcome | None = None
        self._errors = self._refused = 0
        name = f"scrape-{target.job.job_name}"
        # a daemon: a server that hangs must not keep the sidecar from ending
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    def visit(self, now_ms: int) -> None:
        """Takes in what has come, and starts a scrape that is due. Never waits."""
        while True:
            try:
                self.last = self._outcomes.get_nowait()
            except queue.Empty:
                break
            self._busy = False
            self._errors += self.last.error is not None
            self._refused += self.last.scraped.refused if self.last.scraped else 0
        if not self._busy and (self._next_ms is None or now_ms >= self._next_ms):
            self._busy = True
            self._next_ms = now_ms + self.target.job.scrape_interval
            self._orders.put(True)

    def samples(self) -> Iterator[Sample]:
        """What the newest scrape brought; of a target that failed only that it did."""
        labels = labels_of({name: self.target.labels.get(name, "") for name in ("instance", "job")})
        yield Sample("spikewatch_scrape_errors_total", labels, self._errors)
        yield Sample("spikewatch_scrape_refused_samples_total", labels, self._refused)
        if self.last is None:
            return
        scraped = self.last.scraped
        yield Sample("spikewatch_scrape_up", labels, float(scraped is not None))
        yield Sample("spikewatch_scrape_duration_seconds", labels, self.last.seconds)
        if scraped is not None:
            yield Sample("spikewatch_scrape_samples", labels, len(scraped.samples))
            yield from scraped.samples

    def stop(self) -> None:
        """Asks the thread to end, once it is free."""
        self._orders.put(False)

    def join(self, timeout_s: float) -> None:
        """Waits for it."""
        self._thread.join(timeout_s)

    def _loop(self) -> None:
        while self._orders.get():
            started = time.perf_counter()
            scraped, error = None, None
            try:
                scraped = self._fetcher.scrape()
            except CollectError as e:
                error = e
            except Exception as e:  # noqa: BLE001 - whatever a foreign server provokes is its target's failure
                error = CollectError("scrape", "exception", f"{self.target.url}: {type(e).__name__}: {e}")
            self._outcomes.put(_Outcome(time.perf_counter() - started, scraped, error))
            if self._on_done is not None:
                self._on_done()
        self._fetcher.close()


class ScrapeCollector:
    """Scrapes what is configured, each target at its job's pace. The newest values are repeated in between."""

    name: ClassVar[str] = "scrape"
    settings: ClassVar[type[CollectorSettings]] = ScrapeSettings
    metrics: ClassVar[tuple[MetricInfo, ...]] = METRICS

    def __init__(self, settings: ScrapeSettings, *, on_done: Callable[[], None] | None = None) -> None:
        """`on_done` is called in a target's thread after each scrape."""
        self._settings = settings
        self._on_done = on_done
        self._desks: list[_Desk] | None = None

    def probe(self) -> Status:
        """Degraded while the newest scrape of a target failed."""
        failed = [
            desk.last.error for desk in self._desks or () if desk.last is not None and desk.last.error is not None
        ]
        if failed:
            return Status(Availability.DEGRADED, f"target_{failed[0].reason}", f"check the target: {failed[0]}")
        return Status(Availability.AVAILABLE)

    def sample(self, now_ms: int) -> Iterable[Sample]:
        """Starts what is due and gives what is known. With nothing configured there is nothing."""
        for source in sorted({job.source for job in self._settings.jobs if job.source}):
            yield Sample("spikewatch_source_configured", (("source", source),), 1.0)
        for desk in self._started():
            desk.visit(now_ms)
            yield from desk.samples()

    def findings(self) -> Iterator[Finding]:
        """For `spikewatch doctor`: each target."""
        for desk in self._desks or ():
            error = desk.last.error if desk.last is not None else None
            if desk.last is None:
                status = Status(Availability.DEGRADED, "not_scraped_yet")
            elif error is not None:
                status = Status(Availability.UNAVAILABLE, error.reason, "check its address, and that it answers")
            else:
                status = Status(Availability.AVAILABLE)
            yield Finding(f"scrape {desk.target.url}", status, str(error or ""))

    def close(self) -> None:
        """Ends the threads that are free; one that waits for a server dies with the process."""
        for desk in self._desks or ():
            desk.stop()
        for desk in self._desks or ():
            desk.join(0.5)

    def _started(self) -> list[_Desk]:
        if self._desks is None:
            found = [target for job in self._settings.jobs for target in targets(job)]
            if len(found) > self._settings.max_targets:
                text = f"{len(found)} targets are more than max_targets ({self._settings.max_targets})"
                raise CollectError(self.name, "too_many_targets", text)
            self._desks = [_Desk(target, Fetcher(target), self._on_done) for target in found]
        return self._desks
