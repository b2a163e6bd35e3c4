"""A fake Alertmanager on loopback that takes alerts, refuses them, is slow or is away, as told."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from sidecar.api.server import Server


class FakeAlertmanager:
    """`status` is what it answers; `gate`, while cleared, makes it wait before it does."""

    def __init__(self):
        self.status = 200
        self.requests = []  # the JSON body of each
        self.headers = []
        self.gate = asyncio.Event()
        self.gate.set()
        self._arrived = asyncio.Condition()
        self._server = None
        self.port = 0

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    @property
    def alerts(self):
        """Everything it accepted, in order."""
        return [alert for status, body in self.requests if status < 300 for alert in body]

    async def up(self):
        app = Starlette(routes=[Route("/api/v2/alerts", self._take, methods=["POST"])])
        self._server = Server(app, "127.0.0.1", self.port)
        await self._server.start()
        self.port = self._server.address[1]

    async def down(self):
        server, self._server = self._server, None
        if server is not None:
            await server.stop()

    async def _take(self, request):
        body = await request.json()
        await self.gate.wait()
        self.headers.append(request.headers)
        self.requests.append((self.status, body))
        async with self._arrived:
            self._arrived.notify_all()
        return JSONResponse({"message": "as told"}, self.status)

    async def until(self, condition, timeout=10):
        """Waits until a condition over this object holds."""
        async with asyncio.timeout(timeout), self._arrived:
            await self._arrived.wait_for(lambda: condition(self))


@pytest.fixture(scope="session")
def alertmanager():
    """An async context manager that gives a running fake."""

    @asynccontextmanager
    async def running():
        fake = FakeAlertmanager()
        await fake.up()
        try:
            yield fake
        finally:
            fake.gate.set()
            await fake.down()

    return running
