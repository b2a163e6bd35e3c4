"""Values of a billing export's rows, read strictly: what is no plain number or time is told with its column."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

_NULL = frozenset({"", "NULL", "null"})
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")


class BadValue(Exception):
    """A value that cannot be read, and the column it stands in."""

    def __init__(self, column: str, problem: str) -> None:
        super().__init__(problem)
        self.column = column


class Values:
    """Finds a row's values by the names of their columns. Methods raise BadValue."""

    def __init__(self, names: Sequence[str]) -> None:
        """`names` of the columns, in the order in which values come."""
        self._place = {name: place for place, name in enumerate(names)}
        self._times: dict[str, datetime] = {}  # an export has few different times, and many rows

    def text(self, values: Sequence[Any], name: str) -> str:
        """Empty where there is none."""
        place = self._place.get(name)
        value = None if place is None else values[place]
        if value is None:
            return ""
        if isinstance(value, list) and all(isinstance(item, tuple) for item in value):
            value = dict(value)  # so pyarrow gives a map
        if not isinstance(value, str):
            return json.dumps(value, default=str) if isinstance(value, dict | list) else str(value)
        return "" if value in _NULL else value

    def currency(self, values: Sequence[Any]) -> str:
        """Of the bill."""
        found = self.text(values, "BillingCurrency")
        if not found:
            raise BadValue("BillingCurrency", "empty, where a currency has to be")
        return found

    def number(self, values: Sequence[Any], name: str, otherwise: float | None = None) -> float:
        """A finite number; `otherwise` where there is none, which without it is a BadValue."""
        place = self._place.get(name)
        value = None if place is None else values[place]
        if value is None or (isinstance(value, str) and value in _NULL):
            if otherwise is None:
                raise BadValue(name, "empty, where a number has to be")
            return otherwise
        plain = _NUMBER.fullmatch(value) if isinstance(value, str) else isinstance(value, int | float | Decimal)
        if not plain or isinstance(value, bool) or not math.isfinite(number := float(value)):
            raise BadValue(name, f"{str(value)[:40]!r} is no plain number")
        return number

    def time(self, values: Sequence[Any], name: str) -> datetime:
        """In UTC; a time without a zone is taken for it, as the specification says."""
        value = values[self._place[name]]
        if isinstance(value, datetime):
            return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
        if value is None or (isinstance(value, str) and value in _NULL):
            raise BadValue(name, "empty, where a time has to be")
        if not isinstance(value, str):
            raise BadValue(name, f"a {type(value).__name__}, where a time has to be")
        found = self._times.get(value)
        if found is None:
            try:
                found = datetime.fromisoformat(value)
                found = found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
            except (ValueError, OverflowError):  # the latter in another zone than UTC in the years 1 and 9999
                raise BadValue(name, f"{value[:40]!r} is no ISO 8601 time") from None
            if len(self._times) < 100_000:
                self._times[value] = found
        return found
