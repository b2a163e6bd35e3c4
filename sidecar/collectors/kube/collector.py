"""The collector `kube`: asks the Kubernetes API once a minute what runs on what, and tells each pod's cost per hour."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from sidecar.collectors.kube import objects
from sidecar.collectors.kube.api import NODES, PODS, RESOURCES, Account, Api, connected
from sidecar.collectors.kube.book import Book
from sidecar.collectors.kube.catalogue import METRICS
from sidecar.collectors.kube.objects import Node, Pod
from sidecar.collectors.kube.owners import Owners
from sidecar.collectors.kube.settings import KubeSettings
from sidecar.collectors.kube.shares import PodKey, costs
from sidecar.collectors.repeated import Repeated
from sidecar.errors import CollectError
from sidecar.hooks import CollectorSettings, Section
from sidecar.model import Availability, Finding, MetricInfo, Sample, Status, labels_of

if TYPE_CHECKING:
    import httpx

_T = TypeVar("_T")
_DENIED = frozenset({"unauthorized", "forbidden", "no_token"})
KEPT_MS = 300_000  # as far as readers look back: so long an API may be away
RETRY_MS = 15_000
_REQUEST_S = 20.0  # one request of a reading


@dataclass(frozen=True, slots=True)
class _Reading:
    """What one reading brought."""

    pods: Sequence[Pod]
    cost: Mapping[PodKey, float]
    nodes: int
    requests: int
    unreadable: Sequence[str]
    failures: Sequence[CollectError]  # lists that are missing from it


class KubeCollector:
    """Everything is asked anew once a minute: nothing is watched, so nothing can be missed."""

    name: ClassVar[str] = "kube"
    settings: ClassVar[type[CollectorSettings]] = KubeSettings
    metrics: ClassVar[tuple[MetricInfo, ...]] = METRICS

    def __init__(
        self,
        settings: KubeSettings,
        *,
        environ: Mapping[str, str] | None = None,
        transport: httpx.BaseTransport | None = None,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        """`environ` tells where the API is, `transport` carries requests, `timer` measures them in seconds."""
        self._settings, self._transport, self._timer = settings, transport, timer
        self._environ = os.environ if environ is None else environ
        self._owners = Owners()
        self._book = Book(settings.prices)
        self._repeated = Repeated()
        self._reading: _Reading | None = None
        self._read_ms = self._next_ms = 0
        self._newest: list[Sample] = []
        self._stretch = 1
        self._status = Status(Availability.AVAILABLE)

    def probe(self) -> Status:
        """What the newest reading came to; where there is none, what the API lets us list."""
        if self._reading is not None:
            return self._status
        if not self._server():
            fix = "run it in the cluster, or set collectors.kube.server"
            return Status(Availability.UNAVAILABLE, "not_in_cluster", fix)
        try:
            with self._connected() as api:
                found = [f.status for f in self._permissions(api)]
        except CollectError as e:
            return _status(e)
        return next((s for s in found if s.state is not Availability.AVAILABLE), Status(Availability.AVAILABLE))

    def sample(self, now_ms: int) -> Iterable[Sample]:
        """Asks the API when it is time. Raises CollectError when the pods cannot be told.

        An API that does not answer for a moment ends nothing: what it said some minutes ago still holds, and is told.
        """
        if self._reading is None or not self._read_ms <= now_ms < self._next_ms:
            try:
                self._refresh(now_ms)
            except CollectError as e:
                if self._reading is None or e.reason in _DENIED or not 0 <= now_ms - self._read_ms < KEPT_MS:
                    self._reading = None
                    self._repeated.forget()
                    raise
                self._status = Status(Availability.DEGRADED, e.reason, str(e))
                self._next_ms = now_ms + RETRY_MS
        return self._newest

    def sections(self, now_ms: int) -> Iterator[Section]:
        """As `sample`; between two readings next to nothing is written."""
        self.sample(now_ms)
        yield self._repeated.section(self._read_ms, self._newest, now_ms)

    def stretch(self, factor: int) -> None:
        """The API is asked `factor` times as seldom."""
        self._stretch = factor

    def findings(self) -> Iterator[Finding]:
        """For `spikewatch doctor`: each list, and how many pods have a cost."""
        if not self._server():
            return
        try:
            with self._connected() as api:
                yield from self._permissions(api)
        except CollectError as e:
            yield Finding("Kubernetes API", _status(e))
            return
        if self._reading is not None:
            known, pods = len(self._reading.cost), len(self._reading.pods)
            detail = f"{known} of {pods} pods on {self._reading.nodes} nodes, {self._reading.requests} requests"
            yield Finding("cost of pods", self._status, detail)

    def close(self) -> None:
        """Nothing is held between two readings."""

    # --- reading --------------------------------------------------------------------------------------------------

    def _refresh(self, now_ms: int) -> None:
        self._book.begin()
        with self._connected() as api:
            reading = self._read(api)
        self._newest = list(self._samples(reading))
        self._status = self._judged(reading, now_ms)
        self._reading, self._read_ms = reading, now_ms
        self._next_ms = now_ms + self._settings.refresh * self._stretch

    def _server(self) -> str:
        if self._settings.server:
            return self._settings.server
        host, port = (self._environ.get(f"KUBERNETES_SERVICE_{name}", "") for name in ("HOST", "PORT"))
        return f"https://{f'[{host}]' if ':' in host else host}:{port or 443}" if host else ""

    def _connected(self) -> AbstractContextManager[Api]:
        s = self._settings
        account = Account(self._server(), s.token_file, s.ca_file)
        end_s = self._timer() + s.deadline / 1000
        timeout_s = min(_REQUEST_S, s.deadline / 1000)
        bounds = {"page_size": s.page_size, "max_pages": s.max_pages, "end_s": end_s, "timer": self._timer}
        return connected(account, self._transport, timeout_s, **bounds)

    def _permissions(self, api: Api) -> Iterator[Finding]:
        """One object of each list is asked for. Without pods there is nothing; without the others there is less."""
        for resource in RESOURCES:
            try:
                api.may(resource, self._settings.namespaces)
            except CollectError as e:
                found = _status(e)
                if resource is not PODS and e.reason == "forbidden":
                    found = Status(Availability.DEGRADED, f"no_{resource.plural}", found.fix)
                yield Finding(f"list of {resource.plural}", found)
            else:
                yield Finding(f"list of {resource.plural}", Status(Availability.AVAILABLE))

    def _read(self, api: Api) -> _Reading:
        unreadable: list[str] = []
        failures: list[CollectError] = []
        namespaces = self._settings.namespaces

        def pod(given: Mapping[str, Any]) -> Pod | None:
            return _readable("pod", given, objects.pod, unreadable)

        def node(given: Mapping[str, Any]) -> Node | None:
            label = self._settings.instance_type_label
            return _readable("node", given, lambda g: objects.node(g, label), unreadable)

        pods = api.listed(PODS, pod, namespaces)
        try:
            nodes = {node.name: node for node in api.listed(NODES, node)}
        except CollectError as e:
            if e.reason != "forbidden":
                raise
            failures.append(e)
            nodes = {}
        pods = self._owners.resolved(pods, api, namespaces)
        failures += self._owners.failures
        cost = costs(pods, nodes, self._book.of)
        return _Reading(pods, cost, len(nodes), api.requests, unreadable, failures)

    def _samples(self, reading: _Reading) -> Iterator[Sample]:
        s = self._settings
        if s.pod_cost_limit_usd_per_hour is not None:
            yield Sample("spikewatch_pod_cost_limit_usd_per_hour", (), s.pod_cost_limit_usd_per_hour)
        shown = self._shown(reading)
        for pod in shown:
            own = {"namespace": pod.namespace, "pod": pod.name, "owner": str(pod.owner)}
            labels = labels_of(own)
            yield Sample("spikewatch_pod_info", labels_of(own | {"node": pod.node}), 1.0)
            if s.prices is not None:
                yield Sample("spikewatch_pod_running", labels, 1.0)
            if (usd := reading.cost.get((pod.namespace, pod.name))) is not None:
                yield Sample("spikewatch_pod_cost_per_hour", labels, usd)
        named = {(pod.namespace, str(pod.owner)) for pod in shown}
        replicas = Counter((pod.namespace, str(pod.owner)) for pod in reading.pods if pod.owner.kind)
        for (namespace, owner), number in replicas.items():
            if (namespace, owner) in named:
                labels = labels_of({"namespace": namespace, "owner": owner})
                yield Sample("spikewatch_workload_replicas", labels, float(number))

    def _shown(self, reading: _Reading) -> Sequence[Pod]:
        """All pods, or those that matter most: the costliest, then those with most GPUs and cores. A quarter of the
        room is for pods without a cost: nobody would hear of them else.
        """
        limit = self._settings.max_pods
        if len(reading.pods) <= limit:
            return reading.pods

        def weight(pod: Pod) -> tuple[float, float, float, str, str]:
            key = (pod.namespace, pod.name)
            return (-reading.cost.get(key, 0.0), -pod.requests.gpu, -pod.requests.cpu, *key)

        unknown = sorted((p for p in reading.pods if (p.namespace, p.name) not in reading.cost), key=weight)[
            : limit // 4
        ]
        first = {(pod.namespace, pod.name) for pod in unknown}
        rest = sorted((p for p in reading.pods if (p.namespace, p.name) not in first), key=weight)
        return [*unknown, *rest[: limit - len(unknown)]]

    def _judged(self, reading: _Reading, now_ms: int) -> Status:
        s, book = self._settings, self._book
        if reading.failures:
            return Status(Availability.DEGRADED, reading.failures[0].reason, str(reading.failures[0]))
        if book.problem:
            return Status(Availability.DEGRADED, "price_book", book.problem)
        if len(reading.pods) > s.max_pods:
            fix = f"{len(reading.pods)} pods, series of {s.max_pods}: raise max_pods, or name namespaces"
            return Status(Availability.DEGRADED, "too_many_pods", fix)
        if reading.unreadable:
            return Status(Availability.DEGRADED, "unreadable_objects", f"look at {reading.unreadable[0]}")
        if book.missing:
            kind, region, capacity = min(book.missing)
            what = kind or f"a node without the label {s.instance_type_label}"
            fix = f"add to {s.prices}: {what} in {region or 'no region'}, {capacity} ({len(book.missing)} are missing)"
            return Status(Availability.DEGRADED, "no_price", fix)
        if old := book.old(datetime.fromtimestamp(now_ms / 1000, UTC).date()):
            fix = (
                f"run `spikewatch prices refresh`: {len(old)} in use, that of {old[0].instance_type} of {old[0].as_of}"
            )
            return Status(Availability.DEGRADED, "old_prices", fix)
        return Status(Availability.AVAILABLE)


def _status(error: CollectError) -> Status:
    state = Availability.DENIED if error.reason in _DENIED else Availability.UNAVAILABLE
    return Status(state, error.reason, str(error))


def _readable(
    kind: str, given: Mapping[str, Any], read: Callable[[Mapping[str, Any]], _T], problems: list[str]
) -> _T | None:
    try:
        return read(given)
    except objects.Unreadable as e:
        metadata = given.get("metadata") if isinstance(given, dict) else None
        named = metadata if isinstance(metadata, dict) else {}
        problems.append(f"{kind} {named.get('namespace', '')}/{named.get('name', '?')}: {e}")
        return None
