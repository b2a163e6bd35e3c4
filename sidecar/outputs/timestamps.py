"""Milliseconds as RFC 3339 text, the form every Prometheus API speaks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def rfc3339(t_ms: int) -> str:
    """1700000000500 → `2023-11-14T22:13:20.500Z`. Raises OverflowError beyond the years 1 to 9999."""
    moment = _EPOCH + timedelta(milliseconds=t_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
