"""The endpoints of Prometheus's HTTP API that a sidecar has: what Grafana and `promtool query` ask for."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response

from sidecar import promql
from sidecar.api import catalog, prometheus_json, queries
from sidecar.api.paced import PacedResponse, while_connected
from sidecar.api.parameters import Parameters
from sidecar.api.queries import Answer, Query
from sidecar.api.replies import refused, success
from sidecar.api.rulelist import rule_list
from sidecar.api.services import Services
from sidecar.api.turns import Pause, Turns
from sidecar.errors import RequestError
from sidecar.model import Labels

_T = TypeVar("_T")
Endpoint = Callable[[Request], Awaitable[Response]]

_TRUNCATED = "results truncated due to limit"
_LOOK_S = 10  # what lists of series and labels may take


class PrometheusApi:
    """Answers from the store, in turns with everything else that runs on the event loop."""

    def __init__(self, services: Services, turns: Turns | None = None) -> None:
        self._services, self._data = services, services.data
        self._turns = turns or Turns()

    def endpoints(self) -> Iterator[tuple[str, Endpoint, tuple[str, ...]]]:
        """(path, endpoint, methods)."""
        both = ("GET", "POST")
        yield "/api/v1/query", self._query, both
        yield "/api/v1/query_range", self._query_range, both
        yield "/api/v1/series", self._series, both
        yield "/api/v1/labels", self._labels, both
        yield "/api/v1/label/{name}/values", self._label_values, ("GET",)
        yield "/api/v1/metadata", self._metadata, ("GET",)
        yield "/api/v1/format_query", self._format_query, both
        yield "/api/v1/rules", self._rules, ("GET",)
        yield "/api/v1/status/buildinfo", self._build, ("GET",)

    async def _query(self, request: Request) -> Response:
        bounds = self._data.bounds
        return await self._evaluated(
            request, lambda parameters: queries.instant(parameters, self._data.now_ms(), bounds)
        )

    async def _query_range(self, request: Request) -> Response:
        return await self._evaluated(request, lambda parameters: queries.ranged(parameters, self._data.bounds))

    async def _evaluated(self, request: Request, read: Callable[[Parameters], Query]) -> Response:
        data = self._data

        async def make() -> Response:
            query = read(await Parameters.of(request))
            work = lambda pause: queries.answer(query, data.store, data.interval_ms(), data.bounds, pause)  # noqa: E731
            return await self._worked(request, query.deadline, work)

        return await _or_refused(make)

    async def _series(self, request: Request) -> Response:
        return await self._listed(request, self._all_series, name_parameter=True)

    async def _labels(self, request: Request) -> Response:
        def names(wanted: catalog.Wanted, pause: Pause) -> Answer:
            return _texts(catalog.label_names(self._data.store, wanted, pause), wanted.limit)

        return await self._listed(request, names)

    async def _label_values(self, request: Request) -> Response:
        def values(wanted: catalog.Wanted, pause: Pause) -> Answer:
            name = request.path_params["name"]
            return _texts(catalog.label_values(self._data.store, name, wanted, pause), wanted.limit)

        return await self._listed(request, values)

    def _all_series(self, wanted: catalog.Wanted, pause: Pause) -> Answer:
        found: list[Labels] = catalog.series(self._data.store, wanted, pause)
        shown, warnings = _cut(found, wanted.limit)
        return Answer(prometheus_json.series_list(shown), warnings)

    async def _listed(
        self, request: Request, look: Callable[[catalog.Wanted, Pause], Answer], *, name_parameter: bool = False
    ) -> Response:
        async def make() -> Response:
            wanted = catalog.Wanted.read(await Parameters.of(request), name_parameter)
            deadline = time.monotonic() + _LOOK_S

            def work(pause: Pause) -> Answer:
                def pause_in_time() -> None:
                    pause()
                    if time.monotonic() > deadline:
                        raise RequestError("query timed out in query execution", 503, "timeout")

                return look(wanted, pause_in_time)

            return await self._worked(request, deadline, work)

        return await _or_refused(make)

    async def _worked(self, request: Request, deadline: float, work: Callable[[Pause], Answer]) -> Response:
        leave = await self._turns.place(deadline)
        try:
            answer = await while_connected(request.receive, self._turns.run(work))
        except BaseException:
            leave()
            raise
        return PacedResponse(prometheus_json.success(answer.data, answer.warnings), self._turns, leave)

    async def _metadata(self, request: Request) -> Response:
        async def make() -> Response:
            parameters = await Parameters.of(request)
            return success(catalog.metadata(self._services.catalogue(), parameters))

        return await _or_refused(make)

    async def _format_query(self, request: Request) -> Response:
        async def make() -> Response:
            text = (await Parameters.of(request)).one("query")
            queries.compiled(text, "query")
            return success(promql.canonical(text))

        return await _or_refused(make)

    async def _rules(self, request: Request) -> Response:
        async def make() -> Response:
            return success(rule_list(self._services.rules(), await Parameters.of(request)))

        return await _or_refused(make)

    async def _build(self, request: Request) -> Response:
        return success(dict(self._services.build))


async def _or_refused(make: Callable[[], Awaitable[Response]]) -> Response:
    try:
        return await make()
    except RequestError as e:
        return refused(e)


def _texts(found: list[str], limit: int) -> Answer:
    shown, warnings = _cut(found, limit)
    return Answer(iter([prometheus_json.document(shown)]), warnings)


def _cut(found: list[_T], limit: int) -> tuple[list[_T], tuple[str, ...]]:
    return (found[:limit], (_TRUNCATED,)) if 0 < limit < len(found) else (found, ())
