"""The collector `cost`: reads bills a few times a day and publishes what the cost signals compare. One per cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, ClassVar, TypeVar

from sidecar.collectors.cost import published, resources, trends
from sidecar.collectors.cost.approvals import APPROVED, Approved, Bill
from sidecar.collectors.cost.aws import ClientFactory, CostExplorer, boto_clients, budget_amount
from sidecar.collectors.cost.catalogue import METRICS
from sidecar.collectors.cost.focus import FocusFile, matching
from sidecar.collectors.cost.kept import Kept
from sidecar.collectors.cost.opencost import Efficiency, OpenCost
from sidecar.collectors.cost.published import one
from sidecar.collectors.cost.resources import Bounds, PodDay
from sidecar.collectors.cost.rows import CostRow, RowProblem
from sidecar.collectors.cost.settings import CostSettings
from sidecar.collectors.cost.totals import Totals
from sidecar.collectors.repeated import Repeated
from sidecar.errors import CollectError
from sidecar.hooks import CollectorSettings, Section
from sidecar.model import Availability, MetricInfo, Sample, Status

if TYPE_CHECKING:
    import httpx

IDLE_CPU = 0.05
"""Mean of a day under which a resource is idle. The requirements' number."""

_T = TypeVar("_T")


@dataclass(slots=True)
class _Reading:
    """What one round over all sources gathers."""

    today: date
    totals: Totals = field(default_factory=Totals)
    efficiency: dict[datetime, Efficiency] = field(default_factory=dict)
    pod_days: dict[str, dict[date, PodDay]] = field(default_factory=dict)
    failed: list[CollectError] = field(default_factory=list)
    left_out: int = 0  # resources beyond max_resources

    def attempt(self, source: str, work: Callable[[], _T], otherwise: _T) -> _T:
        """What `work` gives. A source that fails is noted; the others still have their numbers."""
        try:
            return work()
        except CollectError as e:
            self.failed.append(e)
        # A cloud's SDK raises what it likes.
        except Exception as e:  # noqa: BLE001
            self.failed.append(CollectError("cost", "exception", f"{source}: {type(e).__name__}: {e}"))
        return otherwise


