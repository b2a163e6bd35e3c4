"""JSON as Prometheus 3.5 writes it, to the byte: numbers as text, label sets, whole query results piece by piece."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from sidecar.model import Labels

PIECE = 64 << 10  # characters, about: what is made and sent at a time

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HTML = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"})


def document(value: object) -> str:
    """Any plain value; what could be taken for HTML is escaped, as Go does."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).translate(_HTML)


def number(value: float) -> str:
    """The shortest text that reads back as the value, with an exponent below 1e-6 and from 1e21 on."""
    text = repr(value)
    if text.endswith(".0"):
        return text[:-2]
    if "e" not in text and "n" not in text:
        return text
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    mantissa, _, exponent = text.partition("e")
    if not 1e-6 <= abs(value) < 1e21:
        return text
    sign, mantissa = ("-", mantissa[1:]) if mantissa.startswith("-") else ("", mantissa)
    whole, _, fraction = mantissa.partition(".")
    digits, power = whole + fraction, int(exponent)
    return sign + ("0." + "0" * (-power - 1) + digits if power < 0 else digits.ljust(power + 1, "0"))


def seconds(t_ms: int) -> str:
    """A time as a number of seconds; three digits after the point, or none."""
    whole, rest = divmod(abs(t_ms), 1000)
    return f"{'-' if t_ms < 0 else ''}{whole}{f'.{rest:03d}' if rest else ''}"


def moment(t_ms: int | None) -> str:
    """A time in RFC 3339 without trailing zeros; None is Go's zero time."""
    if t_ms is None:
        return "0001-01-01T00:00:00Z"
    found = _EPOCH + timedelta(milliseconds=t_ms)
    fraction = f".{t_ms % 1000:03d}".rstrip("0").rstrip(".")
    return f"{found:%Y-%m-%dT%H:%M:%S}{fraction}Z"


def labels(given: Labels) -> str:
    """A label set. Unlike other text its values may look like HTML."""
    return json.dumps(dict(given), ensure_ascii=False, separators=(",", ":"))


def point(t_ms: int, value: float) -> str:
    """One value at one time."""
    return f'[{seconds(t_ms)},"{number(value)}"]'


def scalar(t_ms: int, value: float) -> Iterator[str]:
    """The `data` of a number. Its time, and that of a string, is written without trailing zeros."""
    yield f'{{"resultType":"scalar","result":[{number(t_ms / 1000)},"{number(value)}"]}}'


def string(t_ms: int, value: str) -> Iterator[str]:
    """The `data` of a string."""
    yield f'{{"resultType":"string","result":[{number(t_ms / 1000)},{document(value)}]}}'


def vector(t_ms: int, elements: Iterable[tuple[Labels, float]]) -> Iterator[str]:
    """The `data` of an instant vector."""
    yield '{"resultType":"vector","result":['
    yield from _joined(f'{{"metric":{labels(metric)},"value":{point(t_ms, value)}}}' for metric, value in elements)
    yield "]}"


def matrix(series: Iterable[tuple[Labels, Sequence[int], Sequence[float]]]) -> Iterator[str]:
    """The `data` of a range vector or a range query: label set, times and values of each series."""
    yield '{"resultType":"matrix","result":['
    yield from _joined(_one_series(series))
    yield "]}"


def _one_series(all_series: Iterable[tuple[Labels, Sequence[int], Sequence[float]]]) -> Iterator[str]:
    step = PIECE // 32
    for metric, times, values in all_series:
        opening, last = f'{{"metric":{labels(metric)},"values":[', len(times) - 1
        for low in range(0, len(times), step):
            points = zip(times[low : low + step], values[low : low + step], strict=True)
            text = ",".join([f'[{seconds(t)},"{number(v)}"]' for t, v in points])
            ends = low + step > last
            yield f"{opening}{text}{']}' if ends else ''}"
            opening = ""


def series_list(found: Iterable[Labels]) -> Iterator[str]:
    """A list of label sets."""
    yield "["
    yield from _joined(labels(each) for each in found)
    yield "]"


def _joined(texts: Iterable[str]) -> Iterator[str]:
    for index, text in enumerate(texts):
        yield text if index == 0 else "," + text


def success(data: Iterable[str], warnings: Sequence[str] = ()) -> Iterator[bytes]:
    """A whole body in pieces of about `PIECE` characters."""
    parts, size = ['{"status":"success","data":'], 0
    for text in data:
        parts.append(text)
        size += len(text)
        if size >= PIECE:
            yield "".join(parts).encode()
            parts, size = [], 0
    tail = f',"warnings":{document(list(warnings))}' if warnings else ""
    yield ("".join(parts) + tail + "}").encode()


def error(kind: str, message: str, details: Mapping[str, object] | None = None) -> bytes:
    """The body of a refusal; `details` are further keys."""
    return document({"status": "error", "errorType": kind, "error": message, **(details or {})}).encode()
