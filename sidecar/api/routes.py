"""The two sites: everything for people and programs in the pod, metrics and health for everybody."""

from __future__ import annotations

import asyncio
import gzip
import logging
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from sidecar.api.dumps import DumpsApi
from sidecar.api.guard import Guard
from sidecar.api.parameters import MAX_BODY
from sidecar.api.prometheus import PrometheusApi
from sidecar.api.replies import alert, failure, success
from sidecar.api.responses import MAX_MESSAGE, WEBHOOK, ResponsesApi
from sidecar.api.services import Services
from sidecar.api.turns import Turns
from sidecar.errors import ConfigError

MAX_TARGET = 8192  # bytes of path and query

_log = logging.getLogger(__name__)


def full(services: Services, turns: Turns | None = None, *, local: bool = False) -> ASGIApp:
    """The whole API. `turns` is how queries share the event loop's thread with everything else; `local`: on a Unix
    socket, whose mode has let in who may do anything.
    """
    return _app(everything(services, turns, local=local))


def everything(services: Services, turns: Turns | None = None, *, local: bool = False) -> list[Route]:
    """Every route there is."""
    guard = Guard(services.token_file, local=local)
    site = _Site(services, guard)
    return [
        *_public(site),
        _route("/-/reload", site.reload, "POST"),
        _route("/api/v1/alerts", site.alerts),
        *(_route(path, answer, *methods) for path, answer, methods in PrometheusApi(services, turns).endpoints()),
        *(_route(path, answer, *methods) for path, answer, methods in ResponsesApi(services, guard).endpoints()),
        *(_route(path, answer, *methods) for path, answer, methods in DumpsApi(services, guard).endpoints()),
    ]


_ONLY_METRICS = ": this listener has /metrics, /runbooks/ALERT, /-/healthy and /-/ready; the API is on http.listen"


def metrics_only(services: Services) -> ASGIApp:
    """What a listener that is open to the network offers: /metrics and health."""
    return _app(_public(_Site(services, Guard(services.token_file))), _ONLY_METRICS)


def _public(site: _Site) -> list[Route]:
    return [
        _route("/metrics", site.metrics),
        _route("/-/healthy", site.healthy),
        _route("/-/ready", site.ready),
        _route("/runbooks/{alert}", site.runbook),
    ]


def _route(path: str, endpoint: Callable[[Request], Awaitable[Response]], *methods: str) -> Route:
    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        # Starlette's own handler would answer too, but then raises again, which costs the client its connection.
        except Exception as e:  # noqa: BLE001
            _log.exception("%s %s failed", request.method, request.url.path)
            return failure(500, f"{type(e).__name__} while answering; the log has the details")

    return Route(path, answer, methods=methods or ("GET",))


def _app(routes: list[Route], elsewhere: str = "") -> ASGIApp:
    """`elsewhere` is added where a path does not exist."""

    async def not_so(request: Request, error: Exception) -> Response:
        return _http_error(request, error, elsewhere)

    app = Starlette(routes=routes, exception_handlers={HTTPException: not_so})
    app.router.redirect_slashes = False  # a redirect would be built from whatever Host header was sent
    return _Limits(app)


def _http_error(request: Request, error: Exception, elsewhere: str) -> Response:
    assert isinstance(error, HTTPException)
    what = {404: f"there is no {request.url.path}{elsewhere}", 405: f"{request.method} is not possible here"}
    return failure(error.status_code, what.get(error.status_code, error.detail), headers=error.headers)


class _Site:
    def __init__(self, services: Services, guard: Guard) -> None:
        self._services, self._guard = services, guard
        self._reloading = asyncio.Lock()

    async def metrics(self, request: Request) -> Response:
        content, content_type = self._services.page(request.headers.get("accept", ""))
        headers = {"Content-Type": content_type, "Vary": "Accept, Accept-Encoding"}
        if "gzip" in request.headers.get("accept-encoding", ""):
            content = gzip.compress(content, 1, mtime=0)
            headers["Content-Encoding"] = "gzip"
        return Response(content, headers=headers)

    async def healthy(self, request: Request) -> Response:
        return PlainTextResponse("spikewatch is healthy.\n")

    async def ready(self, request: Request) -> Response:
        reason = self._services.not_ready()
        if reason:
            return PlainTextResponse(f"spikewatch is not ready: {reason}\n", 503)
        return PlainTextResponse("spikewatch is ready.\n")

    async def runbook(self, request: Request) -> Response:
        page = self._services.runbook(request.path_params["alert"])
        if page is None:
            return failure(404, f"there is no runbook for {request.path_params['alert']}")
        return PlainTextResponse(page, headers={"X-Content-Type-Options": "nosniff"})

    async def reload(self, request: Request) -> Response:
        if refused := self._guard.refusal(request):
            return refused
        try:
            async with self._reloading:
                warnings = await self._services.reload()
        except ConfigError as e:
            _log.warning("reload refused, the running configuration stays:\n%s", e)
            if "text/plain" in request.headers.get("accept", ""):
                return PlainTextResponse(f"{e}\n", 400)
            return failure(400, str(e), details={"problems": [asdict(p) for p in e.problems]})
        return success({"warnings": [str(w) for w in warnings]})

    async def alerts(self, request: Request) -> Response:
        return success({"alerts": [alert(one) for one in self._services.alerts()]})


class _Limits:
    """Refuses what is larger than anything we take, before it is read."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = _too_large(scope) if scope["type"] == "http" else None
        await (refused or self._app)(scope, receive, send)


def _too_large(scope: dict[str, Any] | Scope) -> Response | None:
    if len(scope["raw_path"]) + len(scope["query_string"]) > MAX_TARGET:
        return failure(414, f"the address is longer than {MAX_TARGET} bytes", headers={"Connection": "close"})
    most = MAX_MESSAGE if scope["path"] == WEBHOOK else MAX_BODY
    for name, value in scope["headers"]:
        if name == b"content-length" and (not value.isdigit() or int(value[:12]) > most):
            return failure(413, f"the body is larger than {most} bytes", headers={"Connection": "close"})
    return None
