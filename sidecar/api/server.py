"""An HTTP listener inside the running event loop: uvicorn without its signals, lifespan and command line."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_HEAD = 16 << 10  # bytes of request line and headers
MAX_CONNECTIONS = 200  # beyond that the answer is 503
HEAD_S = 10  # a connection that has not sent a whole request head by then is closed
KEEP_ALIVE_S = 75  # longer than any usual scrape interval, so that Prometheus keeps its connection


class Server:
    """One listener. `start` returns once it accepts connections; `stop` lets requests finish for a moment."""

    def __init__(self, app: ASGIApp, host: str, port: int, *, grace_s: int = 1) -> None:
        """`port` 0 takes any free one: see `address` after `start`."""
        self._host, self._port = host, port
        self._uvicorn = _Embedded(
            uvicorn.Config(
                app,
                http=_Protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                # nobody stands between us and the client: a forged X-Forwarded-For must not make it local
                proxy_headers=False,
                limit_concurrency=MAX_CONNECTIONS,
                h11_max_incomplete_event_size=MAX_HEAD,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=grace_s,
            )
        )
        self._task: asyncio.Task[None] | None = None
        self.address: tuple[str, int] = (host, port)

    async def start(self) -> None:
        """Raises OSError, with the address in its text, where it cannot be listened on."""
        listening = _bind(self._host, self._port)
        self.address = listening.getsockname()[:2]
        self._task = asyncio.create_task(self._uvicorn.serve(sockets=[listening]), name=f"http {self.address}")
        running = asyncio.create_task(self._uvicorn.running.wait())
        await asyncio.wait([running, self._task], return_when=asyncio.FIRST_COMPLETED)
        running.cancel()
        if self._task.done():
            listening.close()
            await self._task

    async def stop(self) -> None:
        """Closes the listener, then the connections. Ends within the grace given and a little more."""
        self._uvicorn.leaving.set()
        if self._task is not None:
            await self._task
            self._task = None


class _Embedded(uvicorn.Server):
    """Leaves signals to the application, and waits for an event where uvicorn looks ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.running, self.leaving = asyncio.Event(), asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        self.running.set()
        while not self.leaving.is_set():
            await self.on_tick(0)  # refreshes the Date header
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.leaving.wait(), 1)


class _Protocol(H11Protocol):
    """Closes connections that never get as far as a request; uvicorn limits only the time between two."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._deadline = self.loop.call_later(HEAD_S, self._close_if_silent)

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()
        super().connection_lost(exc)

    def _close_if_silent(self) -> None:
        if getattr(self, "cycle", None) is None:
            self.transport.close()


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
    except OSError as e:
        raise OSError(e.errno, f"cannot listen on {host}:{port}: {e.strerror or e}") from e
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setblocking(False)
        listening.bind(address)
    except OSError as e:
        listening.close()
        raise OSError(e.errno, f"cannot listen on {host}:{port}: {e.strerror or e}") from e
    return listening
