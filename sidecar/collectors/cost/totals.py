"""What is kept of a stream of charges: sums by day and category, in one pass and little memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date

from sidecar.collectors.cost.rows import Category, CostRow, RowProblem

KEPT_PROBLEMS = 20


@dataclass(slots=True)
class Totals:
    """By day. Trends use effective cost of usage without corrections; budgets use all that is billed."""

    effective: dict[tuple[date, Category], float] = field(default_factory=dict)
    quantity: dict[tuple[date, Category], float] = field(default_factory=dict)
    billed: dict[date, float] = field(default_factory=dict)
    vcpu_hours: dict[date, float] = field(default_factory=dict)
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
            if row.estimated:
                self.estimated.add(day)
            if row.usage and not row.correction:
                key = (day, row.category)
                effective[key] = effective.get(key, 0.0) + row.effective
                quantity[key] = quantity.get(key, 0.0) + row.quantity
                if row.vcpu_hours:
                    self.vcpu_hours[day] = self.vcpu_hours.get(day, 0.0) + row.vcpu_hours
        return self

    def merge(self, other: Totals) -> None:
        """Adds what another source gave in whole."""
        for mine, theirs in ((self.effective, other.effective), (self.quantity, other.quantity)):
            for key, value in theirs.items():
                mine[key] = mine.get(key, 0.0) + value
        for by_day, more in ((self.billed, other.billed), (self.vcpu_hours, other.vcpu_hours)):
            for day, value in more.items():
                by_day[day] = by_day.get(day, 0.0) + value
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
