"""The input series of a response test, put into the store as time goes on, bent by what the trainer's knobs do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sidecar.app.responsefile import Case
from sidecar.errors import ConfigError, Problem
from sidecar.hooks import Handle
from sidecar.model import STALE, KnobValue
from sidecar.store import Store


@dataclass(slots=True)
class _Due:
    metric: str
    handle: Handle
    values: tuple[float | None, ...]
    raw: float | None = None  # the newest value as written
    sent: float = 0.0  # and as it was put into the store


class Feed:
    """`knobs` gives the values in effect now; the case's effects say what they do to which metric."""

    def __init__(self, store: Store, case: Case, knobs: Callable[[], Mapping[str, KnobValue]]) -> None:
        """Raises ConfigError for more series than a store holds."""
        self._store, self._case, self._knobs = store, case, knobs
        self._series: list[_Due] = []
        for series in case.series:
            handle = store.series(series.metric, dict(series.labels), "input")
            if handle is None:
                raise ConfigError([Problem("", case.line, 0, f"too many series for one test: {series.metric}")])
            self._series.append(_Due(series.metric, handle, series.values))
        self._slots = max((len(due.values) for due in self._series), default=0)
        self._next = 0

    def until(self, at_ms: int) -> None:
        """Everything with a time up to `at_ms`."""
        while self._next < self._slots and self._next * self._case.interval_ms <= at_ms:
            knobs = self._knobs()
            active = [e for e in self._case.effects if all(knobs.get(k) == v for k, v in e.when.items())]
            rates = _product([e.rates for e in active])
            values = _product([e.values for e in active])
            blocks: dict[int, dict[int, float]] = {}
            for due in self._series:
                value = due.values[self._next] if self._next < len(due.values) else None
                if value is not None:
                    bent = _bent(due, value, rates.get(due.metric, 1.0), values.get(due.metric, 1.0))
                    blocks.setdefault(due.handle.block, {})[due.handle.column] = bent
            for block, columns in blocks.items():
                self._store.push(block, self._next * self._case.interval_ms, columns)
            self._next += 1


def _bent(due: _Due, value: float, rate: float, factor: float) -> float:
    """A counter's growth times `rate`, a gauge times `factor`. A counter that falls has begun anew."""
    if value != value:  # NaN, or the end of the series
        due.raw = None if value is STALE else due.raw
        return value
    if due.raw is None or value < due.raw or (rate == 1 and due.sent == due.raw):
        due.sent = value  # as written: a sum of differences would only add rounding
    else:
        due.sent += (value - due.raw) * rate
    due.raw = value
    return due.sent * factor


def _product(factors: list[Mapping[str, float]]) -> dict[str, float]:
    out: dict[str, float] = {}
    for one in factors:
        for metric, factor in one.items():
            out[metric] = out.get(metric, 1.0) * factor
    return out
