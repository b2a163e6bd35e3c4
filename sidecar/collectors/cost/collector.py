"""The collector `cost`: reads bills a few times a day and publishes what the cost signals compare. One per cluster."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from sidecar.collectors.cost import trends
from sidecar.collectors.cost.approvals import Approvals, load_approvals
from sidecar.collectors.cost.aws import ClientFactory, CostExplorer, boto_clients, budget_amount
from sidecar.collectors.cost.catalogue import METRICS
from sidecar.collectors.cost.focus import FocusFile
from sidecar.collectors.cost.opencost import Efficiency, OpenCost
from sidecar.collectors.cost.rows import Category, CostRow, RowProblem
from sidecar.collectors.cost.totals import Totals
from sidecar.errors import CollectError, ConfigError
from sidecar.hooks import CollectorSettings
from sidecar.model import Availability, MetricInfo, Sample, Status, labels_of
from sidecar.settings import Duration

if TYPE_CHECKING:
    import httpx

_TRENDS = (Category.VCPU, Category.GPU, Category.EGRESS)


class Budget(BaseModel):
    """A monthly amount, or the name of an AWS budget that has one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    amount: float | None = Field(None, gt=0)
    aws_account: str = ""


class CostSettings(CollectorSettings):
    """`collectors: {cost: …}`. Off unless switched on: one process of a cluster reads the bill, not every pod."""

    globs: ClassVar[tuple[str, ...]] = ("focus",)

    enabled: bool = False
    interval: Duration = Field(60_000, ge=1_000)
    deadline: Duration = Field(600_000, ge=50)
    refresh: Duration = Field(21_600_000, ge=60_000)  # six hours: billing APIs cost money, exports come daily
    focus: tuple[str, ...] = ()  # paths, globs or URLs of FOCUS exports
    aws: bool = False
    opencost: str = ""  # base URL
    currency: str = "USD"  # of OpenCost, which does not say
    budgets: tuple[Budget, ...] = ()
    approvals: Path | None = None


