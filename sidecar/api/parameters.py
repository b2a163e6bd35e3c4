"""Parameters of a request as Prometheus reads them: in the address, in a form in the body, or in both."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta, timezone
from urllib.parse import parse_qsl

from starlette.requests import Request

from sidecar import durations
from sidecar.errors import RequestError

MAX_BODY = 64 << 10  # bytes: no expression may be longer either
_MAX_FIELDS = 1000
_FORM = "application/x-www-form-urlencoded"

EARLIEST_MS, LATEST_MS = -(1 << 53), 1 << 53
"""The times a request may name, and what "no limit" means: what a float64 holds to the millisecond."""

# How clients that know nothing better write the first and the last time there is.
_NO_LIMIT = {"-292273086-05-16T16:47:06Z": EARLIEST_MS, "292277025-08-18T07:12:54.999999999Z": LATEST_MS}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RFC3339 = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:[.,](\d+))?(?:Z|([+-])(\d\d):(\d\d))", re.ASCII)
_NUMBER = re.compile(r"[+-]?[0-9_.]+(?:[eE][+-]?\d+)?", re.ASCII)
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_INT64 = 1 << 63


class Parameters:
    """Names with their values. Where one value is wanted, the body's comes before the address's."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self._values: dict[str, list[str]] = {}
        for name, value in pairs:
            self._values.setdefault(name, []).append(value)

    @classmethod
    async def of(cls, request: Request) -> Parameters:
        """Reads the body where it is a form. Raises RequestError for one that is too large."""
        form: list[tuple[str, str]] = []
        if request.method == "POST" and request.headers.get("content-type", "").partition(";")[0].strip() == _FORM:
            form = _pairs(await _body(request))
        return cls([*form, *_pairs(request.scope["query_string"])])

    def one(self, name: str) -> str:
        """The value, or the empty string."""
        return self._values.get(name, [""])[0]

    def all(self, name: str) -> list[str]:
        """All values, in order."""
        return self._values.get(name, [])

    def time(self, name: str, default_ms: int | None = None) -> int:
        """A time in milliseconds; `default_ms` where none is given, if there is a default. Raises RequestError."""
        text = self.one(name)
        if not text and default_ms is not None:
            return default_ms
        found = _time(text)
        if found is None:
            optional = f"invalid time value for '{name}': " if default_ms is not None else ""
            raise _wrong(name, f"{optional}cannot parse {quoted(text)} to a valid timestamp")
        return found

    def duration(self, name: str) -> float:
        """A duration in milliseconds, which may be negative or a fraction. Raises RequestError."""
        try:
            return _duration(self.one(name))
        except ValueError as e:
            raise _wrong(name, str(e)) from None

    def limit(self) -> int:
        """How many results are wanted; 0 means all. Raises RequestError."""
        text = self.one("limit")
        if not text:
            return 0
        if not _INTEGER.fullmatch(text):
            raise _wrong("limit", f"strconv.Atoi: parsing {quoted(text)}: invalid syntax")
        if abs(number := int(text[:40])) >= _INT64:
            raise _wrong("limit", f"strconv.Atoi: parsing {quoted(text)}: value out of range")
        if number < 0:
            raise _wrong("limit", "limit must be non-negative")
        return number


def _pairs(text: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(text.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=_MAX_FIELDS)
    except ValueError:
        raise RequestError(f"more than {_MAX_FIELDS} parameters") from None


async def _body(request: Request) -> bytes:
    body = b""
    async for chunk in request.stream():
        body += chunk
        # a body sent in chunks does not say beforehand how long it is
        if len(body) > MAX_BODY:
            raise RequestError(f"the body is larger than {MAX_BODY} bytes", 413)
    return body


def _wrong(name: str, message: str) -> RequestError:
    return RequestError(f"invalid parameter {quoted(name)}: {message}")


def quoted(text: str) -> str:
    """Go's %q, near enough for what people type."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'


def _number(text: str) -> float | None:
    if not _NUMBER.fullmatch(text):
        return None
    try:
        return float(text)
    except ValueError:
        return None


def _time(text: str) -> int | None:
    """Unix seconds, or RFC 3339 with its nanoseconds cut off; None for anything else."""
    if (seconds := _number(text)) is not None:
        if not abs(seconds) * 1000 <= LATEST_MS:
            return None
        fraction, whole = math.modf(seconds)
        # to the millisecond, halves away from zero, in the arithmetic of Prometheus
        fraction = math.copysign(math.floor(abs(fraction) * 1000 + 0.5) / 1000, fraction)
        return int(whole) * 1000 + int(fraction * 1e9) // 1_000_000
    if text in _NO_LIMIT:
        return _NO_LIMIT[text]
    match = _RFC3339.fullmatch(text)
    if match is None:
        return None
    *fields, fraction_text, sign, hours, minutes = match.groups()
    try:
        zone = UTC if sign is None else timezone(timedelta(hours=int(sign + hours), minutes=int(sign + minutes)))
        moment = datetime(*(int(field) for field in fields), tzinfo=zone)  # type: ignore[arg-type, misc]
    except ValueError:
        return None
    return round((moment - _EPOCH) / timedelta(seconds=1)) * 1000 + int(f"{fraction_text or ''}000"[:3])


def _duration(text: str) -> float:
    if (seconds := _number(text)) is not None:
        if abs(seconds * 1e9) > _INT64:
            raise ValueError(f"cannot parse {quoted(text)} to a valid duration. It overflows int64")
        return seconds * 1000
    try:
        return durations.parse(text)
    except ValueError:
        raise ValueError(f"cannot parse {quoted(text)} to a valid duration") from None
