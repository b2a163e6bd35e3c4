"""Answers in the shape of Prometheus's HTTP API."""

from __future__ import annotations

import math
from collections.abc import Mapping

from starlette.responses import Response

from sidecar.api import prometheus_json
from sidecar.errors import RequestError
from sidecar.model import Alert, AlertState

# Prometheus names the kind of an error beside the HTTP status.
_TYPES = {400: "bad_data", 404: "not_found", 405: "bad_data", 422: "execution", 500: "internal", 503: "unavailable"}


def success(data: object) -> Response:
    """`{"status": "success", "data": …}`"""
    return _json(prometheus_json.document({"status": "success", "data": data}).encode())


def failure(
    status: int, message: str, *, headers: Mapping[str, str] | None = None, details: Mapping[str, object] | None = None
) -> Response:
    """`{"status": "error", "errorType": …, "error": message}`; `details` are further keys."""
    return _json(prometheus_json.error(_TYPES.get(status, "bad_data"), message, details), status, headers)


def refused(error: RequestError) -> Response:
    """The same, of an error that knows its status."""
    return _json(prometheus_json.error(error.kind, str(error)), error.status)


def _json(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(body, status, headers=dict(headers or {}), media_type="application/json")


def alert(one: Alert) -> Mapping[str, object]:
    """As in `/api/v1/alerts` of Prometheus."""
    if one.state is AlertState.INACTIVE:
        raise ValueError(f"{one.name} is not active")
    return {
        "labels": dict(one.labels),
        "annotations": dict(one.annotations),
        "state": one.state.value,
        "activeAt": prometheus_json.moment(one.active_at_ms),
        "value": number(one.value),
        **({"keepFiringSince": prometheus_json.moment(since)} if (since := one.keep_firing_since_ms) > 0 else {}),
    }


def number(value: float) -> str:
    """The shortest exact scientific spelling, as Go writes it: 0.58 → `5.8e-01`, infinity → `+Inf`."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return next(text for digits in range(17) if float(text := f"{value:.{digits}e}") == value)
