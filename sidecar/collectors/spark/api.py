"""Spark's REST API (`/api/v1`), as drivers and history servers offer it: a few bounded GETs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from sidecar.errors import CollectError, shown_url

if TYPE_CHECKING:
    import httpx

NAME = "spark"
_MAX_BYTES = 16 << 20  # of an answer; a driver keeps 1000 stages, of some kilobytes each


@dataclass(frozen=True, slots=True)
class Application:
    """One run of an application. `path` is its place below `/api/v1`."""

    id: str
    name: str
    path: str


class SparkApi:
    """One server. `url` is its base, without `/api/v1`."""

    def __init__(
        self,
        url: str,
        timeout_s: float,
        transport: httpx.BaseTransport | None = None,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        """`timeout_s` holds for each answer as a whole."""
        self._url, self._timeout_s, self._transport, self._timer = url.rstrip("/"), timeout_s, transport, timer
        self._client: httpx.Client | None = None

    def applications(self, limit: int, ended_after_ms: int) -> Iterator[Application]:
        """At most one more than `limit` of those that run, and of those that ended since. Raises CollectError."""
        since = datetime.fromtimestamp(ended_after_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.000GMT")
        seen: set[str] = set()
        for asked in ({"status": "running"}, {"status": "completed", "minEndDate": since}):
            for found in self._list("applications", {**asked, "limit": str(limit + 1)}):
                application = _application(found)
                # a driver lists its one application under any status
                if application is not None and application.path not in seen:
                    seen.add(application.path)
                    yield application

    def stages(self, application: Application, status: str = "") -> list[Mapping[str, Any]]:
        """Raises CollectError."""
        return self._list(f"{application.path}/stages", {"status": status} if status else {})

    def quantiles(self, application: Application, stage: int, attempt: int) -> Mapping[str, Any] | None:
        """Median and maximum over the tasks that ended well; None before the first. Raises CollectError."""
        try:
            found = self._get(f"{application.path}/stages/{stage}/{attempt}/taskSummary", {"quantiles": "0.5,1.0"})
        except CollectError as e:
            if e.reason == "status_404":
                return None
            raise
        return found if isinstance(found, dict) else None

    def running_tasks(self, application: Application, stage: int, attempt: int) -> list[Mapping[str, Any]]:
        """The twenty that run longest. Raises CollectError."""
        asked = {"status": "running", "sortBy": "-runtime", "length": "20"}
        found = self._list(f"{application.path}/stages/{stage}/{attempt}/taskList", asked)
        # before 3.1 `status` is not known and every task comes
        return [task for task in found if str(task.get("status", "")).upper() == "RUNNING"]

    def close(self) -> None:
        """Closes the connection."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _list(self, path: str, asked: Mapping[str, str]) -> list[Mapping[str, Any]]:
        found = self._get(path, asked)
        if not isinstance(found, list):
            raise self._error("not_spark", path, "answers something else than a list")
        return [one for one in found if isinstance(one, dict)]

    def _get(self, path: str, asked: Mapping[str, str]) -> Any:
        import httpx  # 10 MB of resident memory that only a cluster with Spark pays

        if self._client is None:
            self._client = httpx.Client(
                transport=self._transport,
                timeout=self._timeout_s,
                trust_env=False,
                verify=self._url.startswith("https:"),  # reading the certificates that HTTP does not need takes 50 ms
            )
        try:
            with self._client.stream("GET", f"{self._url}/api/v1/{path}", params=dict(asked)) as response:
                if response.is_redirect:
                    where = response.headers.get("location", "")
                    raise self._error(
                        "redirected", path, f"sends to {shown_url(where)}: give the address it leads to as url"
                    )
                if response.status_code != 200:
                    raise self._error(f"status_{response.status_code}", path, f"answers {response.status_code}")
                return json.loads(self._body(response, path))
        except httpx.TimeoutException as e:
            raise self._error("timeout", path, f"no answer within {self._timeout_s:g} s") from e
        except (httpx.HTTPError, httpx.InvalidURL) as e:
            raise self._error("unreachable", path, f"{type(e).__name__}: {e}") from e
        except (ValueError, RecursionError) as e:
            raise self._error("not_spark", path, f"answers no JSON: {e}") from e

    def _body(self, response: httpx.Response, path: str) -> bytes:
        end = self._timer() + self._timeout_s  # an answer that drips would never time out by itself
        found = bytearray()
        for chunk in response.iter_bytes():
            found += chunk
            if len(found) > _MAX_BYTES:
                raise self._error("too_large", path, f"answers more than {_MAX_BYTES >> 20} MiB")
            if self._timer() > end:
                raise self._error("timeout", path, f"not complete within {self._timeout_s:g} s")
        return bytes(found)

    def _error(self, reason: str, path: str, text: str) -> CollectError:
        return CollectError(NAME, reason, f"{shown_url(self._url)}/api/v1/{path}: {text}")


def _application(found: Mapping[str, Any]) -> Application | None:
    """Under YARN an application has attempts, each a place of its own, the newest first."""
    name, key = str(found.get("name", "")), str(found.get("id", ""))
    if not key:
        return None
    path = f"applications/{quote(key, safe='')}"
    attempts = found.get("attempts")
    if isinstance(attempts, list) and attempts and isinstance(attempts[0], dict) and attempts[0].get("attemptId"):
        path += f"/{quote(str(attempts[0]['attemptId']), safe='')}"
    return Application(key, name[:100] or key, path)
