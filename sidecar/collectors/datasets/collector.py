"""The collector `datasets`: reads each configured dataset about once an hour. One per cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

from sidecar.collectors.datasets.catalogue import METRICS
from sidecar.collectors.datasets.reading import Footers, Limits, Listing, footers, listing, stats
from sidecar.collectors.datasets.stores import NAME, store
from sidecar.collectors.repeated import Repeated
from sidecar.errors import CollectError, shown_url
from sidecar.hooks import CollectorSettings, Section
from sidecar.model import Availability, Finding, MetricInfo, Sample, Status, labels_of
from sidecar.settings import Duration

_RETRY_MS = 120_000  # after a reading that failed: listing nothing costs little, and an alert waits five minutes for it
_ROUND_S = 60.0  # no further dataset is begun in one sample after this: its series would be missed

_FIXES = {
    "no_fsspec": "install spikewatch[cluster]",
    "no_protocol": "install the fsspec package of this protocol, e.g. s3fs for s3:// or gcsfs for gs://",
    "not_found": "correct its path, or mount it into this container",
    "denied": "let this process list the folder and read its files",
    "no_pyarrow": "install spikewatch[cluster] to read footers; sizes are told without",
    "no_files": "name the folder that holds .parquet files",
    "unreadable_folders": "let this process list every folder; one that vanished meanwhile is no harm",
    "unreadable_footers": "look at the file named: it is damaged, or not Parquet",
    "left_out": "raise max_files or timeout, or name a part of the dataset",
}


class Dataset(BaseModel):
    """A folder of Parquet files, or one file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[\w.:/-]+$", max_length=64)  # the label's value; {1,64} would take 7 MB
    path: str  # absolute, or a URL that fsspec opens
    options: dict[str, Any] = {}  # fsspec's storage options

    @field_validator("path")
    @classmethod
    def _anchored(cls, path: str) -> str:
        if not path.startswith("/") and "://" not in path:
            raise ValueError(f"{path!r}: give an absolute path or a URL such as s3://bucket/folder")
        return path


class DatasetsSettings(CollectorSettings):
    """`collectors: {datasets: …}`. Off unless switched on: one process of a cluster lists them, not every pod."""

    enabled: bool = False
    interval: Duration = Field(5_000, ge=1_000)  # visits between two readings cost nothing
    deadline: Duration = Field(600_000, ge=50)
    worth: int = Field(20, ge=0, le=100)
    datasets: Annotated[tuple[Dataset, ...], Field(max_length=100)] = ()
    refresh: Duration = Field(3_600_000, ge=60_000)  # object stores bill each thousand names of a listing
    timeout: Duration = Field(120_000, ge=1_000)  # of one reading: what it has seen by then counts
    max_files: int = Field(100_000, ge=1, le=10_000_000)
    footers: int = Field(20, ge=0, le=1_000)  # files of each dataset whose footers are read

    @field_validator("datasets")
    @classmethod
    def _distinct(cls, datasets: tuple[Dataset, ...]) -> tuple[Dataset, ...]:
        names = [one.name for one in datasets]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two datasets are called {', '.join(twice)}: give each a name of its own")
        return datasets


@dataclass(slots=True)
class _Desk:
    """One dataset, and what its newest reading told."""

    dataset: Dataset
    read_ms: int | None = None
    wait_ms: int = 0  # from then to the next reading
    samples: tuple[Sample, ...] = ()
    status: Status = Status(Availability.UNAVAILABLE, "not_read_yet")
    detail: str = ""
    failed: CollectError | None = None
    errors: int = 0


