"""The collector `spark`: asks drivers and history servers what their newest stages did. One per cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from sidecar.collectors.repeated import Repeated
from sidecar.collectors.spark.api import NAME, Application, SparkApi
from sidecar.collectors.spark.catalogue import METRICS
from sidecar.collectors.spark.stages import Stage, TaskBytes, chosen, stage, task_bytes
from sidecar.errors import CollectError, shown_url
from sidecar.hooks import CollectorSettings, Section
from sidecar.model import Availability, Finding, MetricInfo, Sample, Status, labels_of
from sidecar.settings import Duration

if TYPE_CHECKING:
    import httpx

_MANY_TASKS = 20_000  # a driver sorts all finished tasks of a running stage for each answer: not of such a stage

_FIXES = {
    "unreachable": "check its address; a driver answers only while its application runs (spark.ui.enabled)",
    "timeout": "raise timeout, or interval where the driver has much else to do",
    "too_large": "lower spark.ui.retainedStages of the application",
    "not_spark": "give the address of a driver's or history server's page, without /api/v1",
    "redirected": "give the address that it leads to, e.g. that of YARN's proxy",
}


class SparkSettings(CollectorSettings):
    """`collectors: {spark: …}`. Off unless switched on: one process of a cluster asks, not every pod."""

    enabled: bool = False
    interval: Duration = Field(5_000, ge=1_000)  # visits between two readings cost nothing
    deadline: Duration = Field(120_000, ge=50)
    worth: int = Field(30, ge=0, le=100)
    urls: Annotated[tuple[str, ...], Field(max_length=32)] = ()  # of drivers (port 4040) and history servers (18080)
    refresh: Duration = Field(30_000, ge=1_000)
    timeout: Duration = Field(10_000, ge=100, le=60_000)  # of one answer
    applications: int = Field(20, ge=1, le=200)  # of one server
    running_stages: int = Field(10, ge=0, le=50)  # of one application
    ended_stages: int = Field(5, ge=0, le=50)  # of one application, the newest
    ended_applications: Duration = Field(3_600_000, ge=0)  # how long ago an application may have ended

    @field_validator("urls")
    @classmethod
    def _addresses(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        for url in urls:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError(f"{shown_url(url)!r}: give an address such as http://driver:4040")
            if parts.path.rstrip("/").endswith("/api/v1"):
                raise ValueError(f"{shown_url(url)!r}: leave /api/v1 out")
        if len({_server(url) for url in urls}) < len(urls):
            raise ValueError("two urls lead to one server: give each once")
        return urls


def _server(url: str) -> str:
    """The label's value: host, port and path, without a password that may stand before them."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return host + parts.path.rstrip("/")


@dataclass(slots=True)
class _Desk:
    """One server, and what its newest reading told."""

    server: str
    api: SparkApi
    found: dict[tuple[str, str], TaskBytes] = field(default_factory=dict)  # by name of the application and stage
    ended: dict[tuple[str, int, int], TaskBytes] = field(default_factory=dict)  # stages that will not change
    applications: int = 0
    left: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    failed: CollectError | None = None
    errors: int = 0


