"""What remediations see while they plan beside knobs and facts: the series they ask for, read as time goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from pydantic import BaseModel

from sidecar.hooks import Reading, Remediation, View
from sidecar.model import Alert, Change, Skip
from sidecar.plugins import details
from sidecar.responses.measure import Measure

LATE_MS = 5_000
"""Samples may arrive so late: the newest stretch is read again every time."""

Points = Sequence[tuple[int, float]]


@dataclass(slots=True)
class _Seen:
    read_ms: int
    points: list[tuple[int, float]] = field(default_factory=list)


class Sights:
    """Reads each expression once for all who ask; work is what is new since the last time, not the whole past."""

    def __init__(self, measure: Measure, now_ms: Callable[[], int]) -> None:
        self._measure, self._now_ms = measure, now_ms
        self._seen: dict[tuple[str, int], _Seen] = {}

    def points(self, reading: Reading) -> Points:
        """Every point of the last `back_ms`. Raises QueryError."""
        now = self._now_ms()
        begin = now - reading.back_ms
        seen = self._seen.setdefault((reading.expr, reading.back_ms), _Seen(begin))
        if seen.read_ms != now:
            again = max(begin, min(seen.read_ms, now) - LATE_MS)
            kept = [p for p in seen.points if begin < p[0] <= again]
            seen.points = kept + list(self._measure.increments(reading.expr, again, now).samples)
            seen.read_ms = now
        return tuple(seen.points)


class Seeing:
    """A remediation that is given its series with the view; in all else the one inside."""

    def __init__(self, inner: Remediation, sights: Sights) -> None:
        self._inner, self._sights = inner, sights
        self._reads = details(inner).reads

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def plan(self, alert: Alert, view: View, params: BaseModel) -> Change | Skip:
        """As in `hooks.Remediation`."""
        series = {name: self._sights.points(reading) for name, reading in self._reads.items()}
        return self._inner.plan(alert, replace(view, series=series), params)


def seeing(remediations: Mapping[str, Remediation], sights: Sights) -> dict[str, Remediation]:
    """Every remediation, those that read series with these in view."""
    return {
        name: cast(Remediation, Seeing(plugin, sights)) if details(plugin).reads else plugin
        for name, plugin in remediations.items()
    }


def reads(remediations: Mapping[str, Remediation], used: Iterable[str]) -> dict[str, int]:
    """Expression → how far back it is read, in ms, of the remediations that are used."""
    found: dict[str, int] = {}
    for name in set(used) & set(remediations):
        for reading in details(remediations[name]).reads.values():
            found[reading.expr] = max(found.get(reading.expr, 0), reading.back_ms)
    return found
