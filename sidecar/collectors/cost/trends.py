"""The pure functions behind the cost signals. None: not enough is known to say anything, which never fires."""

from __future__ import annotations

import calendar
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from statistics import median

from sidecar.collectors.cost.rows import Category
from sidecar.collectors.cost.totals import Totals

OPEN_DAYS = 2
"""The newest days are not final in any provider's data: late usage still comes in."""
WEEK = 7
LEAST_SHARE = 0.8  # of the days of a window that must have data
LEAST_DAYS = 3  # of a month before it is held against another: one Sunday is no month
LUMP = 2.0  # times the usual day: what is more was paid once, and says nothing about the days to come


def closed_until(totals: Totals, today: date) -> date:
    """The newest final day. A source that calls more than a week estimated means that the month is not invoiced yet:
    that says nothing about its days.
    """
    newest = last = today - timedelta(days=OPEN_DAYS)
    while last in totals.estimated:
        last -= timedelta(days=1)
        if newest - last > timedelta(days=WEEK):
            return newest
    return last


def daily_mean(totals: Totals, category: Category, last: date, days: int = WEEK) -> float | None:
    """Mean cost a day over the `days` days that end with `last`; None when too few of them have data."""
    wanted = [last - timedelta(days=n) for n in range(days)]
    known = [day for day in wanted if day in totals.billed]
    if len(known) < LEAST_SHARE * days:
        return None
    return sum(totals.effective.get((day, category), 0.0) for day in known) / len(known)


def weeks(totals: Totals, category: Category, today: date) -> tuple[float, float] | None:
    """Mean cost a day of the last seven final days and of the seven before."""
    last = closed_until(totals, today)
    newest, before = daily_mean(totals, category, last), daily_mean(totals, category, last - timedelta(days=WEEK))
    return None if newest is None or before is None else (newest, before)


@dataclass(frozen=True, slots=True)
class Months:
    """A month so far, and the same days of the month before."""

    current: float
    previous: float
    days: int


def month_to_date(values: Mapping[date, float], last: date) -> float | None:
    """The sum of the month up to `last`. None when too few of its days are known."""
    wanted = [last.replace(day=n) for n in range(1, last.day + 1)]
    if sum(day in values for day in wanted) < LEAST_SHARE * len(wanted):
        return None
    return sum(values.get(day, 0.0) for day in wanted)


def months(values: Mapping[date, float], last: date) -> Months | None:
    """Sums of the days that both months have, up to the day of `last`. None when one of them is not known that far, or
    they are too few.
    """
    before_end = last.replace(day=1) - timedelta(days=1)
    days = min(last.day, before_end.day)
    current, previous = (
        month_to_date(values, last.replace(day=days)),
        month_to_date(values, before_end.replace(day=days)),
    )
    return None if current is None or previous is None or days < LEAST_DAYS else Months(current, previous, days)


def by_day(totals: Totals, category: Category, *, quantity: bool = False) -> dict[date, float]:
    """A category's daily sums; days with any data count as 0 where the category has none."""
    table = totals.quantity if quantity else totals.effective
    return {day: table.get((day, category), 0.0) for day in totals.billed}


def forecast(totals: Totals, last: date) -> float | None:
    """The month's bill: so far, and the mean of the last seven final days for each day to come.

    A day that cost far more than is usual paid for something once (a fee, taxes): the usual stands in for it.
    """
    accrued = totals.accrued()
    month_days = calendar.monthrange(last.year, last.month)[1]
    so_far = [last.replace(day=n) for n in range(1, last.day + 1)]
    recent = [last - timedelta(days=n) for n in range(WEEK)]
    known = [accrued[day] for day in recent if day in accrued]
    if len(known) < LEAST_SHARE * WEEK:
        return None
    usual = median(known)
    days = [usual if day > LUMP * usual > 0 else day for day in known]
    return sum(accrued.get(day, 0.0) for day in so_far) + sum(days) / len(days) * (month_days - last.day)


def elapsed(last: date) -> float:
    """The share of its month that is over when `last` is."""
    return last.day / calendar.monthrange(last.year, last.month)[1]


def idle_days(
    daily_cpu: Mapping[date, float],
    daily_bytes: Mapping[date, float],
    last: date,
    *,
    cpu_below: float = 0.05,
    bytes_up_to: float = 0.0,
) -> int | None:
    """How many of the last seven days a resource was idle: mean CPU (0..1) below, and network bytes not over, a bound.

    None unless all seven have data of both: a machine that is off sends none, and is not idle but gone.
    """
    wanted = [last - timedelta(days=n) for n in range(WEEK)]
    if any(day not in daily_cpu or day not in daily_bytes for day in wanted):
        return None
    return sum(daily_cpu[day] < cpu_below and daily_bytes[day] <= bytes_up_to for day in wanted)


def percentile_95(values: Sequence[float]) -> float | None:
    """The nearest-rank 95th percentile; None of nothing."""
    return sorted(values)[max(0, -(-len(values) * 95 // 100) - 1)] if values else None
