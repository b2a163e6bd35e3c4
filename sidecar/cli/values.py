"""What options take beside text and numbers: durations, moments, headers."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime
from typing import Any

import click

from sidecar import durations


class _Duration(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.4
    """Milliseconds of `30s`, `5m`, `1h30m`; more than nothing."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            length = durations.parse(value)
        except ValueError as e:
            self.fail(str(e), param, ctx)
        if length <= 0:
            self.fail("must be longer than nothing", param, ctx)
        return length


class _Moment(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.4
    """Milliseconds since the epoch of a moment as `moment` reads it."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return moment(value, time.time_ns() // 1_000_000)
        except ValueError as e:
            self.fail(str(e), param, ctx)


class _Price(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.4
    """A finite number that is not negative."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            price = float(value)
        except ValueError:
            self.fail(f"not a number: {value!r}", param, ctx)
        if not 0 <= price < math.inf:
            self.fail(f"not a price: {value!r}", param, ctx)
        return price


def moment(text: str, now_ms: int) -> int:
    """`now`, `now-1h`, `-1h`, `2026-01-31T12:00:00Z`, `2026-01-31` or seconds since the epoch. Raises ValueError.

    A time without a zone is UTC.
    """
    text = text.strip()
    if text in ("now", "now-0"):
        return now_ms
    back = text.removeprefix("now")
    if back.startswith("-"):
        try:
            return now_ms - durations.parse(back[1:])
        except ValueError:
            pass  # a number before the epoch, or nonsense
    try:
        return round(float(text) * 1000)
    except (ValueError, OverflowError):
        pass  # no number
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"not a time: {text!r} (write 2026-01-31T12:00:00Z, now-1h or seconds since 1970)") from None
    return round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)


def pair(text: str, separator: str, what: str) -> tuple[str, str]:
    """`name=value` in two. Raises click.BadParameter."""
    name, found, value = text.partition(separator)
    if not found or not name.strip():
        raise click.BadParameter(f"{text!r}: write {what}")
    return name.strip(), value.strip()


DURATION = _Duration()
PRICE = _Price()
MOMENT = _Moment()
