"""A real sidecar in a process of its own, a scripted trainer, and what /proc says of them."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

START_S = 60.0


class Live:
    """A running sidecar: `url`, `socket`, and what it costs."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path, url: str) -> None:
        self.pid = process.pid
        self.socket = folder / "run" / "trainer.sock"
        self.url = url
        self._process = process

    def get(self, path: str) -> bytes:
        """The body of an answer."""
        with urllib.request.urlopen(self.url + path, timeout=5) as answer:
            body: bytes = answer.read()
            return body

    def wait_for(self, path: str) -> None:
        """Returns once `path` answers 200."""
        until = time.monotonic() + START_S
        while True:
            try:
                self.get(path)
            except OSError:
                if self._process.poll() is not None or time.monotonic() > until:
                    raise
                time.sleep(0.05)
            else:
                return

    def end(self) -> None:
        """Asks it to stop, and waits until it has."""
        _end(self._process)

    def kill(self) -> None:
        """Ends it without asking."""
        self._process.kill()
        self._process.wait()

    def cpu_seconds(self) -> float:
        """CPU used so far by all its threads, also ended ones, to the nanosecond."""
        # /proc/PID/stat counts in hundredths of a second: too coarse for less than a hundredth of a core. The number
        # is the kernel's id of another process's CPU clock, what clock_getcpuclockid(3) returns.
        return time.clock_gettime((~self.pid << 3) | 2)

    def resident_bytes(self) -> int:
        """Resident memory of the main process."""
        return _kilobytes(Path(f"/proc/{self.pid}/status"), "VmRSS:") * 1024

    def anonymous_bytes(self) -> int:
        """Of the resident memory what is in no file: no other process has it, and nobody can drop it."""
        return _kilobytes(Path(f"/proc/{self.pid}/status"), "RssAnon:") * 1024

    def proportional_bytes(self) -> int:
        """Proportional memory (PSS) of the process and all its descendants."""
        return sum(_kilobytes(Path(f"/proc/{pid}/smaps_rollup"), "Pss:") * 1024 for pid in descendants(self.pid))


@contextmanager
def sidecar(config: Mapping[str, Any]) -> Iterator[Live]:
    """A sidecar with this configuration over the defaults; state and sockets in a folder that is removed."""
    with tempfile.TemporaryDirectory(prefix="spikewatch-bench-") as name:
        live = launch(Path(name), config)
        try:
            yield live
        finally:
            live.end()


def launch(folder: Path, config: Mapping[str, Any]) -> Live:
    """Starts a sidecar in `folder`, again and again if wanted; returns when it is ready. Raises RuntimeError."""
    listen = f"127.0.0.1:{free_port()}"
    file = folder / "spikewatch.yaml"
    settings = {"state_dir": "state", "run_dir": "run", "http": {"listen": listen}, "metrics": None, **config}
    file.write_text(json.dumps(settings), encoding="utf-8")  # JSON is YAML
    command = [sys.executable, "-m", "sidecar", "run", "--config", str(file)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    live = Live(process, folder, f"http://{listen}")
    try:
        live.wait_for("/-/ready")
    except OSError as e:
        live.end()
        raise RuntimeError(f"the sidecar did not start: {(folder / 'log').read_text()}") from e
    return live


class Trainer:
    """The scripted trainer, attached to a sidecar."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def tell(self, **order: float) -> float:
        """Changes its behaviour; returns when the first step with it ended, seconds since 1970."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(order), file=self._process.stdin, flush=True)
        return float(json.loads(self._process.stdout.readline())["t"])


@contextmanager
def trainer(socket: Path) -> Iterator[Trainer]:
    """A trainer process without torch; connected when the block begins."""
    command = [sys.executable, str(Path(__file__).with_name("_trainer.py")), str(socket)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        found = Trainer(process)
        found.tell()
        yield found
    finally:
        _end(process)


def descendants(pid: int) -> list[int]:
    """`pid` and every process below it."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def _end(process: subprocess.Popen[Any]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


def _kilobytes(file: Path, key: str) -> int:
    for line in file.read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1])
    raise LookupError(f"{file} has no {key}")


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on now."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
