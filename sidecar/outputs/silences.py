"""What every Alertmanager has silenced, read every few seconds; one task for each, and nobody waits for it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sidecar.model import MetricInfo, Sample
from sidecar.outputs.endpoint import Endpoint

if TYPE_CHECKING:
    import httpx

PATH = "/api/v2/silences"
TIMEOUT_S = 10.0
MOST = 4 << 20  # bytes of an answer

METRICS: tuple[MetricInfo, ...] = (
    MetricInfo(
        "spikewatch_silences_known", "gauge", "", "Silences last read, active and pending ones.", ("alertmanager",)
    ),
    MetricInfo(
        "spikewatch_silences_errors_total", "counter", "", "Silences could not be read so often.", ("alertmanager",)
    ),
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HeardSilence:
    """One silence. A condition is (label, value, whether it is a regular expression, whether it must hold)."""

    id: str
    starts_ms: int
    ends_ms: int
    conditions: tuple[tuple[str, str, bool, bool], ...]


Learn = Callable[[str, Sequence[HeardSilence]], None]
"""Called with an Alertmanager's address and its whole list, each time it was read."""


class SilenceReader:
    """All methods belong to the event loop's thread."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        learn: Learn,
        interval_ms: int,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Raises ConfigError when a TLS file of an endpoint cannot be used."""
        self._learn, self._interval_s = learn, interval_ms / 1000
        self._readers = [(e, e.client(transport)) for e in endpoints]
        self._known = {e.settings.url: 0 for e in endpoints}
        self._errors = {e.settings.url: 0 for e in endpoints}
        self._failing: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Reads at once, and then with each interval. Needs a running event loop."""
        self._tasks = [
            asyncio.create_task(self._run(endpoint, client), name=f"silences {endpoint.settings.url}")
            for endpoint, client in self._readers
        ]

    async def close(self) -> None:
        """Stops at once."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for _, client in self._readers:
            await client.aclose()

    def samples(self) -> Iterable[Sample]:
        """The self-metrics named in METRICS."""
        for url, known in self._known.items():
            labels = (("alertmanager", url),)
            yield Sample("spikewatch_silences_known", labels, float(known))
            yield Sample("spikewatch_silences_errors_total", labels, float(self._errors[url]))

    async def _run(self, endpoint: Endpoint, client: httpx.AsyncClient) -> None:
        while True:
            await self._read(endpoint, client)
            await asyncio.sleep(self._interval_s)

    async def _read(self, endpoint: Endpoint, client: httpx.AsyncClient) -> None:
        """One request. Every failure is counted, and what was read before stays: the next request may do better."""
        url = endpoint.settings.url
        try:
            async with asyncio.timeout(TIMEOUT_S):
                found = heard(await self._body(endpoint, client))
        except Exception as e:  # noqa: BLE001  also the OSError of a secret's file
            self._errors[url] += 1
            if url not in self._failing:
                self._failing.add(url)
                _log.warning("silences of %s cannot be read: %s", url, f"{type(e).__name__}: {e}".rstrip(": "))
            return
        self._failing.discard(url)
        self._known[url] = len(found)
        self._learn(url, found)

    @staticmethod
    async def _body(endpoint: Endpoint, client: httpx.AsyncClient) -> bytes:
        request = client.build_request(
            "GET",
            endpoint.settings.url + PATH,
            headers=dict(endpoint.headers()),
            extensions=dict(endpoint.extensions()) | {"timeout": dict.fromkeys(_PHASES, TIMEOUT_S)},
        )
        response = await client.send(request, stream=True)
        try:
            body = b""
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > MOST:
                    raise ValueError(f"the answer is larger than {MOST} bytes")
        finally:
            await response.aclose()
        if response.status_code != 200:
            raise ValueError(f"HTTP {response.status_code} {body[:200].decode('utf-8', 'replace')}".rstrip())
        return body


_PHASES = ("connect", "read", "write", "pool")


def heard(body: bytes) -> list[HeardSilence]:
    """The silences of an answer that have not expired. Raises ValueError for what is none of Alertmanager's."""
    found = json.loads(body)
    if not isinstance(found, list):
        raise ValueError("no list of silences")
    try:
        return [_silence(one) for one in found if one["status"]["state"] != "expired"]
    except (KeyError, TypeError, AttributeError) as e:
        raise ValueError(f"no list of silences: {type(e).__name__} {e}") from None


def _silence(one: Mapping[str, Any]) -> HeardSilence:
    conditions = tuple(
        (str(m["name"]), str(m["value"]), bool(m["isRegex"]), bool(m.get("isEqual", True))) for m in one["matchers"]
    )
    return HeardSilence(str(one["id"]), _ms(one["startsAt"]), _ms(one["endsAt"]), conditions)


def _ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)
