"""Alertmanager v2 client: every alert to every Alertmanager, through a bounded queue of each one's own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from sidecar.clock import Clock
from sidecar.model import MetricInfo, Notification, Sample
from sidecar.outputs.endpoint import Endpoint
from sidecar.outputs.lane import Lane, Limits

if TYPE_CHECKING:
    import httpx

_LABELS = ("alertmanager",)
METRICS: tuple[MetricInfo, ...] = (
    MetricInfo("spikewatch_notifications_sent_total", "counter", "", "Alerts an Alertmanager accepted.", _LABELS),
    MetricInfo("spikewatch_notifications_errors_total", "counter", "", "Alerts in requests that failed.", _LABELS),
    MetricInfo(
        "spikewatch_notifications_dropped_total",
        "counter",
        "",
        "Alerts given up: the queue was full, the next resend was due, or they were refused.",
        _LABELS,
    ),
    MetricInfo("spikewatch_notifications_queue_length", "gauge", "", "Alerts waiting to be sent.", _LABELS),
    MetricInfo("spikewatch_notifications_queue_capacity", "gauge", "", "Alerts that may wait.", _LABELS),
)


class Notifier:
    """Hands alerts to all Alertmanagers. `send` only queues; one task for each Alertmanager does the waiting.

    A request that fails is tried again, with growing pauses, until the alert's next resend is due: then the newer
    copy takes its place. All methods belong to the event loop's thread.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        clock: Clock,
        limits: Limits = Limits(),  # noqa: B008  frozen
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        jitter: Callable[[], float] | None = None,
    ) -> None:
        """`jitter` gives 0..1: a fleet must not come back to a restarted Alertmanager all at once.

        Raises ConfigError when a TLS file of an endpoint cannot be used.
        """
        self._lanes = [Lane(e, e.client(transport), clock, limits, jitter or random.Random().random) for e in endpoints]
        self._tasks: list[asyncio.Task[None]] = []

    def send(self, notifications: Sequence[Notification]) -> None:
        """Queues for every Alertmanager; where a queue is full its oldest alerts are dropped and counted."""
        for lane in self._lanes:
            lane.put(notifications)

    def start(self) -> None:
        """Begins to send. Needs a running event loop."""
        self._tasks = [asyncio.create_task(lane.run(), name=f"alertmanager {lane.url}") for lane in self._lanes]

    async def close(self, drain_s: float = 2.0) -> None:
        """Sends what is queued, without second tries, for at most `drain_s` seconds; the rest is dropped, counted."""
        for lane in self._lanes:
            lane.finish()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=drain_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        for lane in self._lanes:
            await lane.close()

    def samples(self) -> Iterable[Sample]:
        """The self-metrics named in METRICS."""
        for lane in self._lanes:
            yield from lane.samples()