class SparkCollector:
    """Keeps nothing but what stages that ended did. A server that fails loses its own series only."""

    name: ClassVar[str] = NAME
    settings: ClassVar[type[CollectorSettings]] = SparkSettings
    metrics: ClassVar[tuple[MetricInfo, ...]] = METRICS

    def __init__(
        self,
        settings: SparkSettings,
        *,
        transport: httpx.BaseTransport | None = None,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        """`transport` None talks to the network; `timer` gives seconds, by which a reading ends."""
        self._settings, self._timer = settings, timer
        self._desks = [
            _Desk(_server(url), SparkApi(url, settings.timeout / 1000, transport, timer)) for url in settings.urls
        ]
        self._repeated = Repeated()
        self._read_ms: int | None = None
        self._samples: list[Sample] = []

    def probe(self) -> Status:
        """Degraded while a server does not answer; a driver comes and goes with its application."""
        if not self._desks:
            fix = "name drivers and history servers under `collectors: {spark: {urls: [http://driver:4040]}}`"
            return Status(Availability.UNAVAILABLE, "no_source", fix)
        for desk in self._desks:
            if desk.failed is not None:
                return Status(Availability.DEGRADED, desk.failed.reason, f"{desk.server}: {_fix(desk.failed)}")
        return Status(Availability.AVAILABLE)

    def sample(self, now_ms: int) -> Iterable[Sample]:
        """Asks every server when it is time, for three quarters of the deadline at most, and gives what is known."""
        # clocks may be set back
        if self._read_ms is None or not 0 <= now_ms - self._read_ms < self._settings.refresh:
            self._read_ms = now_ms
            end = self._timer() + self._settings.deadline * 0.75 / 1000
            for desk in self._desks:
                self._read(desk, now_ms, end)
            self._samples = list(self._told())
        return self._samples

    def sections(self, now_ms: int) -> Iterator[Section]:
        """As `sample`, written when the servers were asked, and in time to be found."""
        samples = list(self.sample(now_ms))
        yield self._repeated.section(self._read_ms or 0, samples, now_ms)

    def findings(self) -> Iterator[Finding]:
        """For `spikewatch doctor`: each server."""
        for desk in self._desks:
            status, detail = (
                Status(Availability.AVAILABLE),
                f"{desk.applications} applications, {len(desk.found)} stages",
            )
            if desk.failed is not None:
                status = Status(Availability.UNAVAILABLE, desk.failed.reason, _fix(desk.failed))
                detail = str(desk.failed)
            yield Finding(f"Spark {desk.server}", status, detail)

    def close(self) -> None:
        """Closes the connections."""
        for desk in self._desks:
            desk.api.close()

    def _told(self) -> Iterator[Sample]:
        together: dict[tuple[str, str], TaskBytes] = {}
        for desk in self._desks:
            for key, found in desk.found.items():
                together[key] = together[key].merged(found) if key in together else found
        for (app, number), found in together.items():
            labels = {"app": app, "stage": number}
            for stat, value in found.stats.items():
                yield _one("task_serialized_bytes", value, {**labels, "stat": stat})
            for kind, value in found.kinds.items():
                yield _one("task_max_bytes", value, {**labels, "kind": kind})
            yield _one("stage_tasks", found.tasks, labels)
        for desk in self._desks:
            yield from _about(desk)

    def _read(self, desk: _Desk, now_ms: int, end: float) -> None:
        started = self._timer()
        known, desk.ended, desk.found = desk.ended, {}, {}
        desk.applications, desk.left, desk.failed = 0, {"applications": 0, "stages": 0}, None
        try:
            applications = list(
                desk.api.applications(self._settings.applications, now_ms - self._settings.ended_applications)
            )
            for application in applications:
                if desk.applications >= self._settings.applications or self._timer() >= end:
                    desk.left["applications"] = len(applications) - desk.applications
                    break
                self._application(desk, application, known, end)
                desk.applications += 1
        except CollectError as e:
            desk.failed, desk.found = e, {}
            desk.errors += 1
        desk.seconds = self._timer() - started

    def _application(
        self, desk: _Desk, application: Application, known: dict[tuple[str, int, int], TaskBytes], end: float
    ) -> None:
        try:
            listed = desk.api.stages(application)
        except CollectError as e:
            if e.reason == "status_404":
                return  # it ended, or the history server forgot it, since it was listed
            if e.reason != "too_large":
                raise
            listed = desk.api.stages(application, "active")
        stages, left = chosen(
            (s for s in map(stage, listed) if s is not None), self._settings.running_stages, self._settings.ended_stages
        )
        desk.left["stages"] += left
        for number, one in enumerate(stages):
            if self._timer() >= end:
                desk.left["stages"] += len(stages) - number
                return
            key = (application.path, one.id, one.attempt)
            found = known.get(key) if not one.active else None
            if found is None:
                found = self._stage(desk.api, application, one)
            if not one.active:
                desk.ended[key] = found
            name = (application.name, str(one.id))
            desk.found[name] = desk.found[name].merged(found) if name in desk.found else found

    def _stage(self, api: SparkApi, application: Application, one: Stage) -> TaskBytes:
        quantiles = running = None
        if one.done and not (one.active and one.done > _MANY_TASKS):
            quantiles = api.quantiles(application, one.id, one.attempt)
        if one.active:
            running = api.running_tasks(application, one.id, one.attempt)
        return task_bytes(one, quantiles, running or ())


def _about(desk: _Desk) -> Iterator[Sample]:
    labels = {"server": desk.server}
    yield _one("up", float(desk.failed is None), labels)
    yield _one("read_errors_total", desk.errors, labels)
    yield _one("read_seconds", desk.seconds, labels)
    if desk.failed is None:
        yield _one("applications", desk.applications, labels)
        for what, count in desk.left.items():
            yield _one("left_out", count, {**labels, "what": what})


def _fix(error: CollectError) -> str:
    return _FIXES.get(error.reason, str(error))


def _one(metric: str, value: float, labels: dict[str, str]) -> Sample:
    return Sample(f"spikewatch_spark_{metric}", labels_of(labels), value)
