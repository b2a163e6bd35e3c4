"""The Kubernetes API as far as a reader of lists needs it: pages, their bounds, and why there is none."""

from __future__ import annotations

import json
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sidecar.errors import CollectError

if TYPE_CHECKING:
    import httpx

_T = TypeVar("_T")
_MAX_PAGE = 64 << 20  # bytes; 500 pods take some 5 MB
_TOKEN = re.compile(rb"[!-~]{1,65536}")
_RESTARTS = 2  # of one list whose continuation expired
_METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
_BY_STATUS = {
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    429: "throttled",
}


@dataclass(frozen=True, slots=True)
class Resource:
    """Something to list. `bodies` False: only metadata is asked for. `select` leaves objects out at the server."""

    group: str
    plural: str
    bodies: bool = True
    namespaced: bool = True
    select: str = ""

    def path(self, namespace: str = "") -> str:
        """All of the cluster's, or those of a namespace."""
        root = f"/apis/{self.group}/v1" if self.group else "/api/v1"
        return f"{root}/namespaces/{namespace}/{self.plural}" if namespace else f"{root}/{self.plural}"

    def grant(self) -> str:
        """The rule that lets a service account read it, as it stands in a ClusterRole."""
        return f'{{apiGroups: ["{self.group}"], resources: [{self.plural}], verbs: [list]}}'


PODS = Resource("", "pods", select="spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed")
NODES = Resource("", "nodes", namespaced=False)
REPLICA_SETS = Resource("apps", "replicasets", bodies=False)
JOBS = Resource("batch", "jobs", bodies=False)
RESOURCES = (PODS, NODES, REPLICA_SETS, JOBS)


class _Gone(Exception):
    """The continuation of a list has expired."""


@dataclass(frozen=True, slots=True)
class Account:
    """Where the API is, and who we are to it. Files are read at each use: tokens rotate, authorities too."""

    server: str
    token_file: Path
    ca_file: Path

    def token(self) -> str:
        """Raises CollectError."""
        fix = "mount the service account's token (automountServiceAccountToken: true)"
        try:
            token = self.token_file.read_bytes().strip()
        except OSError as e:
            raise CollectError("kube", "no_token", f"{self.token_file}: {e.strerror}: {fix}") from e
        if _TOKEN.fullmatch(token) is None:  # a header with it would be quoted, secret and all, in an error
            raise CollectError("kube", "no_token", f"{self.token_file}: holds no token: {fix}")
        return token.decode("ascii")

    def context(self) -> ssl.SSLContext | bool:
        """Raises CollectError."""
        if not self.server.startswith("https:"):
            return False
        try:
            return ssl.create_default_context(cafile=self.ca_file)
        except OSError as e:  # an SSLError is one
            raise CollectError("kube", "no_ca", f"{self.ca_file}: {e}: mount the cluster's authority there") from e


