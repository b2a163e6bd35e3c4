"""What people and other systems can ask about responses: what waits, what was done, yes, no, stop; Alertmanager's
webhook."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NoReturn

from starlette.requests import Request
from starlette.responses import Response

from sidecar import durations
from sidecar.api.guard import Guard
from sidecar.api.parameters import Parameters
from sidecar.api.replies import refused, success
from sidecar.api.services import Responses, Services
from sidecar.errors import RequestError
from sidecar.responses.journal import Wanted

WEBHOOK = "/api/v1/webhook/alertmanager"
MAX_MESSAGE = 4 << 20
"""Bytes of a webhook message: some thousand alerts; `max_alerts` of Alertmanager's receiver makes them smaller."""

_ENTRIES_DEFAULT, _ENTRIES_MAX = 100, 10_000
_MAX_TEXT = 500  # characters of who and why

Answer = Callable[[Request], Awaitable[Response]]
Endpoint = tuple[str, Answer, tuple[str, ...]]


class ResponsesApi:
    """The endpoints, with the methods each answers to. Whatever changes something is guarded."""

    def __init__(self, services: Services, guard: Guard) -> None:
        self._services, self._guard = services, guard

    def endpoints(self) -> list[Endpoint]:
        """Path, what answers it, methods."""
        one = "/api/v1/responses/{episode}/{response}"
        return [
            ("/api/v1/responses", _answering(self._responses), ("GET",)),
            ("/api/v1/experiments", _answering(self._experiments), ("GET",)),
            ("/api/v1/journal", _answering(self._journal), ("GET",)),
            ("/api/v1/approvals", _answering(self._approvals), ("GET",)),
            (f"{one}/approve", self._changing(self._approve), ("POST",)),
            (f"{one}/reject", self._changing(self._reject), ("POST",)),
            ("/api/v1/responses/{response}/reset", self._changing(self._reset), ("POST",)),
            ("/api/v1/kill-switch", self._switch, ("GET", "POST", "DELETE")),
            (WEBHOOK, self._webhook, ("POST",)),
        ]

    def _changing(self, answer: Answer) -> Answer:
        async def guarded(request: Request) -> Response:
            return self._guard.refusal(request) or await _answering(answer)(request)

        return guarded

    @property
    def _there(self) -> Responses:
        if self._services.responses is None:
            _nothing()
        return self._services.responses

    # --- looking ----------------------------------------------------------------------------------------------------

    async def _responses(self, request: Request) -> Response:
        there = self._services.responses
        return success({"responses": list(there.responses()) if there else []})

    async def _experiments(self, request: Request) -> Response:
        there = self._services.responses
        return success({"experiments": list(there.experiments()) if there else []})

    async def _approvals(self, request: Request) -> Response:
        there = self._services.responses
        return success({"approvals": list(there.approvals()) if there else []})

    async def _journal(self, request: Request) -> Response:
        given = request.query_params
        after = _number("after", given.get("after", "0"), 0, 1 << 62)
        wanted = Wanted(
            after_id=after,
            limit=_number("limit", given.get("limit", str(_ENTRIES_DEFAULT)), 1, _ENTRIES_MAX),
            kind=given.get("kind", ""),
            episode=given.get("episode", ""),
            response=given.get("response", ""),
            newest="after" not in given,
        )
        there = self._services.responses
        return success({"entries": list(there.journal(wanted)) if there else []})

    # --- asking -----------------------------------------------------------------------------------------------------

    async def _approve(self, request: Request) -> Response:
        given = await Parameters.of(request)
        text = given.one("for")
        try:
            valid_ms = durations.parse(text) if text else None
        except ValueError as e:
            raise RequestError(f"invalid parameter 'for': {e}") from None
        if valid_ms is not None and valid_ms <= 0:
            raise RequestError("invalid parameter 'for': must be longer than 0s")
        path = request.path_params
        self._there.approve(path["episode"], path["response"], _text(given, "by") or "api", valid_ms)
        return success({"approved": True})

    async def _reject(self, request: Request) -> Response:
        given, path = await Parameters.of(request), request.path_params
        self._there.reject(path["episode"], path["response"], _text(given, "by") or "api")
        return success({"rejected": True})

    async def _reset(self, request: Request) -> Response:
        given = await Parameters.of(request)
        self._there.reset(request.path_params["response"], _text(given, "by") or "api")
        return success({"reset": True})

    async def _switch(self, request: Request) -> Response:
        if request.method in ("GET", "HEAD"):
            return await _answering(self._looked)(request)
        return await self._changing(self._switched)(request)

    async def _looked(self, request: Request) -> Response:
        there = self._services.responses
        return success(there.kill_switch() if there else {"on": False})

    async def _switched(self, request: Request) -> Response:
        given = await Parameters.of(request)
        by = _text(given, "by") or "api"
        if request.method == "DELETE":
            return success(self._there.resume(by))
        return success(self._there.halt(by, _text(given, "reason")))

    async def _webhook(self, request: Request) -> Response:
        return self._guard.named(request) or await _answering(self._received)(request)

    async def _received(self, request: Request) -> Response:
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_MESSAGE:
                raise RequestError(f"the body is larger than {MAX_MESSAGE} bytes", 413)
        return success(self._there.receive(body))


def _answering(answer: Answer) -> Answer:
    async def safe(request: Request) -> Response:
        try:
            return await answer(request)
        except RequestError as e:
            return refused(e)

    return safe


def _nothing() -> NoReturn:
    raise RequestError("this sidecar answers no alerts", 404, "not_found")


def _number(name: str, text: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdigit() and least <= int(text[:20]) <= most):
        raise RequestError(f"{name} must be a number from {least} to {most}, not {text[:40]!r}")
    return int(text)


def _text(given: Parameters, name: str) -> str:
    text = given.one(name).strip()
    if len(text) > _MAX_TEXT or not text.isprintable():
        raise RequestError(f"invalid parameter {name!r}: printable text of at most {_MAX_TEXT} characters")
    return text
