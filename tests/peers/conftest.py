"""A whole sidecar, a trainer, a real Alertmanager and a real Prometheus, all at work on one loopback."""

import json
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parent))

from bench import _live

READY_S = 20
LABELS = {"cluster": "eu-1", "pod": "train-0"}
EXTERNAL_URL = "http://train-0.example:9478"


class Hook:
    """An Alertmanager's webhook receiver; keeps the alerts it is told of, newest last."""

    def __init__(self):
        self.alerts = []
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                hook.alerts += json.loads(self.rfile.read(int(self.headers["Content-Length"])))["alerts"]
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@contextmanager
def running(address, command, log):
    """A peer process, once it is ready, and a client for it."""
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=sink)
    try:
        with httpx.Client(base_url=f"http://{address}", trust_env=False) as client:
            eventually(lambda: process.poll() is not None or _ready(client), log, READY_S)
            assert process.poll() is None, log.read_text()
            yield client
    finally:
        process.kill()
        process.wait(10)


def _ready(client):
    try:
        return client.get("/-/ready").status_code == 200
    except httpx.TransportError:
        return False


def eventually(condition, what, seconds=25):
    """The first true answer."""
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until, f"{what}: not in {seconds} s"
        time.sleep(0.05)
    return found


@pytest.fixture(scope="session")
def started():
    """`running`, for files beside this one."""
    return running


@pytest.fixture(scope="module")
def pod(peer, alertmanager_command, tmp_path_factory):
    """Everything, started: `trainer` is told what to do, `prometheus`, `alertmanager` and `sidecar` are asked."""
    folder = tmp_path_factory.mktemp("pod")
    with ExitStack() as stack:
        # first, because it takes five seconds to look at its targets
        scraped = f"127.0.0.1:{_live.free_port()}"
        scrape = {"job_name": "pods", "static_configs": [{"targets": [scraped]}]}
        interval = {"scrape_interval": "500ms", "scrape_timeout": "500ms"}
        (folder / "prometheus.yml").write_text(json.dumps({"global": interval, "scrape_configs": [scrape]}))
        listen = f"127.0.0.1:{_live.free_port()}"
        command = (
            peer("prometheus"),
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/tsdb",
            "--scrape.discovery-reload-interval=100ms",
            f"--web.listen-address={listen}",
        )
        prometheus = stack.enter_context(running(listen, command, folder / "prometheus.log"))

        hook = Hook()
        stack.callback(hook.close)
        route = {"receiver": "hook", "group_wait": "0s", "group_interval": "200ms", "group_by": ["alertname"]}
        receivers = [{"name": "hook", "webhook_configs": [{"url": hook.url}]}]
        (folder / "am.yml").write_text(json.dumps({"route": route, "receivers": receivers}))
        address = f"127.0.0.1:{_live.free_port()}"
        command = alertmanager_command(folder / "am.yml", folder / "am", address)
        alertmanager = stack.enter_context(running(address, command, folder / "alertmanager.log"))

        # the shipped rule waits for 30 s; a team that wants it sooner says so like this
        (folder / "overrides.yaml").write_text("overrides: {TrainerStarvedOfData: {for: 1s}}")
        config = {
            "alertmanagers": [{"url": f"http://{address}"}],
            "external_labels": LABELS,
            "external_url": EXTERNAL_URL,
            "metrics": {"listen": scraped},
            "overrides": str(folder / "overrides.yaml"),
        }
        sidecar = stack.enter_context(_live.sidecar(config))
        trainer = stack.enter_context(_live.trainer(sidecar.socket))

        yield SimpleNamespace(
            sidecar=sidecar,
            trainer=trainer,
            hook=hook,
            alertmanager=alertmanager,
            alertmanager_url=f"http://{address}",
            prometheus=prometheus,
            prometheus_log=folder / "prometheus.log",
            scraped=scraped,
            eventually=eventually,
        )
