"""Where a signal is provoked: a folder, real sidecars, the processes and servers of a story, and what they said."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

import httpx
import yaml
from signals_lever import Lever

from sidecar.plugins import COLLECTORS, installed

T = TypeVar("T")

HERE = Path(__file__).parent
QUIET = {name: {"enabled": False} for group, name, _ in installed() if group == COLLECTORS}
"""No collector at all; a story names those that its signal reads."""
SPIKEWATCH = ("-m", "sidecar", "run", "--config")
PATIENCE_S = 120.0


class Stage:
    """Use it as a context manager: whatever was started on it ends with it."""

    def __enter__(self) -> Stage:
        self.folder = Path(tempfile.mkdtemp(prefix="swsig-", dir="/tmp"))  # short: sockets lie in it
        self._ending = contextlib.ExitStack()
        self._started: list[subprocess.Popen[bytes]] = []
        self._ending.callback(shutil.rmtree, self.folder, ignore_errors=True)
        return self

    def __exit__(self, *exc: object) -> None:
        self._ending.close()

    def pod(
        self,
        name: str = "pod",
        environ: Mapping[str, str] | None = None,
        program: Sequence[str] = SPIKEWATCH,
        **config: Any,
    ) -> Pod:
        """A sidecar with the shipped rules and responses; `config` goes into its spikewatch.yaml. `program` is run by
        Python and gets the path of that file.
        """
        made = Pod(self, self.folder / name, config)
        self._ending.callback(made.close)
        made.start(program, environ or {})
        return made

    def run(self, script: str, *arguments: object, **environ: str) -> subprocess.Popen[bytes]:
        """A Python script that stands beside this file, as a process group of its own; its output is a file."""
        command = [sys.executable, str(HERE / script), *map(str, arguments)]
        return self.start(command, Path(script).stem, environ)

    def start(self, command: Sequence[str], name: str, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Any process; killed with its children at the end."""
        number = len(list(self.folder.glob(f"{name}*.out")))
        with (self.folder / f"{name}{number}.out").open("wb") as output:
            process = subprocess.Popen(
                command, env={**os.environ, **environ}, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        self._ending.callback(_kill, process)
        self._started.append(process)
        return process

    def serve(self, answer: Callable[[str], tuple[int, str, bytes]]) -> str:
        """An HTTP server on the loopback: path with query → (status, content type, body). Gives its address."""

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, kind, body = answer(self.path)
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self.do_GET()

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()

        def end() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        self._ending.callback(end)
        return f"127.0.0.1:{server.server_address[1]}"

    def lever(self, name: str = "lever") -> Lever:
        """A number that processes of a story watch."""
        made = Lever(self.folder / name)
        self._ending.callback(made.close)
        return made

    def alive(self) -> bool:
        """Whether every process that was started here still runs: none ends by itself."""
        return all(process.poll() is None for process in self._started)

    def said(self) -> str:
        """The ends of everything that was written here."""
        ends = [f"--- {p.name}\n{p.read_text(errors='replace')[-3000:]}" for p in sorted(self.folder.glob("*.out"))]
        return "\n".join(ends)


class Pod:
    """One sidecar process and its API."""

    def __init__(self, stage: Stage, folder: Path, config: Mapping[str, Any]) -> None:
        folder.mkdir()
        self.stage, self.folder = stage, folder
        self.socket = folder / "run" / "trainer.sock"
        collectors = {**QUIET, **config.get("collectors", {})}
        whole = {
            "state_dir": "state",
            "run_dir": "run",
            "http": {"listen": "127.0.0.1:0"},
            "metrics": None,
            **config,
            "collectors": collectors,
        }
        (folder / "spikewatch.yaml").write_text(yaml.safe_dump(whole))
        transport = httpx.HTTPTransport(uds=str(folder / "run" / "api.sock"))
        self.api = httpx.Client(base_url="http://localhost", transport=transport, timeout=30, trust_env=False)
        self.started = 0.0  # wall time

    def start(self, program: Sequence[str], environ: Mapping[str, str]) -> None:
        """Runs it and waits until it has evaluated once."""
        self.started = time.time()
        command = [sys.executable, *program, str(self.folder / "spikewatch.yaml")]
        self.stage.start(command, self.folder.name, environ)
        self.until(self._ready, "the sidecar is ready")

    def _ready(self) -> bool:
        # Not before it listens: a refused connection to a Unix socket leaves one that nobody closes (httpcore 1.0).
        return "running: " in self._said() and self.api.get("/-/ready").status_code == 200

    def _said(self) -> str:
        return (self.stage.folder / f"{self.folder.name}0.out").read_text()

    @property
    def address(self) -> str:
        """host:port of the TCP listener, by what the sidecar said."""
        found = re.search(r"running: http://(\S+?),", self._said())
        assert found is not None, self._said()
        return found[1]

    def close(self) -> None:
        """Its connections; the process ends with the stage."""
        self.api.close()

    # --- asking -----------------------------------------------------------------------------------------------------

    def until(self, wanted: Callable[[], T], what: str, seconds: float = PATIENCE_S) -> T:
        """The first true answer; AssertionError with all that is known when none comes."""
        deadline = time.monotonic() + seconds
        while True:
            found = wanted()
            if found:
                return found
            assert self.stage.alive(), f"a process has ended before: {what}\n{self.report()}"
            assert time.monotonic() < deadline, f"not within {seconds} s: {what}\n{self.report()}"
            time.sleep(0.1)

    def value(self, expr: str) -> float | None:
        """The only element of a query; None where there is none."""
        found = self.api.get("/api/v1/query", params={"query": expr}).json()["data"]["result"]
        assert len(found) <= 1, found
        return float(found[0]["value"][1]) if found else None

    def until_true(self, expr: str, seconds: float = PATIENCE_S) -> float:
        """The value of a query that must get an element."""
        return self.until(lambda: (self.value(expr),) if self.value(expr) is not None else None, expr, seconds)[0] or 0

    def journal(self, kind: str, **fields: str) -> list[dict[str, Any]]:
        """Entries of a kind, oldest first."""
        found = self.api.get("/api/v1/journal", params={"kind": kind, "limit": 10_000, **fields}).json()
        return list(found["data"]["entries"])

    def report(self) -> str:
        """What somebody wants to read when a story does not come true."""
        with contextlib.suppress(httpx.HTTPError):
            alerts = json.dumps(self.api.get("/api/v1/alerts").json()["data"])
            ups = self.api.get("/api/v1/query", params={"query": "spikewatch_collector_status == 1"}).json()
            return f"{alerts}\n{json.dumps(ups['data'])}\n{self.stage.said()}"
        return self.stage.said()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """The whole group: loader workers of a killed trainer outlive it for seconds."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)
