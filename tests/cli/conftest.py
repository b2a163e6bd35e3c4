"""What the tests of the rule tools share: the command line in process, a real Prometheus over given samples."""

import asyncio
import os
import socket
import subprocess
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

import sidecar.cli
from sidecar.api import routes
from sidecar.api.server import Server
from sidecar.api.services import Data, Services
from sidecar.errors import SpikewatchError
from sidecar.history.api import QueryApi


@pytest.fixture
def spikewatch():
    """Runs the command line; gives back exit code, stdout and stderr."""

    def run(*args):
        result = CliRunner().invoke(sidecar.cli._spikewatch, [str(a) for a in args], prog_name="spikewatch")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


@pytest.fixture(scope="session")
def peer():
    """The path of a peer's binary."""
    folder = os.environ.get("SPIKEWATCH_PEERS")
    if not folder:
        pytest.skip("SPIKEWATCH_PEERS is not set")
    return lambda name: str(Path(folder) / "bin" / name)


@pytest.fixture(scope="session")
def promtool(peer):
    """Runs promtool and gives back what it printed; it must succeed."""

    def run(*args, cwd=None):
        command = [peer("promtool"), *map(str, args)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=cwd)
        assert result.returncode == 0, (result.stdout + result.stderr)[:5000]
        return result.stdout

    return run


@pytest.fixture(scope="session")
def prometheus_over(peer, promtool):
    """A context manager: the address of a real Prometheus that holds what an OpenMetrics file says."""

    @contextmanager
    def running(folder, openmetrics):
        promtool("tsdb", "create-blocks-from", "openmetrics", openmetrics, folder / "tsdb")
        (folder / "empty.yml").write_text("")
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{s.getsockname()[1]}"
        process = subprocess.Popen(
            [
                peer("prometheus"),
                f"--config.file={folder}/empty.yml",
                f"--storage.tsdb.path={folder}/tsdb",
                "--storage.tsdb.retention.time=100y",
                f"--web.listen-address={address}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            answering(f"http://{address}")
            yield f"http://{address}"
        finally:
            process.kill()
            process.wait(10)

    return running


def answering(url, timeout_s=20):
    deadline = time.monotonic() + timeout_s
    with QueryApi(url) as api:
        while True:
            try:
                return api.instant("vector(1)")
            except SpikewatchError:
                assert time.monotonic() < deadline
                time.sleep(0.05)


async def no_reload():
    return ()


@pytest.fixture
def sidecar_over():
    """The address of an API over a store whose time is `now_ms`."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    servers = []

    def start(store, now_ms):
        services = Services(
            page=lambda accept: (b"", "text/plain"),
            not_ready=lambda: "",
            reload=no_reload,
            alerts=lambda: (),
            data=Data(store, lambda: now_ms),
        )
        servers.append(Server(routes.full(services), "127.0.0.1", 0))
        asyncio.run_coroutine_threadsafe(servers[-1].start(), loop).result(10)
        return "http://{}:{}".format(*servers[-1].address)

    yield start
    for server in servers:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()
