"""The way to one Alertmanager: a bounded queue, one request at a time, second tries with growing pauses."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from sidecar.clock import Clock
from sidecar.model import Notification, Sample
from sidecar.outputs.endpoint import Endpoint
from sidecar.outputs.timestamps import rfc3339

if TYPE_CHECKING:
    import httpx

# Sent again, these get the same answer: the alerts are malformed, or too many at once.
_FINAL = frozenset({400, 413})
_ANSWER_LIMIT = 64 << 10  # of an answer only the start is of interest, and only in an error
_PHASES = ("connect", "read", "write", "pool")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """Queue, batch and timeout are Prometheus's."""

    resend_delay_ms: int = 60_000  # a failed alert is given up once its newer copy is due
    queue: int = 10_000  # alerts that may wait; the oldest are dropped
    batch: int = 256  # alerts per request
    timeout_s: float = 10.0  # for a whole request
    pause_s: float = 0.5  # after the first failure; doubled with each further one
    longest_pause_s: float = 15.0


class _Answer(Enum):
    SENT = "sent"
    REFUSED = "refused"
    FAILED = "failed"


class Lane:
    """Sends to one Alertmanager. `put` never waits; `run` is the task that does."""

    def __init__(
        self, endpoint: Endpoint, client: httpx.AsyncClient, clock: Clock, limits: Limits, jitter: Callable[[], float]
    ) -> None:
        self.url = endpoint.url
        self._endpoint, self._client, self._clock = endpoint, client, clock
        self._limits, self._jitter = limits, jitter
        self._queue: deque[tuple[int, Notification]] = deque()  # with the monotonic time of queueing
        self._batch: list[tuple[int, Notification]] = []  # taken out of the queue, not yet accepted
        self._work, self._finish = asyncio.Event(), asyncio.Event()
        self._failures = 0
        self._sent = self._errors = self._dropped = 0

    def put(self, notifications: Sequence[Notification]) -> None:
        """Queues; drops and counts the oldest where there is no room."""
        now = self._clock.monotonic_ms()
        self._queue.extend((now, n) for n in notifications)
        while len(self._queue) > self._limits.queue:
            self._queue.popleft()
            self._dropped += 1
        if self._queue:
            self._work.set()

    def finish(self) -> None:
        """No more second tries, and no more waiting for work."""
        self._finish.set()
        self._work.set()

    async def run(self) -> None:
        """Sends until `finish` was called and nothing is left that could still be sent."""
        while True:
            self._fill()
            if self._batch:
                answer = await self._post([n for _, n in self._batch])
                self._note(answer)
                if answer is _Answer.FAILED:
                    if self._finish.is_set():
                        return
                    await self._pause()
            elif self._finish.is_set():
                return
            else:
                self._work.clear()
                await self._work.wait()

    async def close(self) -> None:
        """Gives up what is left. Call it once `run` has ended."""
        self._dropped += len(self._queue) + len(self._batch)
        self._queue.clear()
        self._batch.clear()
        await self._client.aclose()

    def _fill(self) -> None:
        """Completes the batch with the oldest alerts; those whose newer copy is due are given up."""
        oldest = self._clock.monotonic_ms() - self._limits.resend_delay_ms
        before = len(self._batch)
        self._batch = [item for item in self._batch if item[0] > oldest]
        self._dropped += before - len(self._batch)
        while self._queue and len(self._batch) < self._limits.batch:
            item = self._queue.popleft()
            if item[0] > oldest:
                self._batch.append(item)
            else:
                self._dropped += 1

    async def _post(self, notifications: Sequence[Notification]) -> _Answer:
        """One request. Every failure is an answer: whatever happens, the lane goes on."""
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                status, text = await self._request(json.dumps([_wire(n) for n in notifications]).encode())
        # also OSError of a secret's file: it may be there the next time
        except Exception as e:  # noqa: BLE001
            return self._failed(f"{type(e).__name__}: {e}".rstrip(": "), _Answer.FAILED)
        if 200 <= status < 300:
            return _Answer.SENT
        return self._failed(f"HTTP {status} {text}".strip(), _Answer.REFUSED if status in _FINAL else _Answer.FAILED)

    async def _request(self, body: bytes) -> tuple[int, str]:
        request = self._client.build_request(
            "POST",
            self.url,
            content=body,
            headers=dict(self._endpoint.headers()),
            extensions=dict(self._endpoint.extensions()) | {"timeout": dict.fromkeys(_PHASES, self._limits.timeout_s)},
        )
        response = await self._client.send(request, stream=True)
        try:
            start = b""
            async for chunk in response.aiter_raw():
                start += chunk
                if len(start) > _ANSWER_LIMIT:
                    break
        finally:
            await response.aclose()
        return response.status_code, start[:200].decode("utf-8", "replace")

    def _failed(self, why: str, answer: _Answer) -> _Answer:
        if self._failures == 0:
            _log.warning("Alertmanager %s does not take alerts: %s", self.url, why)
        return answer

    def _note(self, answer: _Answer) -> None:
        count = len(self._batch)
        if answer is _Answer.SENT:
            if self._failures:
                _log.info("Alertmanager %s takes alerts again", self.url)
            self._failures = 0
            self._sent += count
            self._batch = []
            return
        self._failures += 1
        self._errors += count
        if answer is _Answer.REFUSED:
            self._dropped += count
            self._batch = []

    async def _pause(self) -> None:
        delay = min(self._limits.pause_s * 2.0 ** min(self._failures - 1, 30), self._limits.longest_pause_s)
        try:
            await asyncio.wait_for(self._finish.wait(), delay * (0.5 + self._jitter() / 2))
        except TimeoutError:
            pass  # the pause is over

    def samples(self) -> Iterable[Sample]:
        """Its counters, labelled with its address."""
        labels = (("alertmanager", self.url),)
        for name, value in (
            ("sent_total", self._sent),
            ("errors_total", self._errors),
            ("dropped_total", self._dropped),
            ("queue_length", len(self._queue) + len(self._batch)),
            ("queue_capacity", self._limits.queue),
        ):
            yield Sample(f"spikewatch_notifications_{name}", labels, float(value))


def _wire(notification: Notification) -> Mapping[str, object]:
    """As Alertmanager's API wants it; what is empty is left out."""
    wire: dict[str, object] = {"labels": dict(notification.labels), "startsAt": rfc3339(notification.starts_at_ms)}
    if notification.ends_at_ms:
        wire["endsAt"] = rfc3339(notification.ends_at_ms)
    if notification.annotations:
        wire["annotations"] = dict(notification.annotations)
    if notification.generator_url:
        wire["generatorURL"] = notification.generator_url
    return wire
