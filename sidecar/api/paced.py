"""Answers made piece by piece while they are sent, for as long as somebody is there to read them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sidecar.api.turns import Turns
from sidecar.errors import RequestError

SEND_S = 60  # who has not read an answer by then does not get the rest

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


async def while_connected(receive: Receive, work: Coroutine[Any, Any, _T]) -> _T:
    """What the work gives; it is cancelled when the client goes away. Raises RequestError then."""
    working, gone = asyncio.create_task(work), asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise RequestError("query was canceled in expression evaluation", 499, "canceled")
        return working.result()
    finally:
        for task in (working, gone):
            task.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class PacedResponse(Response):
    """No answer is ever in memory as a whole. `leave` is called once it is sent, or will not be."""

    media_type = "application/json"

    def __init__(self, pieces: Iterator[bytes], turns: Turns, leave: Callable[[], None]) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._pieces, self._turns, self._leave = pieces, turns, leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(SEND_S):
                await while_connected(receive, self._send(send))
        except TimeoutError:
            _log.warning("%s: not read within %d seconds, given up", scope["path"], SEND_S)
        except RequestError:
            pass  # the client went away
        finally:
            self._leave()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for piece in self._turns.each(self._pieces):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