class DatasetsCollector:
    """Keeps each dataset's newest reading; one that fails loses its own series only."""

    name: ClassVar[str] = NAME
    settings: ClassVar[type[CollectorSettings]] = DatasetsSettings
    metrics: ClassVar[tuple[MetricInfo, ...]] = METRICS

    def __init__(self, settings: DatasetsSettings, *, timer: Callable[[], float] = time.monotonic) -> None:
        """`timer` gives seconds, by which a reading ends."""
        self._settings, self._timer = settings, timer
        self._desks = [_Desk(dataset) for dataset in settings.datasets]
        self._repeated = Repeated()
        self._read_ms = 0  # when the newest reading of any of them was made

    def probe(self) -> Status:
        """The worst that was found. Never UNAVAILABLE for a reading that failed: it would not be tried again."""
        if not self._desks:
            fix = "name Parquet datasets under `collectors: {datasets: {datasets: [{name: …, path: …}]}}`"
            return Status(Availability.UNAVAILABLE, "no_source", fix)
        for desk in self._desks:
            if desk.read_ms is not None and desk.status.state is not Availability.AVAILABLE:
                return Status(
                    Availability.DEGRADED, desk.status.reason, f"{desk.dataset.name}: {desk.status.fix or desk.detail}"
                )
        return Status(Availability.AVAILABLE)

    def sample(self, now_ms: int) -> Iterable[Sample]:
        """Reads what is due, for a minute at most, and gives what is known. Raises CollectError where all failed."""
        end = self._timer() + _ROUND_S
        for desk in self._desks:
            waits = desk.read_ms is not None and 0 <= now_ms - desk.read_ms < desk.wait_ms  # clocks may be set back
            if not waits and self._timer() < end:
                self._read(desk, now_ms)
                self._read_ms = now_ms
        failed = [desk.failed for desk in self._desks if desk.failed is not None]
        if failed and len(failed) == len(self._desks):
            self._repeated.forget()
            raise failed[0]
        return [sample for desk in self._desks for sample in (*desk.samples, _errors(desk))]

    def sections(self, now_ms: int) -> Iterator[Section]:
        """As `sample`, written when something was read, and in time to be found."""
        samples = list(self.sample(now_ms))
        yield self._repeated.section(self._read_ms, samples, now_ms)

    def findings(self) -> Iterator[Finding]:
        """For `spikewatch doctor`: each dataset."""
        for desk in self._desks:
            yield Finding(f"dataset {desk.dataset.name} ({shown_url(desk.dataset.path)})", desk.status, desk.detail)

    def close(self) -> None:
        """Nothing is held."""

    def _read(self, desk: _Desk, now_ms: int) -> None:
        desk.read_ms, desk.wait_ms = now_ms, self._settings.refresh
        try:
            self._reading(desk, now_ms)
            desk.failed = None
        except CollectError as e:
            desk.failed, desk.samples, desk.detail = e, (), str(e)
            desk.errors += 1
            desk.status = Status(Availability.UNAVAILABLE, e.reason, _FIXES.get(e.reason, str(e)))
            desk.wait_ms = min(_RETRY_MS, self._settings.refresh)

    def _reading(self, desk: _Desk, now_ms: int) -> None:
        dataset, settings, started = desk.dataset, self._settings, self._timer()
        end = started + settings.timeout / 1000
        limits = Limits(settings.max_files, settings.footers, lambda: self._timer() >= end)
        try:
            place = store(dataset.path, dataset.options)
            listed = listing(place, limits, dataset.name)
        except CollectError:
            raise
        except FileNotFoundError:
            raise CollectError(NAME, "not_found", f"{shown_url(dataset.path)}: no such file or folder") from None
        except PermissionError as e:
            raise CollectError(NAME, "denied", f"{shown_url(dataset.path)}: {e}") from e
        # A cloud's library raises what it likes; the other datasets still have their numbers.
        except Exception as e:
            raise CollectError(NAME, "unlisted", f"{shown_url(dataset.path)}: {type(e).__name__}: {e}") from e
        status = Status(Availability.AVAILABLE)
        read = Footers()
        try:
            read = footers(place, listed.sample, limits)
        except CollectError as e:
            status = Status(Availability.DEGRADED, e.reason, _FIXES[e.reason])
        labels = {"dataset": dataset.name}
        desk.samples = (
            *_samples(labels, listed, read),
            _one("last_read_timestamp_seconds", now_ms / 1000, labels),
            _one("read_seconds", self._timer() - started, labels),
        )
        desk.status, desk.detail = _judged(status, listed, read)


def _samples(labels: dict[str, str], listed: Listing, read: Footers) -> Iterator[Sample]:
    yield _one("files", len(listed.sizes), labels)
    yield _one("bytes", sum(listed.sizes), labels)
    for stat, value in stats(listed.sizes):
        yield _one("file_size_bytes", value, {**labels, "stat": stat})
    yield _one("footers", len(read.rows), labels)
    for stat, value in stats(read.groups):
        yield _one("row_group_bytes", value, {**labels, "stat": stat})
    if read.rows:
        yield _one("row_groups_per_file", len(read.groups) / len(read.rows), labels)
        yield _one("rows_per_file", sum(read.rows) / len(read.rows), labels)
    for what, count in (
        ("folders", listed.folders_left),
        ("unreadable_folders", listed.unreadable),
        ("files", listed.files_left),
        ("empty_files", listed.empty),
        ("unreadable_footers", read.unreadable),
        ("footers", read.left),
    ):
        yield _one("left_out", count, {**labels, "what": what})


def _judged(status: Status, listed: Listing, read: Footers) -> tuple[Status, str]:
    """The status, and a line for people."""
    count = len(listed.sizes)
    mean = f", {sum(listed.sizes) / count / (1 << 20):.1f} MiB on average" if count else ""
    detail = f"{count} files{mean}; {len(read.rows)} footers read"
    reason = ""
    if read.unreadable:
        reason, detail = "unreadable_footers", f"{detail}; {read.problem}"
    if listed.unreadable:
        reason, detail = "unreadable_folders", f"{detail}; {listed.problem}"
    if listed.folders_left or listed.files_left:
        reason = "left_out"
        detail += f"; {listed.folders_left} folders and {listed.files_left} files not looked at"
    if not count:
        reason = "no_files"
    return (Status(Availability.DEGRADED, reason, _FIXES[reason]) if reason else status), detail


def _errors(desk: _Desk) -> Sample:
    return _one("read_errors_total", desk.errors, {"dataset": desk.dataset.name})


def _one(metric: str, value: float, labels: dict[str, str]) -> Sample:
    return Sample(f"spikewatch_dataset_{metric}", labels_of(labels), value)