class CostCollector:
    """Keeps the last reading; a source that fails loses its own numbers only."""

    name: ClassVar[str] = "cost"
    settings: ClassVar[type[CollectorSettings]] = CostSettings
    metrics: ClassVar[tuple[MetricInfo, ...]] = METRICS

    def __init__(
        self,
        settings: CostSettings,
        *,
        clients: Callable[[], ClientFactory] = boto_clients,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """`clients` makes boto3's clients, `transport` carries requests to OpenCost."""
        self._settings, self._clients, self._transport = settings, clients, transport
        self._read_ms: int | None = None
        self._samples: list[Sample] = []
        self._status = Status(Availability.AVAILABLE)
        self._failure: CollectError | None = None  # of a reading that gave nothing at all
        self._rows: dict[str, list[int]] = {}

    def probe(self) -> Status:
        """What the newest reading came to.

        Never UNAVAILABLE for a reading that failed: what is unavailable is not sampled, and so never read again.
        """
        s = self._settings
        if not (s.focus or s.aws or s.opencost):
            fix = "name FOCUS exports, `aws: true` or an OpenCost server under `collectors: {cost: …}`"
            return Status(Availability.UNAVAILABLE, "no_source", fix)
        return self._status

    def sample(self, now_ms: int) -> Iterable[Sample]:
        """Reads when it is time. Raises CollectError while the newest reading gave nothing."""
        if self._read_ms is None or now_ms - self._read_ms >= self._settings.refresh:
            self._read(now_ms)
        if self._failure is not None:
            raise self._failure
        return self._samples

    def close(self) -> None:
        """Nothing is held."""

    # --- reading --------------------------------------------------------------------------------------------------

    def _read(self, now_ms: int) -> None:
        self._read_ms = now_ms
        today = datetime.fromtimestamp(now_ms / 1000, UTC).date()
        failed: list[CollectError] = []
        samples: list[Sample] = []
        totals = Totals()
        efficiency: dict[datetime, Efficiency] = {}
        newest: dict[str, date | None] = {}
        for source, rows in self._sources(today, efficiency):
            own = Totals()
            try:
                own.take(rows)
            except CollectError as e:
                failed.append(e)
                continue
            # A cloud's SDK raises what it likes; the other sources still have their numbers.
            except Exception as e:  # noqa: BLE001
                failed.append(CollectError("cost", "exception", f"{source}: {type(e).__name__}: {e}"))
                continue
            finally:
                counted = self._rows.setdefault(source, [0, 0])
                counted[0] += own.rows
                counted[1] += own.skipped
            totals.merge(own)  # only now: half of a bill would look like a fall in cost
            newest[source] = max(filter(None, (newest.get(source), own.last_day)), default=None)
        for source, day in newest.items():
            samples.append(_one("cost_last_read_timestamp_seconds", now_ms / 1000, source=source))
            if day is not None:
                midnight = datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()
                samples.append(_one("cost_newest_day_timestamp_seconds", midnight, source=source))
        for source, (rows_read, skipped) in self._rows.items():
            samples.append(_one("cost_rows_total", rows_read, source=source))
            samples.append(_one("cost_rows_skipped_total", skipped, source=source))
        if totals.rows and not totals.mixed_currencies:
            samples += _trend_samples(totals, today)
            samples += _utilization(efficiency)
            samples += self._budgets(totals, today, failed)
        self._samples = samples
        self._status = _status(failed, totals)
        self._failure = failed[0] if failed and not totals.rows else None

    def _sources(
        self, today: date, efficiency: dict[datetime, Efficiency]
    ) -> Iterator[tuple[str, Iterable[CostRow | RowProblem]]]:
        s = self._settings
        seen: set[str] = set()
        for pattern in s.focus:
            yield "focus", _focus_rows(pattern, seen)
        if s.opencost:
            yield "opencost", self._opencost_rows(efficiency)
        if s.aws:
            yield "aws", self._aws_rows(today)

    def _opencost_rows(self, efficiency: dict[datetime, Efficiency]) -> Iterator[CostRow | RowProblem]:
        import httpx

        s = self._settings
        with httpx.Client(base_url=s.opencost, timeout=60, transport=self._transport, trust_env=False) as client:
            reader = OpenCost(client, currency=s.currency)
            yield from reader.rows()
            efficiency.update(reader.efficiency)

    def _aws_rows(self, today: date) -> Iterator[CostRow | RowProblem]:
        yield from CostExplorer(self._clients(), today).rows()

    def _budgets(self, totals: Totals, today: date, failed: list[CollectError]) -> Iterator[Sample]:
        approvals = self._approvals(failed)
        last = trends.closed_until(totals, today)
        for budget in self._settings.budgets:
            amount = budget.amount
            if amount is None:
                try:
                    amount = budget_amount(self._clients(), budget.aws_account, budget.name)
                except CollectError as e:
                    failed.append(e)
                    continue
            yield _one("budget_amount", amount, budget=budget.name)
            yield _one("budget_elapsed_ratio", trends.elapsed(last), budget=budget.name)
            approved = approvals.amount(budget.name, today)
            billed = sum(totals.billed.get(last.replace(day=n), 0.0) for n in range(1, last.day + 1))
            yield _one("budget_approved", float(approved is not None and billed <= approved), budget=budget.name)

    def _approvals(self, failed: list[CollectError]) -> Approvals:
        path = self._settings.approvals
        if path is None:
            return Approvals()
        try:
            return load_approvals(path)
        except (ConfigError, OSError) as e:
            failed.append(CollectError("cost", "approvals", f"nothing counts as approved: {e}"))
            return Approvals()


def _focus_rows(pattern: str, seen: set[str]) -> Iterator[CostRow | RowProblem]:
    """Without the files in `seen`: one that two patterns match is one bill, not two."""
    paths = sorted(glob.glob(pattern)) if "://" not in pattern else [pattern]
    if not paths:
        raise CollectError("cost", "no_file", f"{pattern}: no such file")
    for path in paths:
        file = path if "://" in path else os.path.realpath(path)
        if file not in seen:
            seen.add(file)
            yield from FocusFile(path).rows()


def _trend_samples(totals: Totals, today: date) -> Iterator[Sample]:
    last = trends.closed_until(totals, today)
    for kind in _TRENDS:
        if (found := trends.weeks(totals, kind, today)) is not None:
            yield _one("cost_daily", found[0], category=kind.value, window="last7")
            yield _one("cost_daily", found[1], category=kind.value, window="previous7")
    if (months := trends.month_to_date(trends.by_day(totals, Category.EGRESS), last)) is not None:
        yield _one("cost_month_to_date", months.current, category="egress", month="current")
        yield _one("cost_month_to_date", months.previous, category="egress", month="previous")
    reads = trends.by_day(totals, Category.REQUESTS, quantity=True)
    if any(reads.values()) and (months := trends.month_to_date(reads, last)) is not None:
        yield _one("object_store_reads", months.current, month="current")
        yield _one("object_store_reads", months.previous, month="previous")
    if (months := trends.month_to_date(totals.billed, last)) is not None:
        yield _one("cost_month_to_date", months.current, category="all", month="current")
        yield _one("cost_month_to_date", months.previous, category="all", month="previous")
    if (bill := trends.forecast(totals, last)) is not None:
        yield _one("cost_forecast", bill)


def _utilization(efficiency: dict[datetime, Efficiency]) -> Iterator[Sample]:
    days = sorted(efficiency)[-trends.OPEN_DAYS - trends.WEEK : -trends.OPEN_DAYS]
    together = Efficiency(sum(efficiency[d].used for d in days), sum(efficiency[d].requested for d in days))
    if len(days) >= trends.LEAST_SHARE * trends.WEEK and together.ratio is not None:
        yield _one("cost_cpu_utilization_ratio", together.ratio)


def _one(metric: str, value: float, **labels: str) -> Sample:
    return Sample(f"spikewatch_{metric}", labels_of(labels), value)


def _status(failed: list[CollectError], totals: Totals) -> Status:
    if totals.mixed_currencies:
        found = ", ".join(sorted(totals.currencies))
        return Status(Availability.DEGRADED, "mixed_currencies", f"give exports of one currency, not of {found}")
    if failed:
        return Status(Availability.DEGRADED, failed[0].reason, str(failed[0]))
    if totals.skipped:
        return Status(Availability.DEGRADED, "rows_skipped", f"look at {totals.problems[0]}")
    return Status(Availability.AVAILABLE)
