"""What is kept of a stream of charges: sums by day and category, in one pass and little memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date, timedelta

from sidecar.collectors.cost.rows import Category, CostRow, RowProblem

KEPT_PROBLEMS = 20
KEPT_VOLUMES = 20_000  # a volume's meters; what is beyond is not looked at
DAY = timedelta(days=1)
MONTH = timedelta(days=31, hours=1)  # with the hour that a change of clocks adds


@dataclass(slots=True)
class Provisioned:
    """What a meter of a volume counted on the newest day it was seen: IOPS × hours, and hours."""

    day: date
    iops_hours: float
    hours: float
    region: str

    def take(self, day: date, iops_hours: float, hours: float) -> None:
        """Adds to the day; a newer day begins anew."""
        if day > self.day:
            self.day, self.iops_hours, self.hours = day, 0.0, 0.0
        if day == self.day:
            self.iops_hours += iops_hours
            self.hours += hours


@dataclass(slots=True)
class Totals:
    """By day. Trends use effective cost of usage without corrections; budgets use all that is billed."""

    effective: dict[tuple[date, Category], float] = field(default_factory=dict)
    quantity: dict[tuple[date, Category], float] = field(default_factory=dict)
    billed: dict[date, float] = field(default_factory=dict)  # by the day on which a charge's period began
    moved: dict[date, float] = field(default_factory=dict)  # what spreading charges over their periods adds to a day
    vcpu_hours: dict[date, float] = field(default_factory=dict)
    provisioned: dict[tuple[str, str], Provisioned] = field(default_factory=dict)  # by resource and meter
    estimated: set[date] = field(default_factory=set)
    currencies: Counter[str] = field(default_factory=Counter)
    rows: int = 0
    skipped: int = 0
    problems: list[RowProblem] = field(default_factory=list)  # the first few, to be shown

    def take(self, rows: Iterable[CostRow | RowProblem]) -> Totals:
        """Takes everything in; the same object."""
        effective, quantity, billed = self.effective, self.quantity, self.billed
        for row in rows:
            if isinstance(row, RowProblem):
                self.skipped += 1
                if len(self.problems) < KEPT_PROBLEMS:
                    self.problems.append(row)
                continue
            self.rows += 1
            self.currencies[row.currency] += 1
            day = row.start.date()
            billed[day] = billed.get(day, 0.0) + row.billed
            if DAY < row.end - row.start <= MONTH and row.billed:
                self._spread(day, row)
            if row.estimated:
                self.estimated.add(day)
            if row.usage and not row.correction:
                key = (day, row.category)
                effective[key] = effective.get(key, 0.0) + row.effective
                quantity[key] = quantity.get(key, 0.0) + row.quantity
                if row.vcpu_hours:
                    self.vcpu_hours[day] = self.vcpu_hours.get(day, 0.0) + row.vcpu_hours
                if row.iops_hours and row.resource:
                    hours = (row.end - row.start).total_seconds() / 3600
                    self._provision((row.resource, row.meter), day, row.iops_hours, hours, row.region)
        return self

    def _spread(self, day: date, row: CostRow) -> None:
        """A month's fee belongs to all its days: on the first it would look like a spike."""
        days = ((row.end - timedelta(microseconds=1)).date() - day).days + 1
        self.moved[day] = self.moved.get(day, 0.0) - row.billed
        for n in range(days):
            at = day + timedelta(days=n)
            self.moved[at] = self.moved.get(at, 0.0) + row.billed / days

    def accrued(self) -> dict[date, float]:
        """By day what was billed for it, of the days that have charges of their own."""
        return {day: value + self.moved.get(day, 0.0) for day, value in self.billed.items()}

    def _provision(self, key: tuple[str, str], day: date, iops_hours: float, hours: float, region: str) -> None:
        known = self.provisioned.get(key)
        if known is not None:
            known.take(day, iops_hours, hours)
        elif len(self.provisioned) < KEPT_VOLUMES:
            self.provisioned[key] = Provisioned(day, iops_hours, hours, region)

    def merge(self, other: Totals) -> None:
        """Adds what another source gave in whole."""
        for mine, theirs in ((self.effective, other.effective), (self.quantity, other.quantity)):
            for key, value in theirs.items():
                mine[key] = mine.get(key, 0.0) + value
        pairs = (self.billed, other.billed), (self.moved, other.moved), (self.vcpu_hours, other.vcpu_hours)
        for by_day, more in pairs:
            for day, value in more.items():
                by_day[day] = by_day.get(day, 0.0) + value
        for meter, more_iops in other.provisioned.items():
            self._provision(meter, more_iops.day, more_iops.iops_hours, more_iops.hours, more_iops.region)
        self.estimated |= other.estimated
        self.currencies.update(other.currencies)
        self.rows += other.rows
        self.skipped += other.skipped
        self.problems = [*self.problems, *other.problems][:KEPT_PROBLEMS]

    @property
    def last_day(self) -> date | None:
        """The newest day with any charge."""
        return max(self.billed, default=None)

    @property
    def mixed_currencies(self) -> bool:
        """Sums over several currencies mean nothing."""
        return len(self.currencies) > 1
