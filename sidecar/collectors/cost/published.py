"""The samples that rules read, made of sums, comparisons and single resources."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta

from sidecar.collectors.cost import trends
from sidecar.collectors.cost.opencost import Efficiency
from sidecar.collectors.cost.resources import Volume
from sidecar.collectors.cost.rows import Category
from sidecar.collectors.cost.totals import Totals
from sidecar.model import Sample, labels_of

_TRENDS = (Category.VCPU, Category.GPU, Category.EGRESS, Category.PROVISIONED_IOPS)


def one(metric: str, value: float, **labels: str) -> Sample:
    """A sample of ours; `metric` without its prefix."""
    return Sample(f"spikewatch_{metric}", labels_of(labels), value)


def compared(totals: Totals, today: date) -> Iterator[Sample]:
    """Weeks, months and the forecast, where enough of them is known."""
    last = trends.closed_until(totals, today)
    for kind in _TRENDS:
        if (found := trends.weeks(totals, kind, today)) is not None:
            yield one("cost_daily", found[0], category=kind.value, window="last7")
            yield one("cost_daily", found[1], category=kind.value, window="previous7")
    if (months := trends.months(trends.by_day(totals, Category.EGRESS), last)) is not None:
        yield one("cost_month_to_date", months.current, category="egress", month="current")
        yield one("cost_month_to_date", months.previous, category="egress", month="previous")
    reads = trends.by_day(totals, Category.REQUESTS, quantity=True)
    if any(reads.values()) and (months := trends.months(reads, last)) is not None:
        yield one("object_store_reads", months.current, month="current")
        yield one("object_store_reads", months.previous, month="previous")
    accrued = totals.accrued()
    if (so_far := trends.month_to_date(accrued, last)) is not None:  # a budget needs no month before
        yield one("cost_month_to_date", so_far, category="all", month="current")
    if (months := trends.months(accrued, last)) is not None:
        yield one("cost_month_to_date", months.previous, category="all", month="previous")
    if (bill := trends.forecast(totals, last)) is not None:
        yield one("cost_forecast", bill)


def utilization(efficiency: Mapping[datetime, Efficiency], today: date) -> Iterator[Sample]:
    """CPU used over requested, of the last seven final days."""
    last = today - timedelta(days=trends.OPEN_DAYS)
    days = [at for at in efficiency if timedelta() <= last - at.astimezone(UTC).date() < timedelta(days=trends.WEEK)]
    together = Efficiency(sum(efficiency[d].used for d in days), sum(efficiency[d].requested for d in days))
    if len(days) >= trends.LEAST_SHARE * trends.WEEK and together.ratio is not None:
        yield one("cost_cpu_utilization_ratio", together.ratio)


def volumes(found: Iterable[Volume]) -> Iterator[Sample]:
    """What is paid for, and what was used where that is known."""
    for volume in found:
        yield one("volume_iops", volume.provisioned, volume=volume.name, stat="provisioned")
        if volume.used is not None:
            yield one("volume_iops", volume.used, volume=volume.name, stat="p95_7d")


def idle(days: Mapping[str, int]) -> Iterator[Sample]:
    """By resource."""
    for name, number in sorted(days.items()):
        yield one("cost_idle_days", float(number), resource=name)
