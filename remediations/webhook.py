"""Asks another system to do something: one POST, and a second one to take it back when it did not help.

The body says which: `action` is `apply` or `revert`. Whoever answers must accept either twice, because a message whose
answer was lost is sent again. URLs must be on the configuration's egress list.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

from sidecar.hooks import Case, Details, View
from sidecar.model import Alert, AlertState, Change, Knob, Skip, TrainerIdentity, labels_of

REQUEST = "request"
MAX_BODY = 16_384


class Params(BaseModel):
    """`with:` of a response."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str = Field(max_length=2_000)
    undo_url: str | None = Field(None, max_length=2_000, description="where `revert` goes; by default to `url`")
    body: Mapping[str, Any] = Field(default_factory=dict, description="sent along as `extra`")

    @field_validator("url", "undo_url")
    @classmethod
    def _usable(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                parts = urlsplit(value)
                usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
            except ValueError:
                usable = False
            if not usable or not value.isprintable() or " " in value or "@" in parts.netloc:
                raise ValueError(f"not an http(s) URL without credentials: {value!r}")
        return value

    @field_validator("body")
    @classmethod
    def _small(cls, value: Mapping[str, Any]) -> Mapping[str, Any]:
        if len(_text(value)) > MAX_BODY:
            raise ValueError(f"larger than {MAX_BODY} bytes as JSON")
        return value


def _text(value: object) -> str:
    try:
        return json.dumps(value, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as e:
        raise ValueError(f"cannot be written as JSON: {e}") from None


def _urls(params: BaseModel) -> tuple[str, ...]:
    assert isinstance(params, Params)
    return (params.url,) if params.undo_url is None else (params.url, params.undo_url)


_ALERT = Alert("ObjectStoreSlow", labels_of({"severity": "warning"}), (), AlertState.FIRING, 0.5, 0)
_WANTED = {
    "url": "https://ops.example.com/hooks/store",
    "undo_url": "https://ops.example.com/hooks/store",
    "body": {
        "alert": "ObjectStoreSlow",
        "extra": {"tier": "fast"},
        "labels": {"severity": "warning"},
        "value": 0.5,
    },
}


class Webhook:
    """Plans one request; the actuator `http` sends it."""

    name: ClassVar[str] = "webhook"
    params: ClassVar[type[BaseModel]] = Params
    actuator: ClassVar[str] = "http"
    knobs: ClassVar[tuple[str, ...]] = (REQUEST,)
    example: ClassVar[Mapping[str, Any]] = {"url": "https://ops.example.com/hooks/store", "body": {"tier": "fast"}}
    details: ClassVar[Details] = Details(
        permissions=("egress: POST to its URLs, which `egress.allow` must name",),
        cases=(
            Case(
                "asks for the fast tier",
                example,
                _ALERT,
                View({REQUEST: Knob(REQUEST, "")}, TrainerIdentity("http", "", ("http",), (0,), 1), {}),
                Change("http", {REQUEST: _text(_WANTED)}),
            ),
        ),
        egress=_urls,
    )

    def plan(self, alert: Alert, view: View, params: BaseModel) -> Change | Skip:
        """Skips with `egress_denied` where the configuration allows no egress at all."""
        assert isinstance(params, Params)
        if REQUEST not in view.knobs:
            return Skip("egress_denied", "the configuration allows no egress: see egress.allow")
        value = alert.value if abs(alert.value) < float("inf") else None  # NaN and infinity are no JSON
        body = {"alert": alert.name, "labels": dict(alert.labels), "value": value, "extra": params.body}
        request = {"url": params.url, "undo_url": params.undo_url or params.url, "body": body}
        return Change(self.actuator, {REQUEST: _text(request)}, f"POST {params.url}")
