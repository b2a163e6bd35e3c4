"""An HTTP listener inside the running event loop: uvicorn without its signals, lifespan and command line."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path
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
        listening = self._listening()
        self._task = asyncio.create_task(self._uvicorn.serve(sockets=[listening]), name=f"http {self.url}")
        running = asyncio.create_task(self._uvicorn.running.wait())
        await asyncio.wait([running, self._task], return_when=asyncio.FIRST_COMPLETED)
        running.cancel()
        if self._task.done():
            listening.close()
            await self._task

    @property
    def url(self) -> str:
        """Where it listens, for people."""
        return "http://{}:{}".format(*self.address)

    def _listening(self) -> socket.socket:
        listening = _bind(self._host, self._port)
        self.address = listening.getsockname()[:2]
        return listening

    async def stop(self) -> None:
        """Closes the listener, then the connections. Ends within the grace given and a little more."""
        self._uvicorn.leaving.set()
        if self._task is not None:
            await self._task
            self._task = None


class UnixServer(Server):
    """The same on a Unix socket that only its owner can connect to. A socket that is left over is replaced."""

    def __init__(self, app: ASGIApp, path: Path, *, grace_s: int = 1) -> None:
        """Makes the path's folder (0700) when it starts, if it is not there."""
        super().__init__(app, str(path), 0, grace_s=grace_s)
        self._path = path

    @property
    def url(self) -> str:
        """Where it listens, for people."""
        return f"unix:{self._path}"

    def _listening(self) -> socket.socket:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # Bound under another name and then moved: nobody finds a socket that is not yet closed to others.
        waiting = self._path.with_name(self._path.name + ".new")
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._path.exists() and not self._path.is_socket():
                raise OSError(errno.EEXIST, "exists and is not a socket: move it away")
            waiting.unlink(missing_ok=True)
            listening.setblocking(False)
            listening.bind(str(waiting))
            os.chmod(waiting, 0o600)
            listening.listen(128)
            os.replace(waiting, self._path)
            self._inode = os.lstat(self._path).st_ino
        except OSError as e:
            listening.close()
            raise OSError(e.errno, f"cannot listen on {self._path}: {e.strerror or e}") from e
        return listening

    async def stop(self) -> None:
        """As of `Server`; removes the path if it is still ours."""
        await super().stop()
        with contextlib.suppress(OSError, AttributeError):
            if os.lstat(self._path).st_ino == self._inode:
                self._path.unlink()


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
