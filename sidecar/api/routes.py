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

from sidecar.api.guard import refusal
from sidecar.api.parameters import MAX_BODY
from sidecar.api.prometheus import PrometheusApi
from sidecar.api.replies import alert, failure, success
from sidecar.api.services import Services
from sidecar.api.turns import Turns
from sidecar.errors import ConfigError

MAX_TARGET = 8192  # bytes of path and query
_JOURNAL_DEFAULT, _JOURNAL_MAX = 100, 10_000

_log = logging.getLogger(__name__)


def full(services: Services, turns: Turns | None = None) -> ASGIApp:
    """The whole API. `turns` is how queries share the event loop's thread with everything else."""
    return _app(everything(services, turns))


def everything(services: Services, turns: Turns | None = None) -> list[Route]:
    """Every route there is."""
    site = _Site(services)
    return [
        *_public(site),
        _route("/-/reload", site.reload, "POST"),
        _route("/api/v1/alerts", site.alerts),
        *(_route(path, answer, *methods) for path, answer, methods in PrometheusApi(services, turns).endpoints()),
        _route("/api/v1/experiments", site.experiments),
        _route("/api/v1/journal", site.journal),
        _route("/api/v1/responses/{episode}/{response}/approve", site.approve, "POST"),
    ]


def metrics_only(services: Services) -> ASGIApp:
    """What a listener that is open to the network offers: /metrics and health."""
    return _app(_public(_Site(services)))


def _public(site: _Site) -> list[Route]:
    return [
        _route("/metrics", site.metrics),
        _route("/-/healthy", site.healthy),
        _route("/-/ready", site.ready),
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


def _app(routes: list[Route]) -> ASGIApp:
    app = Starlette(routes=routes, exception_handlers={HTTPException: _http_error})
    app.router.redirect_slashes = False  # a redirect would be built from whatever Host header was sent
    return _Limits(app)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = {404: f"there is no {request.url.path}", 405: f"{request.method} is not possible here"}
    return failure(error.status_code, what.get(error.status_code, error.detail), headers=error.headers)


class _Site:
    def __init__(self, services: Services) -> None:
        self._services = services
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

    async def reload(self, request: Request) -> Response:
        if refused := refusal(request, self._services.token_file):
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

    async def experiments(self, request: Request) -> Response:
        return success({"experiments": list(self._services.experiments())})

    async def journal(self, request: Request) -> Response:
        given = request.query_params.get("limit", str(_JOURNAL_DEFAULT))
        if not (given.isascii() and given.isdigit() and 0 < int(given[:9]) <= _JOURNAL_MAX):
            return failure(400, f"limit must be a number from 1 to {_JOURNAL_MAX}, not {given[:40]!r}")
        return success({"entries": list(self._services.journal(int(given)))})

    async def approve(self, request: Request) -> Response:
        if refused := refusal(request, self._services.token_file):
            return refused
        refused_why = self._services.approve(request.path_params["episode"], request.path_params["response"])
        if refused_why is None:
            return success({"approved": True})
        return failure(404 if refused_why.kind == "unknown" else 409, refused_why.reason)


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
    for name, value in scope["headers"]:
        if name == b"content-length" and (not value.isdigit() or int(value[:12]) > MAX_BODY):
            return failure(413, f"the body is larger than {MAX_BODY} bytes", headers={"Connection": "close"})
    return None
