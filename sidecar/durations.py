"""Prometheus durations: `1h30m`, `15s`, `250ms`, `0`."""

from __future__ import annotations

import re

_UNITS = {
    "y": 365 * 86_400_000,
    "w": 7 * 86_400_000,
    "d": 86_400_000,
    "h": 3_600_000,
    "m": 60_000,
    "s": 1_000,
    "ms": 1,
}
_SHAPE = re.compile(
    r"^(?:(?P<y>\d+)y)?(?:(?P<w>\d+)w)?(?:(?P<d>\d+)d)?(?:(?P<h>\d+)h)?(?:(?P<m>\d+)m)?(?:(?P<s>\d+)s)?(?:(?P<ms>\d+)ms)?$",
    re.ASCII,
)
_LIMIT_MS = (1 << 63) // 1_000_000  # Prometheus holds durations as int64 nanoseconds


def parse(text: str) -> int:
    """Milliseconds of a Prometheus duration. Raises ValueError with what is accepted."""
    if text == "0":
        return 0
    match = _SHAPE.match(text) if text else None
    if match is None:
        raise ValueError(f"not a valid duration: {text!r} (write it like 30s, 5m or 1h30m)")
    total = sum(int(n) * _UNITS[unit] for unit, n in match.groupdict().items() if n)
    if total > _LIMIT_MS:
        raise ValueError(f"duration out of range: {text!r}")
    return total


def text(ms: int) -> str:
    """The shortest Prometheus spelling: 90000 → `1m30s`, 0 → `0s`."""
    if ms == 0:
        return "0s"
    sign, ms = ("-", -ms) if ms < 0 else ("", ms)
    out = []
    # years and weeks only where they come out even, as Prometheus prints them
    for unit, exact in (
        ("y", True),
        ("w", True),
        ("d", False),
        ("h", False),
        ("m", False),
        ("s", False),
        ("ms", False),
    ):
        size = _UNITS[unit]
        if exact and ms % size:
            continue
        count, ms = divmod(ms, size)
        if count:
            out.append(f"{count}{unit}")
    return sign + "".join(out)
