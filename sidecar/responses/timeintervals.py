"""Time intervals in Alertmanager's syntax: times of day, weekdays, days of the month, months, years, in a time zone.

Of one interval every field that is given must hold; of a field's list one entry is enough.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Annotated, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import BaseModel, BeforeValidator, ConfigDict

Range = tuple[int, int]
"""Both ends included."""

WEEKDAYS = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
MONTHS = tuple(name.lower() for name in calendar.month_name[1:])

_TIME = re.compile(r"([01]\d|2[0-3]):([0-5]\d)|24:00", re.ASCII)


@dataclass(frozen=True, slots=True)
class TimeInterval:
    """Minutes of a day end before the second number; days of a month may count from its end, -1 being the last."""

    times: tuple[Range, ...] = ()
    weekdays: tuple[Range, ...] = ()
    days_of_month: tuple[Range, ...] = ()
    months: tuple[Range, ...] = ()
    years: tuple[Range, ...] = ()
    zone: tzinfo | None = UTC  # None: the machine's own

    def contains(self, t_ms: int) -> bool:
        """Whether a moment of wall time lies in it."""
        t = datetime.fromtimestamp(t_ms / 1000, UTC).astimezone(self.zone)
        minute = t.hour * 60 + t.minute
        return (
            (not self.times or any(start <= minute < end for start, end in self.times))
            and _within((t.weekday() + 1) % 7, self.weekdays)
            and _within(t.month, self.months)
            and _within(t.year, self.years)
            and (not self.days_of_month or any(_day(t, r) for r in self.days_of_month))
        )


def _within(value: int, ranges: Sequence[Range]) -> bool:
    return not ranges or any(low <= value <= high for low, high in ranges)


def _day(t: datetime, wanted: Range) -> bool:
    last = calendar.monthrange(t.year, t.month)[1]
    low, high = (n if n > 0 else last + 1 + n for n in wanted)
    # As in Alertmanager: a range that reaches out of this month is cut to it, one wholly outside is empty.
    return max(low, 1) <= t.day <= min(high, last)


# --- as written in a file ---------------------------------------------------------------------------------------------


def _ranges(names: Sequence[str], low: int, high: int, what: str) -> Any:
    def number(text: str) -> int:
        text = text.strip().lower()
        if text in names:
            return names.index(text) + low
        if re.fullmatch(r"-?\d{1,4}", text, re.ASCII) and names is not WEEKDAYS and low <= int(text) <= high:
            return int(text)
        raise ValueError(f"{text!r} is no {what}")

    def one(text: object) -> Range:
        if isinstance(text, int) and not isinstance(text, bool):
            if not low <= text <= high:  # YAML reads 1:5 as a number of base 60
                raise ValueError(f"write a {what} or, in quotes, a range of them like '1:5'")
            text = str(text)
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"write a {what} or a range of them")
        first, colon, last = text.partition(":")
        start, end = number(first), number(last if colon else first)
        if (start > 0) == (end > 0) and start > end or (start < 0 < end):
            raise ValueError(f"{text!r}: the range ends before it starts")
        if start == 0 and names is not WEEKDAYS:
            raise ValueError(f"{text!r}: there is no {what} 0")
        return start, end

    return BeforeValidator(lambda value: [one(v) for v in value] if isinstance(value, list) else value)


def _minute(value: object) -> object:
    if isinstance(value, str) and (match := _TIME.fullmatch(value)):
        return int(match[1]) * 60 + int(match[2]) if match[1] else 24 * 60
    # What YAML makes of 17:00 without quotes: a number of base 60, which is the minute of the day.
    if isinstance(value, int) and not isinstance(value, bool) and 600 <= value <= 24 * 60:
        return value
    raise ValueError("write a time of day like '09:00', in quotes, to 24:00 at most")


def _zone(value: object) -> object:
    if not isinstance(value, str):
        raise ValueError("write a time zone like Europe/Berlin")
    if value == "Local":
        return None
    try:
        return ZoneInfo(value) if value and value != "UTC" else UTC
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"no such time zone on this machine: {value!r}") from None


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


class _Times(_Closed):
    start_time: Annotated[int, BeforeValidator(_minute)]
    end_time: Annotated[int, BeforeValidator(_minute)]


class IntervalShape(_Closed):
    """One entry under `time_intervals:`."""

    times: list[_Times] = []
    weekdays: Annotated[list[Range], _ranges(WEEKDAYS, 0, 6, "weekday")] = []
    days_of_month: Annotated[list[Range], _ranges((), -31, 31, "day of a month")] = []
    months: Annotated[list[Range], _ranges(MONTHS, 1, 12, "month")] = []
    years: Annotated[list[Range], _ranges((), 1, 9999, "year")] = []
    location: Annotated[tzinfo | None, BeforeValidator(_zone)] = UTC

    def interval(self) -> TimeInterval:
        """Raises ValueError where a time of day ends before it starts."""
        times = tuple((t.start_time, t.end_time) for t in self.times)
        for start, end in times:
            if start >= end:
                raise ValueError("end_time must be after start_time; write a night as two intervals")
        return TimeInterval(
            times,
            tuple(self.weekdays),
            tuple(self.days_of_month),
            tuple(self.months),
            tuple(self.years),
            self.location,
        )
