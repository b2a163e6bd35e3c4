"""Answers in the shape of Prometheus's HTTP API."""

from __future__ import annotations

import math
from collections.abc import Mapping

from starlette.responses import JSONResponse

from sidecar.model import Alert, AlertState
from sidecar.outputs.timestamps import rfc3339

# Prometheus names the kind of an error beside the HTTP status.
_TYPES = {400: "bad_data", 404: "not_found", 405: "bad_data", 422: "execution", 500: "internal", 503: "unavailable"}


def success(data: object) -> JSONResponse:
    """`{"status": "success", "data": …}`"""
    return JSONResponse({"status": "success", "data": data})


def failure(
    status: int, message: str, *, headers: Mapping[str, str] | None = None, details: Mapping[str, object] | None = None
) -> JSONResponse:
    """`{"status": "error", "errorType": …, "error": message}`; `details` are further keys."""
    body = {"status": "error", "errorType": _TYPES.get(status, "bad_data"), "error": message, **(details or {})}
    return JSONResponse(body, status, headers=dict(headers or {}))


def alert(one: Alert) -> Mapping[str, object]:
    """As in `/api/v1/alerts` of Prometheus."""
    if one.state is AlertState.INACTIVE:
        raise ValueError(f"{one.name} is not active")
    return {
        "labels": dict(one.labels),
        "annotations": dict(one.annotations),
        "state": one.state.value,
        "activeAt": rfc3339(one.active_at_ms),
        "value": number(one.value),
    }


def number(value: float) -> str:
    """The shortest exact scientific spelling, as Go writes it: 0.58 → `5.8e-01`, infinity → `+Inf`."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return next(text for digits in range(17) if float(text := f"{value:.{digits}e}") == value)