class CostCollector:
    """Keeps the last reading; a source that fails loses its own numbers only."""

    name: ClassVar[str] = "cost"
    settings: ClassVar[type[CollectorSettings]] = CostSettings
    metrics: ClassVar[tuple[MetricInfo, ...]] = METRICS

    def __init__(
        self,
        settings: CostSettings,
        *,
        clients: Callable[..., ClientFactory] = boto_clients,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """`clients` makes boto3's clients, of a region where one is given; `transport` carries requests to OpenCost."""
        self._settings, self._clients, self._transport = settings, clients, transport
        self._read_ms: int | None = None
        self._changed_ms = 0
        self._samples: list[Sample] = []
        self._status = Status(Availability.AVAILABLE)
        self._failure: CollectError | None = None  # of a reading that gave nothing at all
        self._rows: dict[str, list[int]] = {}
        self._repeated = Repeated()
        self._kept = Kept(settings.cache, settings.model_dump_json())
        self._approved = Approved(settings.approvals)

    def probe(self) -> Status:
        """What the newest reading came to.

        Never UNAVAILABLE for a reading that failed: what is unavailable is not sampled, and so never read again.
        """
        s = self._settings
        if not (s.focus or s.aws or s.opencost or s.cloudwatch):
            fix = "name FOCUS exports, `aws: true` or an OpenCost server under `collectors: {cost: …}`"
            return Status(Availability.UNAVAILABLE, "no_source", fix)
        if self._status.state is not Availability.AVAILABLE:
            return self._status
        if self._approved.problem:
            return Status(Availability.DEGRADED, "approvals", f"nothing counts as approved: {self._approved.problem}")
        if strange := self._approved.budgets() - {budget.name for budget in s.budgets}:
            fix = f"{s.approvals}: no budget is called {', '.join(sorted(strange))}: correct it, or add it to `budgets`"
            return Status(Availability.DEGRADED, "approvals", fix)
        return self._status

    def sample(self, now_ms: int) -> Iterable[Sample]:
        """Reads when it is time. Raises CollectError while the newest reading gave nothing."""
        refresh = self._settings.refresh
        if self._read_ms is None and (kept := self._kept.load(now_ms, refresh)) is not None:
            self._read_ms, self._samples = kept
            self._approved.bill = _kept_bill(self._samples, self._read_ms)
        if self._read_ms is None or not 0 <= now_ms - self._read_ms < refresh:  # clocks may be set back
            self._read(now_ms)
        if self._failure is not None:
            self._repeated.forget()
            raise self._failure
        if self._approved.changed():  # whoever signs an approval does not want to wait for the next bill
            self._samples = [s for s in self._samples if s.metric != APPROVED] + list(self._approved.samples())
            self._changed_ms = now_ms
        return self._samples

    def sections(self, now_ms: int) -> Iterator[Section]:
        """As `sample`; what was read hours ago is written once a minute only."""
        samples = list(self.sample(now_ms))
        yield self._repeated.section(max(self._read_ms or 0, self._changed_ms), samples, now_ms)

    def close(self) -> None:
        """Nothing is held."""

    # --- reading --------------------------------------------------------------------------------------------------

    def _read(self, now_ms: int) -> None:
        self._read_ms = self._changed_ms = now_ms
        reading = _Reading(datetime.fromtimestamp(now_ms / 1000, UTC).date())
        newest: dict[str, date | None] = {}
        for source, rows in self._sources(reading):
            own = Totals()
            taken = reading.attempt(source, lambda own=own, rows=rows: own.take(rows), None)  # type: ignore[misc]
            counted = self._rows.setdefault(source, [0, 0])
            counted[0] += own.rows
            counted[1] += own.skipped
            if taken is not None:  # else half of a bill would look like a fall in cost
                if source != "opencost" or not self._billed():
                    reading.totals.merge(own)
                newest[source] = max(filter(None, (newest.get(source), own.last_day)), default=None)
        samples = list(self._origins(newest, now_ms))
        totals = reading.totals
        if totals.rows and not totals.mixed_currencies:
            samples += published.compared(totals, reading.today)
            samples += self._budgets(reading)
        single = [*published.utilization(reading.efficiency, reading.today), *self._resources(reading)]
        self._samples = samples + single
        self._status = _status(reading)
        self._failure = reading.failed[0] if reading.failed and not totals.rows and not single else None
        if not reading.failed:
            self._kept.save(now_ms, self._samples)

    def _origins(self, newest: dict[str, date | None], now_ms: int) -> Iterator[Sample]:
        for source, day in newest.items():
            yield one("cost_last_read_timestamp_seconds", now_ms / 1000, source=source)
            if day is not None:
                midnight = datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()
                yield one("cost_newest_day_timestamp_seconds", midnight, source=source)
        for source, (rows_read, skipped) in self._rows.items():
            yield one("cost_rows_total", rows_read, source=source)
            yield one("cost_rows_skipped_total", skipped, source=source)

    def _sources(self, reading: _Reading) -> Iterator[tuple[str, Iterable[CostRow | RowProblem]]]:
        s = self._settings
        seen: set[str] = set()
        for pattern in s.focus:
            yield "focus", _focus_rows(pattern, seen)
        if s.opencost:
            yield "opencost", self._opencost_rows(reading)
        if s.aws:
            yield "aws", self._aws_rows(reading.today)

    def _billed(self) -> bool:
        """Whether there is a bill: then what OpenCost reckons is part of it, and would count twice."""
        return bool(self._settings.focus or self._settings.aws)

    def _opencost_rows(self, reading: _Reading) -> Iterator[CostRow | RowProblem]:
        import httpx

        s = self._settings
        with httpx.Client(base_url=s.opencost, timeout=60, transport=self._transport, trust_env=False) as client:
            # Two weeks and the open days; where it stands for the bill, a whole month for its budgets.
            reader = OpenCost(client, window="21d" if self._billed() else "35d", currency=s.currency)
            yield from reader.rows()
            reading.efficiency.update(reader.efficiency)
            reading.pod_days.update(reader.days)

    def _aws_rows(self, today: date) -> Iterator[CostRow | RowProblem]:
        yield from CostExplorer(self._clients(), today).rows()

    def _resources(self, reading: _Reading) -> Iterator[Sample]:
        """Volumes and idle resources. Without CloudWatch, what is provisioned is still told."""
        s, today = self._settings, reading.today
        bounds = Bounds(s.max_resources, IDLE_CPU, s.idle_network_bytes)
        billed = resources.billed_volumes(reading.totals, today)

        made: dict[str, ClientFactory] = {}

        def clients(region: str) -> ClientFactory:
            if region not in made:
                made[region] = self._clients(region)
            return made[region]

        def volumes(regions: tuple[str, ...]) -> list[resources.Volume]:
            return resources.volumes(billed, regions, clients, today, bounds)

        found = reading.attempt("cloudwatch", lambda: volumes(s.cloudwatch), None)
        yield from published.volumes(volumes(()) if found is None else found)
        nothing: dict[str, int] = {}
        idle = reading.attempt(
            "cloudwatch", lambda: resources.idle_instances(s.cloudwatch, clients, today, bounds), nothing
        )
        yield from published.idle({**resources.idle_pods(reading.pod_days, today, bounds), **idle})
        reading.left_out = bounds.left_out

    def _budgets(self, reading: _Reading) -> Iterator[Sample]:
        accrued = reading.totals.accrued()
        last = trends.closed_until(reading.totals, reading.today)
        known: list[str] = []
        for budget in self._settings.budgets:
            amount = budget.amount
            if amount is None:
                try:
                    amount = budget_amount(self._clients(), budget.aws_account, budget.name)
                except CollectError as e:
                    reading.failed.append(e)
                    continue
            yield one("budget_amount", amount, budget=budget.name)
            yield one("budget_elapsed_ratio", trends.elapsed(last), budget=budget.name)
            known.append(budget.name)
        billed = sum(accrued.get(last.replace(day=n), 0.0) for n in range(1, last.day + 1))
        # Of the bill's newest day: on the first days of a month it is still the month before that is judged.
        self._approved.bill = Bill(tuple(known), last, billed)
        self._approved.changed()
        yield from self._approved.samples()


def _focus_rows(pattern: str, seen: set[str]) -> Iterator[CostRow | RowProblem]:
    """Without the files in `seen`: one that two patterns match is one bill, not two."""
    paths = matching(pattern)
    if not paths:
        raise CollectError("cost", "no_file", f"{pattern}: no such file")
    for path in paths:
        file = path if "://" in path else os.path.realpath(path)
        if file not in seen:
            seen.add(file)
            yield from FocusFile(path).rows()


def _kept_bill(samples: Iterable[Sample], read_ms: int) -> Bill | None:
    """What approvals are held against, of a reading made before a restart."""
    last = datetime.fromtimestamp(read_ms / 1000, UTC).date() - timedelta(days=trends.OPEN_DAYS)
    billed, names = None, []
    for sample in samples:
        labels = dict(sample.labels)
        if sample.metric == APPROVED:
            names.append(labels["budget"])
        elif sample.metric == "spikewatch_cost_month_to_date" and labels == {"category": "all", "month": "current"}:
            billed = sample.value
    return None if billed is None else Bill(tuple(names), last, billed)


def _status(reading: _Reading) -> Status:
    failed, totals = reading.failed, reading.totals
    if totals.mixed_currencies:
        found = ", ".join(sorted(totals.currencies))
        return Status(Availability.DEGRADED, "mixed_currencies", f"give exports of one currency, not of {found}")
    if failed:
        return Status(Availability.DEGRADED, failed[0].reason, str(failed[0]))
    if totals.skipped:
        return Status(Availability.DEGRADED, "rows_skipped", f"look at {totals.problems[0]}")
    if reading.left_out:
        fix = f"{reading.left_out} volumes, instances or pods have no series: raise max_resources"
        return Status(Availability.DEGRADED, "too_many_resources", fix)
    return Status(Availability.AVAILABLE)
