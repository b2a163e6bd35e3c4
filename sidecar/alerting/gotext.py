"""Numbers as Go and Prometheus print them: `%v`, `%.4g`, and the humanize functions of rule templates."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta

from sidecar.errors import TemplateError

_UP = ("k", "M", "G", "T", "P", "E", "Z", "Y")
_UP_1024 = ("ki", "Mi", "Gi", "Ti", "Pi", "Ei", "Zi", "Yi")
_DOWN = ("m", "u", "n", "p", "f", "a", "z", "y")
_NUMBER = re.compile(
    r"[+-]?(?:[\d_]*\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:e[+-]?\d+)?$|[+-]?(?:inf|infinity|nan)$", re.ASCII | re.IGNORECASE
)
_INT64 = 1 << 63
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def special(value: float) -> str | None:
    """`NaN`, `+Inf`, `-Inf`, or None for a finite number."""
    if math.isfinite(value):
        return None
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def shortest(value: float) -> str:
    """Go's `%v` of a float64: the shortest digits that read back equal, with an exponent below 1e-4 and from 1e6 on."""
    if (text := special(value)) is not None:
        return text
    digits, _, exponent = f"{value!r}".partition("e")
    sign = "-" if digits.startswith("-") else ""
    whole, _, fraction = digits.lstrip("-").partition(".")
    fraction = "" if fraction == "0" else fraction
    point = len(whole) + int(exponent or 0)
    number = (whole + fraction).lstrip("0")
    point -= len(whole + fraction) - len(number)
    number = number.rstrip("0")
    if not number:
        return sign + "0"
    power = point - 1
    if power < -4 or power >= 6:
        mantissa = number[0] + ("." + number[1:] if len(number) > 1 else "")
        return f"{sign}{mantissa}e{'-' if power < 0 else '+'}{abs(power):02d}"
    if point <= 0:
        return f"{sign}0.{'0' * -point}{number}"
    if point >= len(number):
        return sign + number + "0" * (point - len(number))
    return f"{sign}{number[:point]}.{number[point:]}"


def four_digits(value: float) -> str:
    """Go's `%.4g`."""
    return special(value) or f"{value:.4g}"


def to_float(value: object) -> float:
    """What the humanize functions accept: a number, or text that Go reads as one. Raises TemplateError."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TemplateError(f"cannot convert {type(value).__name__} to float")
    if isinstance(value, str):
        if not _NUMBER.match(value):
            raise TemplateError(f'parsing "{value}": invalid syntax')
        number = float(value.replace("_", ""))
        if math.isinf(number) and "inf" not in value.lower():
            raise TemplateError(f'parsing "{value}": value out of range')
        return number
    return float(value)


def _scaled(value: float, up: tuple[str, ...], base: float) -> str:
    prefix = ""
    for candidate in up:
        if abs(value) < base:
            break
        prefix, value = candidate, value / base
    return four_digits(value) + prefix


def _small(value: float) -> tuple[float, str]:
    prefix = ""
    for candidate in _DOWN:
        if abs(value) >= 1:
            break
        prefix, value = candidate, value * 1000
    return value, prefix


def humanize(given: object) -> str:
    """1234567 → `1.235M`, 0.0012 → `1.2m`."""
    value = to_float(given)
    if value == 0 or not math.isfinite(value):
        return four_digits(value)
    if abs(value) >= 1:
        return _scaled(value, _UP, 1000)
    small, prefix = _small(value)
    return four_digits(small) + prefix


def humanize1024(given: object) -> str:
    """1048576 → `1Mi`."""
    value = to_float(given)
    if abs(value) <= 1 or not math.isfinite(value):
        return four_digits(value)
    return _scaled(value, _UP_1024, 1024)


def humanize_duration(given: object) -> str:
    """Seconds as `1d 2h 3m 4s`; below a minute four digits, below a second with a prefix."""
    value = to_float(given)
    if not math.isfinite(value):
        return four_digits(value)
    if value == 0:
        return four_digits(value) + "s"
    if abs(value) < 1:
        small, prefix = _small(value)
        return f"{four_digits(small)}{prefix}s"
    sign, value = ("-", -value) if value < 0 else ("", value)
    # Go converts what does not fit to the smallest int64, and its division truncates towards zero
    whole = int(value) if value < _INT64 else -_INT64
    seconds, minutes = _rem(whole, 60), _rem(_quot(whole, 60), 60)
    hours, days = _rem(_quot(whole, 3600), 24), _quot(whole, 86_400)
    if days:
        return f"{sign}{days}d {hours}h {minutes}m {seconds}s"
    if hours:
        return f"{sign}{hours}h {minutes}m {seconds}s"
    if minutes:
        return f"{sign}{minutes}m {seconds}s"
    return f"{sign}{four_digits(value)}s"


def _quot(a: int, b: int) -> int:
    return a // b if a >= 0 else -(-a // b)


def _rem(a: int, b: int) -> int:
    return a - b * _quot(a, b)


def humanize_percentage(given: object) -> str:
    """0.1234 → `12.34%`."""
    return four_digits(to_float(given) * 100) + "%"


def unix_milliseconds(given: object) -> int | None:
    """Seconds since the epoch as milliseconds, None for NaN and Inf. Raises TemplateError outside 1677 to 2262."""
    value = to_float(given)
    if not math.isfinite(value):
        return None
    nanoseconds = value * 1e9
    if abs(nanoseconds) > _INT64:
        raise TemplateError(
            f"{shortest(value)} cannot be represented as a nanoseconds timestamp since it overflows int64"
        )
    return _quot(int(nanoseconds), 1_000_000)


def time_text(ms: int) -> str:
    """A UTC time as Go prints it: `2009-02-13 23:31:30.5 +0000 UTC`."""
    moment = _EPOCH + timedelta(milliseconds=ms)
    fraction = f".{ms % 1000:03d}".rstrip("0").rstrip(".")
    return f"{moment:%Y-%m-%d %H:%M:%S}{fraction} +0000 UTC"


def humanize_timestamp(given: object) -> str:
    """Seconds since the epoch as a UTC time."""
    ms = unix_milliseconds(given)
    return four_digits(to_float(given)) if ms is None else time_text(ms)


HUMANIZERS = {
    "humanize": humanize,
    "humanize1024": humanize1024,
    "humanizeDuration": humanize_duration,
    "humanizePercentage": humanize_percentage,
    "humanizeTimestamp": humanize_timestamp,
}
