"""A bill of as many rows as wanted, in which something is wrong: two months of hourly FOCUS charges up to yesterday."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from bills import COLUMNS, EGRESS, READS, VCPU, charge

DAYS = 62
OPEN_DAYS = 2  # the newest are not final


@dataclass(frozen=True, slots=True)
class Bill:
    """What the days of it cost. `today` has no charges yet."""

    today: date
    resources: int  # machines; each has a charge an hour

    @property
    def last(self) -> date:
        """The newest final day."""
        return self.today - timedelta(days=OPEN_DAYS)

    def vcpu(self, day: date) -> float:
        """240 a day, since a week and the open days 324."""
        return 324.0 if day > self.last - timedelta(days=7) else 240.0

    def egress(self, day: date) -> float:
        """10 a day, this month 17."""
        return 17.0 if (day.year, day.month) == (self.last.year, self.last.month) else 10.0

    def so_far(self) -> float:
        """What the month of the newest final day has cost up to it."""
        return sum(self.vcpu(d) + self.egress(d) for d in self._days() if d.month == self.last.month and d <= self.last)

    def _days(self) -> Iterator[date]:
        return (self.today - timedelta(days=n) for n in range(DAYS, 0, -1))

    def write(self, path: Path) -> int:
        """Gives the number of rows."""
        rows = 0
        with path.open("w") as file:
            file.write(",".join(COLUMNS) + "\n")
            for day in self._days():
                midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
                for hour in range(24):
                    when = midnight + timedelta(hours=hour)
                    for line in self._hour(when, when + timedelta(hours=1)):
                        file.write(line)
                        rows += 1
        return rows

    def _hour(self, start: datetime, end: datetime) -> Iterator[str]:
        times = {"ChargePeriodStart": f"{start:%Y-%m-%d %H:%M:%S}", "ChargePeriodEnd": f"{end:%Y-%m-%d %H:%M:%S}"}
        day, each = start.date(), self.vcpu(start.date()) / 24 / self.resources
        before, _, after = _line(each, ResourceId="@", ConsumedQuantity="1", **VCPU, **times).partition("@")
        yield from (f"{before}i-{n:08x}{after}" for n in range(self.resources))
        yield _line(self.egress(day) / 24, ConsumedQuantity="1", **EGRESS, **times)
        yield _line(0.001, ConsumedQuantity="1000", **READS, **times)


def _line(cost: float, **more: str) -> str:
    """One row, none of whose values holds a comma."""
    row = charge("", cost) | more
    return ",".join(row[column] for column in COLUMNS) + "\n"
