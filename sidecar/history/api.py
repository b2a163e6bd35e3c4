"""A client of Prometheus's query API: it asks a sidecar, Prometheus, Mimir, Thanos or VictoriaMetrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import httpx

from sidecar.errors import QueryError, RemoteError, shown_url
from sidecar.model import Labels, labels_of

_LONGEST_URL = 1800  # what is longer is posted: some servers take no more than 2048 bytes of address

Kind = Literal["vector", "matrix", "scalar", "string"]


@dataclass(frozen=True, slots=True)
class Points:
    """One series of an answer: (time in milliseconds, value), oldest first; a vector has one point each."""

    labels: Labels
    points: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a query gave. A scalar is one series without labels; `text` is the value of a string.

    `raw` is the answer's `data` as it came.
    """

    kind: Kind
    series: tuple[Points, ...]
    text: str
    raw: Mapping[str, Any]
    warnings: tuple[str, ...] = ()


class QueryApi:
    """One server. Use it as a context manager."""

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 120.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """`url` is what stands before `/api/v1/query`. Raises RemoteError where it is none."""
        self._url = url.rstrip("/")
        self.url = shown_url(self._url)
        """Its address for people, without a password."""
        try:
            parts = httpx.URL(self._url)
        except httpx.InvalidURL as e:
            # What is wrong may be a part of the password.
            why = "write %23 for # and %2F for / in its user and password" if self.url != self._url else str(e)
            raise RemoteError(f"not an address: {self.url!r}: {why}") from None
        if parts.scheme not in ("http", "https") or not parts.host:
            raise RemoteError(f"not an address: {self.url!r} (write http://host:port)")
        self._client = httpx.Client(headers=dict(headers or {}), timeout=timeout_s, transport=transport)

    def __enter__(self) -> QueryApi:
        return self

    def __exit__(self, *exc: object) -> None:
        self._client.close()

    def instant(self, expr: str, at_ms: int | None = None) -> Answer:
        """The value at a time; None is now, by the server's clock. Raises QueryError, RemoteError."""
        return self._ask("query", {"query": expr} if at_ms is None else {"query": expr, "time": _seconds(at_ms)}, expr)

    def over(self, expr: str, start_ms: int, end_ms: int, step_ms: int) -> Answer:
        """The value at start, start + step … up to end. Raises QueryError, RemoteError."""
        times = {"start": _seconds(start_ms), "end": _seconds(end_ms), "step": _seconds(step_ms)}
        return self._ask("query_range", {"query": expr, **times}, expr)

    def _ask(self, endpoint: str, parameters: Mapping[str, str], expr: str) -> Answer:
        url = f"{self._url}/api/v1/{endpoint}"
        try:
            request = self._client.build_request("GET", url, params=dict(parameters))
            if len(str(request.url)) > _LONGEST_URL:
                request = self._client.build_request("POST", url, data=dict(parameters))
            response = self._client.send(request)
        except httpx.TimeoutException:
            raise RemoteError(f"no answer from {self.url} within {self._client.timeout.read:g} s") from None
        except httpx.HTTPError as e:
            raise RemoteError(f"no answer from {self.url}: {e or type(e).__name__}; does a server run there?") from None
        return _answer(self._data(response, expr))

    def _data(self, response: httpx.Response, expr: str) -> Mapping[str, Any]:
        try:
            body = response.json()
        except ValueError:
            body = None
        if not isinstance(body, dict) or body.get("status") not in ("success", "error"):
            said = " ".join(response.text.split())[:200]
            raise RemoteError(f"{self.url} has no Prometheus API: HTTP {response.status_code} {said}".rstrip())
        if body["status"] == "error":
            if response.status_code == 404:
                raise RemoteError(f"{self.url} has no Prometheus API: {body.get('error') or 'HTTP 404'}")
            raise QueryError(str(body.get("error") or body.get("errorType") or "error"), expr)
        return body


def _answer(body: Mapping[str, Any]) -> Answer:
    try:
        data = body["data"]
        kind: Kind = data["resultType"]
        text = str(data["result"][1]) if kind == "string" else ""
        series = _series(kind, data["result"])
        return Answer(kind, series, text, data, tuple(str(w) for w in body.get("warnings") or ()))
    except (KeyError, TypeError, IndexError, ValueError) as e:
        raise RemoteError(f"an answer that cannot be read: {type(e).__name__} {e}") from None


def _series(kind: Kind, result: Any) -> tuple[Points, ...]:
    match kind:
        case "matrix":
            return tuple(Points(_labels(s), tuple(_point(p) for p in s.get("values", ()))) for s in result)
        case "vector":
            return tuple(Points(_labels(s), (_point(s["value"]),)) for s in result if "value" in s)
        case "scalar":
            return (Points((), (_point(result),)),)
        case "string":
            return ()
    raise ValueError(f"resultType {kind!r}")


def _labels(series: Mapping[str, Any]) -> Labels:
    return labels_of({str(name): str(value) for name, value in series["metric"].items()})


def _point(pair: Any) -> tuple[int, float]:
    return round(float(pair[0]) * 1000), float(pair[1])


def _seconds(ms: int) -> str:
    """Exact: 1500 → `1.500`."""
    sign, ms = ("-", -ms) if ms < 0 else ("", ms)
    return f"{sign}{ms // 1000}.{ms % 1000:03d}"
