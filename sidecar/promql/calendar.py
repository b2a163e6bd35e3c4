"""Calendar functions: UTC date parts of Unix seconds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sidecar.store.cells import F64

_DAY = 86_400
_FIRST_DAY_SECONDS = -62_135_596_800  # 0001-01-01, Go's zero time


def _civil(days: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Year, month and day of the proleptic Gregorian calendar from days since 1970-01-01.

    Counts in eras of 400 years that start on 1 March, so that the leap day comes last.
    """
    shifted = days + 719_468
    era = shifted // 146_097
    day_of_era = shifted - era * 146_097
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month_from_march = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month_from_march + 2) // 5 + 1
    month = np.where(month_from_march < 10, month_from_march + 3, month_from_march - 9)
    return year_of_era + era * 400 + (month <= 2), month, day


def _leap(year: np.ndarray) -> np.ndarray:
    out: np.ndarray = ((year % 4 == 0) & (year % 100 != 0)) | (year % 400 == 0)
    return out


_LENGTHS = np.array([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])
_BEFORE = np.concatenate(([0], np.cumsum(_LENGTHS)[:-1]))


def _day_of_year(days: np.ndarray) -> np.ndarray:
    year, month, day = _civil(days)
    out: np.ndarray = _BEFORE[month - 1] + day + (_leap(year) & (month > 2))
    return out


def _days_in_month(days: np.ndarray) -> np.ndarray:
    year, month, _ = _civil(days)
    out: np.ndarray = _LENGTHS[month - 1] + (_leap(year) & (month == 2))
    return out


def _of_days(part: Callable[[np.ndarray], np.ndarray]) -> Callable[[F64], F64]:
    return lambda values: part(_seconds(values) // _DAY).astype(np.float64)


def _seconds(values: F64) -> np.ndarray:
    """Whole seconds towards zero; what no int64 holds becomes the smallest, as in Go on amd64."""
    inside = np.abs(values) < 2.0**63
    whole: np.ndarray = np.where(inside, values, 0).astype(np.int64)
    return np.where(inside, whole, -(1 << 63))


FUNCTIONS: dict[str, Callable[[F64], F64]] = {
    "day_of_month": _of_days(lambda days: _civil(days)[2]),
    "day_of_week": _of_days(lambda days: (days + 4) % 7),
    "day_of_year": _of_days(_day_of_year),
    "days_in_month": _of_days(_days_in_month),
    "hour": lambda values: (_seconds(values) % _DAY // 3600).astype(np.float64),
    "minute": lambda values: (_seconds(values) % 3600 // 60).astype(np.float64),
    "month": _of_days(lambda days: _civil(days)[1]),
    "year": _of_days(lambda days: _civil(days)[0]),
}
