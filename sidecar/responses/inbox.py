"""Alertmanager's webhook messages, version 4, become edges: an alert that is new to us fires, one that ended resolves.

Alertmanager repeats what it has said (`repeat_interval`) and says it again when it is not sure that we heard. The
same alert with the same start is the same edge, which opens nothing twice; an alert that is not repeated for
`LAPSE_MS` counts as resolved, for a receiver may be set not to be told (`send_resolved: false`).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from sidecar.errors import ResponseError
from sidecar.model import Alert, AlertEvent, AlertState, Edge, Labels, labels_of
from sidecar.wording import plain

SOURCE = "alertmanager"
LAPSE_MS = 5 * 3_600_000  # Alertmanager's default repeat_interval is four hours
MOST_FIRING = 10_000  # alerts known to fire; further ones are turned away until some end


def _moment(value: object) -> int:
    """RFC 3339 to wall milliseconds; 0 for the year 1, which is how Go writes "never"."""
    if not isinstance(value, str):
        raise ValueError("must be an RFC 3339 time")
    try:
        t = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError(f"not an RFC 3339 time: {value[:40]!r}") from None
    if t.year <= 1:
        return 0
    return int((t if t.tzinfo else t.replace(tzinfo=UTC)).timestamp() * 1000)


Moment = Annotated[int, BeforeValidator(_moment)]


class _Open(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)  # newer Alertmanagers say more


class _Told(_Open):
    status: Literal["firing", "resolved"]
    labels: dict[str, str]
    annotations: dict[str, str] = {}
    startsAt: Moment
    endsAt: Moment = 0


class _Message(_Open):
    version: Literal["4"]
    alerts: list[_Told] = Field(max_length=MOST_FIRING)


@dataclass(frozen=True, slots=True)
class Received:
    """The edges of one message, and how many of its alerts were left out, by reason."""

    events: tuple[AlertEvent, ...]
    ignored: Mapping[str, int]


class Inbox:
    """Remembers what fires, so that what is no longer repeated can end. Use from one thread."""

    def __init__(self, *, lapse_ms: int = LAPSE_MS) -> None:
        self._lapse_ms = lapse_ms
        self._firing: OrderedDict[tuple[str, Labels], tuple[Alert, int]] = OrderedDict()  # with when last heard of

    def take(
        self,
        body: bytes,
        now_ms: int,
        *,
        external: Mapping[str, str] | None = None,
        fires_here: Callable[[Labels], bool] = lambda labels: False,
    ) -> Received:
        """One message. `external` are this sidecar's external labels: an alert that names another pod, job or cluster
        is not for us. `fires_here`: whether an alert of our own rules with these labels fires, which need not be told.

        Raises ResponseError for what is no message of Alertmanager's.
        """
        try:
            message = _Message.model_validate_json(body)
        except ValidationError as e:
            first = e.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "body"
            raise ResponseError(f"not a webhook message of Alertmanager: {where}: {plain(first)}") from None
        events: list[AlertEvent] = []
        ignored: dict[str, int] = {}
        for told in message.alerts:
            alert, why = self._alert(told, now_ms, external or {}, fires_here)
            if alert is not None and told.status == "firing":
                why = self._fires(alert, now_ms)
            if why or alert is None:
                ignored[why] = ignored.get(why, 0) + 1
            elif told.status == "firing":
                events.append(AlertEvent(Edge.FIRING, alert, alert.fired_at_ms, source=SOURCE))
            else:
                self._firing.pop((alert.name, alert.labels), None)
                ended = min(max(told.endsAt, alert.fired_at_ms), now_ms)
                events.append(AlertEvent(Edge.RESOLVED, alert, ended, source=SOURCE))
        return Received(tuple(events), ignored)

    def lapsed(self, now_ms: int) -> tuple[AlertEvent, ...]:
        """Edges of alerts that nobody has repeated for too long."""
        events = []
        while self._firing:
            key, (alert, heard_ms) = next(iter(self._firing.items()))
            if now_ms - heard_ms < self._lapse_ms:
                break
            del self._firing[key]
            events.append(AlertEvent(Edge.RESOLVED, alert, now_ms, source=SOURCE))
        return tuple(events)

    def _fires(self, alert: Alert, now_ms: int) -> str:
        """Notes it, the one heard of last behind all others; or says why not."""
        key = (alert.name, alert.labels)
        if key not in self._firing and len(self._firing) >= MOST_FIRING:
            return "too_many"
        before = self._firing.pop(key, None)
        self._firing[key] = alert, now_ms
        return "repeated" if before is not None and before[0].fired_at_ms == alert.fired_at_ms else ""

    def _alert(
        self, told: _Told, now_ms: int, external: Mapping[str, str], fires_here: Callable[[Labels], bool]
    ) -> tuple[Alert | None, str]:
        name = told.labels.get("alertname", "")
        if not name:
            return None, "no_alertname"
        if any(name in told.labels and told.labels[name] != value for name, value in external.items()):
            return None, "not_ours"
        labels = labels_of(told.labels)
        if fires_here(tuple((k, v) for k, v in labels if k not in external)):
            return None, "fires_here"
        started = min(told.startsAt, now_ms)
        state = AlertState.FIRING if told.status == "firing" else AlertState.INACTIVE
        return Alert(name, labels, labels_of(told.annotations), state, math.nan, started, started), ""