class Api:
    """One reading's connection. `end_s` is the monotonic moment at which all of it has to be over."""

    def __init__(
        self,
        client: httpx.Client,
        token: Callable[[], str],
        *,
        page_size: int,
        max_pages: int,
        end_s: float,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._token = client, token
        self._page_size, self._max_pages = page_size, max_pages
        self._end_s, self._timer = end_s, timer
        self.requests = 0

    def listed(
        self, resource: Resource, keep: Callable[[Mapping[str, Any]], _T | None], namespaces: Sequence[str] = ()
    ) -> list[_T]:
        """What `keep` makes of each object, None left out. Raises CollectError when the whole list cannot be had."""
        found: list[_T] = []
        for namespace in namespaces if namespaces and resource.namespaced else ("",):
            found += self._restarted(resource, keep, namespace)
        return found

    def may(self, resource: Resource, namespaces: Sequence[str] = ()) -> None:
        """Asks for one object. Raises CollectError with the reason for which a list would fail."""
        for namespace in namespaces if namespaces and resource.namespaced else ("",):
            self._page(resource, namespace, "", 1)

    def _restarted(
        self, resource: Resource, keep: Callable[[Mapping[str, Any]], _T | None], namespace: str
    ) -> list[_T]:
        for _ in range(_RESTARTS + 1):
            try:
                return [kept for item in self._items(resource, namespace) if (kept := keep(item)) is not None]
            except _Gone:  # what was gathered is of another moment than the rest would be
                continue
        raise _failed(resource, "expired", f"its pages expired {_RESTARTS + 1} times: raise page_size")

    def _items(self, resource: Resource, namespace: str) -> Iterator[Mapping[str, Any]]:
        token = ""
        for _ in range(self._max_pages):
            page = self._page(resource, namespace, token, self._page_size)
            try:
                items, token = page["items"] or [], (page.get("metadata") or {}).get("continue") or ""
                if not isinstance(items, list):
                    raise TypeError(f"items is a {type(items).__name__}")
            except (KeyError, TypeError, AttributeError) as e:
                raise _failed(resource, "no_list", f"the answer is no list: {type(e).__name__}: {e}") from e
            yield from items
            if not token:
                return
        text = f"more than {self._max_pages} pages of {self._page_size}: raise page_size, or name namespaces"
        raise _failed(resource, "too_many_pages", text)

    def _page(self, resource: Resource, namespace: str, token: str, limit: int) -> Any:
        import httpx

        asked = {"limit": str(limit)}
        if resource.select:
            asked["fieldSelector"] = resource.select
        if token:
            asked["continue"] = token
        headers = {
            "Authorization": f"Bearer {self._token()}",
            "Accept": "application/json" if resource.bodies else _METADATA,
            "User-Agent": "spikewatch",
        }
        if self._timer() > self._end_s:
            raise _failed(resource, "timeout", "no time is left for it: raise deadline or page_size")
        self.requests += 1
        try:
            with self._client.stream("GET", resource.path(namespace), params=asked, headers=headers) as answer:
                body = self._body(resource, answer)
        except httpx.TimeoutException as e:
            raise _failed(resource, "timeout", f"no answer: {type(e).__name__}") from e
        except (httpx.HTTPError, httpx.InvalidURL) as e:
            raise _failed(resource, "unreachable", f"{type(e).__name__}: {e}") from e
        if answer.status_code == 410:
            raise _Gone
        if answer.status_code != 200:
            raise _refused(resource, answer.status_code, body)
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as e:
            raise _failed(resource, "no_json", f"the answer is no JSON: {e}") from e

    def _body(self, resource: Resource, answer: httpx.Response) -> bytes:
        found = bytearray()
        for chunk in answer.iter_bytes():
            found += chunk
            if len(found) > _MAX_PAGE:
                raise _failed(resource, "too_large", f"a page of more than {_MAX_PAGE >> 20} MiB: lower page_size")
            if self._timer() > self._end_s:  # an answer that drips would never time out by itself
                raise _failed(resource, "timeout", "the answer was not complete in time")
        return bytes(found)


@contextmanager
def connected(
    account: Account, transport: httpx.BaseTransport | None, timeout_s: float, **bounds: Any
) -> Iterator[Api]:
    """An Api for one reading, closed after it. Raises CollectError for files that cannot be read."""
    import httpx  # megabytes that only the cluster's one process pays

    with httpx.Client(
        base_url=account.server,
        transport=transport,
        verify=account.context(),
        trust_env=False,
        timeout=timeout_s,
    ) as client:
        yield Api(client, account.token, **bounds)


def _failed(resource: Resource, reason: str, text: str) -> CollectError:
    return CollectError("kube", reason, f"list of {resource.plural}: {text}")


def _refused(resource: Resource, status: int, body: bytes) -> CollectError:
    try:
        said = str(json.loads(body)["message"])[:300]
    except (ValueError, LookupError, TypeError, RecursionError):
        said = body[:200].decode("utf-8", "replace")
    text = f"the API answers {status}: {said}"
    if status == 403:
        text += f"; add {resource.grant()} to the service account's ClusterRole"
    if status == 401:
        text += "; the token is not valid here: check token_file, and that the service account exists"
    return _failed(resource, _BY_STATUS.get(status, "http_status"), text)
