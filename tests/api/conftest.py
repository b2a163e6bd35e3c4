"""A real listener on loopback for each test, its event loop in a thread of its own."""

import asyncio
import sys
import threading
from pathlib import Path

import httpx
import pytest

from sidecar.api import routes
from sidecar.api.server import Server
from sidecar.api.services import Services

sys.path.insert(0, str(Path(__file__).parent))  # for the helpers beside this file


async def no_reload():
    return ()


def services(**given):
    """Services of a sidecar with nothing to say, but for what is given."""
    silent = {
        "page": lambda accept: (b"", "text/plain"),
        "not_ready": lambda: "",
        "reload": no_reload,
        "alerts": lambda: (),
    }
    return Services(**{**silent, **given})


class Asked:
    """Stands where the responses are: writes down what is asked of it, and raises `refuses` where that is set."""

    def __init__(self, refuses=None, **answers):
        self.calls, self.refuses, self.answers = [], refuses, answers

    def __getattr__(self, name):
        def answer(*args):
            if self.refuses is not None:
                raise self.refuses
            self.calls.append((name, *args))
            return self.answers.get(name, {"on": False} if name in ("kill_switch", "halt", "resume") else [])

        return answer


class Loop:
    """An event loop in a thread, and what has to be stopped on it in the end."""

    def __init__(self):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="server loop")
        self._thread.start()
        self._servers = []

    def submit(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine):
        return self.submit(coroutine).result(15)

    def start(self, app, **given):
        server = Server(app, "127.0.0.1", 0, **given)
        self.run(server.start())
        self._servers.append(server)
        return server

    def close(self):
        async def stop_all():
            await asyncio.gather(*(server.stop() for server in self._servers))

        self.run(stop_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(15)
        self._loop.close()


@pytest.fixture
def asked():
    """Makes one that stands where the responses are."""
    return Asked


@pytest.fixture(scope="session")
def silent():
    """Makes services of a sidecar with nothing to say, but for what is given."""
    return services


@pytest.fixture(scope="module")
def loop():
    made = Loop()
    yield made
    made.close()


@pytest.fixture
def serve(loop):
    """Starts a listener with the given services and returns a client for it; `site` is the app to serve."""
    clients = []

    def start(site=routes.full, **given):
        server = loop.start(site(services(**given)))
        clients.append(
            httpx.Client(base_url="http://{}:{}".format(*server.address), trust_env=False, verify=False, timeout=10)
        )
        return clients[-1]

    yield start
    for client in clients:
        client.close()
