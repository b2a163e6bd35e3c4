"""Flight-recorder dumps of the attached ranks: asked for, listed, handed out."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import Response

from sidecar.api.guard import Guard
from sidecar.api.replies import failure, success
from sidecar.api.services import Services

PATH = "/api/v1/trainer/dumps"

Endpoint = tuple[str, Callable[[Request], Awaitable[Response]], tuple[str, ...]]


class DumpsApi:
    """Asking costs a trainer some 30 ms, so it is guarded like whatever changes something."""

    def __init__(self, services: Services, guard: Guard) -> None:
        self._services, self._guard = services, guard

    def endpoints(self) -> list[Endpoint]:
        """Path, what answers it, methods."""
        return [(PATH, self._all, ("GET", "POST")), (PATH + "/{rank:int}", self._one, ("GET",))]

    async def _all(self, request: Request) -> Response:
        there = self._services.dumps
        if request.method != "POST":
            return success({"dumps": [asdict(dump) for dump in there.dumps().values()] if there else []})
        if refused := self._guard.refusal(request):
            return refused
        if there is None:
            return failure(404, "no trainer can attach to this sidecar")
        dump_id = secrets.token_hex(4)
        return success({"id": dump_id, "asked": list(there.ask_for_dumps(dump_id))})

    async def _one(self, request: Request) -> Response:
        rank, there = request.path_params["rank"], self._services.dumps
        content = there.dump(rank) if there else b""
        if not content:
            return failure(404, f"there is no dump of rank {rank}: POST {PATH} asks for one")
        return Response(content, media_type="application/json")
