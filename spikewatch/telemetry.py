"""What is worth looking up about once a second: sources asked on the client's thread, one slot in the ring.

A source that fails is counted and, after a few failures in a row, no longer asked: its series then are absent.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from spikewatch import layout, procinfo
from spikewatch.layout import MISSING
from spikewatch.meter import LOSSES, Meter
from spikewatch.ring import RingWriter

log = logging.getLogger("spikewatch")

EVERY = 1.0  # seconds between two rounds
MAX_FAILURES = 5  # in a row

Source = Callable[[float], Mapping[str, float]]
"""Called with the monotonic time in seconds; returns values by slow field, none for what is not known."""


class Telemetry:
    """The slow fields and the words about one run. All methods but `describe` belong to the client's thread."""

    def __init__(self, meter: Meter, ring: RingWriter, sources: Iterable[Source] = ()) -> None:
        self.about: dict[str, str] = {}
        self._meter = meter
        self._ring = ring
        self._sources = list(sources)
        self._failures: Counter[int] = Counter()
        self._due = 0.0

    def add(self, source: Source) -> None:
        self._sources.append(source)

    def describe(self, **words: str | None) -> None:
        """Notes what is known of the run in words. A new mapping each time: another thread reads it as a whole."""
        said = {name: text[:255] for name, text in words.items() if text}
        self.about = {**self.about, **said}

    def tick(self, now: float) -> None:
        """To be called often; asks the sources when it is time."""
        if now >= self._due:
            self._due = now + EVERY
            self.publish(now)

    def publish(self, now: float) -> None:
        """One round of all sources."""
        values: dict[str, float] = {}
        for source in list(self._sources):
            try:
                values.update(source(now))
                self._failures[id(source)] = 0
            except Exception as error:  # noqa: BLE001  one source must not take the others with it
                self._failed(source, error)
        self._ring.write_slow([values.get(name, MISSING) for name in layout.SLOW_FIELDS])

    def _failed(self, source: Source, error: Exception) -> None:
        self._meter.errors += 1
        self._failures[id(source)] += 1
        log.debug("a telemetry source failed", exc_info=error)
        if self._failures[id(source)] >= MAX_FAILURES:
            self._sources.remove(source)
            log.warning("spikewatch no longer asks %s, which failed %d times: %r", source, MAX_FAILURES, error)


def counted(meter: Meter) -> Source:
    """What the meter and the newest losses tell: epoch, cold start, offloaded bytes, standard deviation of the loss."""
    started = procinfo.started_at()

    def read(_: float) -> dict[str, float]:
        values = {"epoch_steps": meter.epoch_steps(), "epoch_overflows": meter.epoch_overflows()}
        if meter.first_step_at and started is not None:
            values["cold_start_seconds"] = meter.first_step_at - started
        if len(meter.losses) == LOSSES:
            values["loss_stddev"] = deviation([x for x in meter.losses.copy() if math.isfinite(x)])
        values["offload_bytes_total"] = meter.offloaded
        return values

    return read


def deviation(values: list[float]) -> float:
    """The sample standard deviation; missing of fewer than two values."""
    if len(values) < 2:
        return MISSING
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((x - mean) ** 2 for x in values) / (len(values) - 1))
