"""Calendar functions: UTC date parts of Unix seconds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sidecar.store.cells import F64, I64, Bools

_DAY = 86_400
_EPOCH_DAY = 719_468  # days from 0000-03-01 to 1970-01-01
# Go counts from 1 March of this year and wraps; only absurd inputs (NaN and infinities among them) notice
_GO_ZERO_DAY = -292_277_022_400 // 400 * 146_097 - _EPOCH_DAY
_GO_ZERO_SECONDS = np.uint64(_GO_ZERO_DAY * _DAY % (1 << 64))


def _civil(days: I64) -> tuple[I64, I64, I64]:
    """Year, month and day of the proleptic Gregorian calendar from days since 1970-01-01.

    Counts in eras of 400 years that start on 1 March, so that the leap day comes last.
    """
    shifted = days + _EPOCH_DAY
    era = shifted // 146_097
    day_of_era = shifted - era * 146_097
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month_from_march = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month_from_march + 2) // 5 + 1
    month = np.where(month_from_march < 10, month_from_march + 3, month_from_march - 9)
    return year_of_era + era * 400 + (month <= 2), month, day


def _leap(year: I64) -> Bools:
    out: Bools = ((year % 4 == 0) & (year % 100 != 0)) | (year % 400 == 0)
    return out


_LENGTHS = np.array([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])
_BEFORE = np.concatenate(([0], np.cumsum(_LENGTHS)[:-1]))


def _day_of_year(days: I64) -> I64:
    year, month, day = _civil(days)
    out: I64 = _BEFORE[month - 1] + day + (_leap(year) & (month > 2))
    return out


def _days_in_month(days: I64) -> I64:
    year, month, _ = _civil(days)
    out: I64 = _LENGTHS[month - 1] + (_leap(year) & (month == 2))
    return out


def _split(values: F64) -> tuple[I64, I64]:
    """Days since 1970-01-01 and seconds of the day, as Go has them: seconds are cut to an int64, and wrap."""
    inside = np.abs(values) < 2.0**63
    seconds = np.where(inside, np.where(inside, values, 0).astype(np.int64), -(1 << 63))
    absolute = seconds.view(np.uint64) - _GO_ZERO_SECONDS
    return (absolute // np.uint64(_DAY)).astype(np.int64) + _GO_ZERO_DAY, (absolute % np.uint64(_DAY)).astype(np.int64)


def _of_days(part: Callable[[I64], I64]) -> Callable[[F64], F64]:
    return lambda values: part(_split(values)[0]).astype(np.float64)


FUNCTIONS: dict[str, Callable[[F64], F64]] = {
    "day_of_month": _of_days(lambda days: _civil(days)[2]),
    "day_of_week": _of_days(lambda days: (days + 4) % 7),
    "day_of_year": _of_days(_day_of_year),
    "days_in_month": _of_days(_days_in_month),
    "hour": lambda values: (_split(values)[1] // 3600).astype(np.float64),
    "minute": lambda values: (_split(values)[1] % 3600 // 60).astype(np.float64),
    "month": _of_days(lambda days: _civil(days)[1]),
    "year": _of_days(lambda days: _civil(days)[0]),
}
