"""Prometheus, and vmalert before VictoriaMetrics, evaluating the same rules over the same data."""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from bench._engine_load import metrics, rules
from bench._remote_write import RemoteWrite

AHEAD_S = 180  # samples of the near future are loaded too, so that nothing has to be fed while rules run


@dataclass(frozen=True, slots=True)
class Peer:
    """(rule, window) → median microseconds an evaluation, as the peer reports them, and its resident memory."""

    micros: dict[tuple[str, str], float]
    resident_bytes: float
    idle_bytes: float


def binary(name: str) -> Path | None:
    """A peer's program in $SPIKEWATCH_PEERS, None where there is none."""
    folder = os.environ.get("SPIKEWATCH_PEERS", "")
    path = Path(folder) / "bin" / name
    return path if folder and path.exists() else None


def prometheus(folder: Path, n: int, windows: tuple[str, ...], history_s: int, rounds: int, every_s: int) -> Peer:
    """Real Prometheus: filled by remote write, then its own rule manager at work."""
    port = _free_port()
    config, rule_file = folder / "prometheus.yml", folder / "rules.yml"
    rule_file.write_text(yaml.safe_dump(_rule_file(windows, every_s), width=1 << 20))
    config.write_text(yaml.safe_dump({"global": {"scrape_interval": "1h"}}))
    command = [
        str(binary("prometheus")), f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}",
        "--web.enable-remote-write-receiver", "--web.enable-lifecycle", f"--web.listen-address=127.0.0.1:{port}",
        "--storage.tsdb.min-block-duration=12h", "--storage.tsdb.max-block-duration=12h",
    ]  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    with _running(command, folder / "prometheus.log"):
        _wait(f"{url}/-/ready")
        idle = _value(f"{url}/metrics", "process_resident_memory_bytes")
        _fill(f"{url}/api/v1/write", n, history_s)
        config.write_text(yaml.safe_dump({"global": {"scrape_interval": "1h"}, "rule_files": [rule_file.name]}))
        urllib.request.urlopen(urllib.request.Request(f"{url}/-/reload", method="POST"), timeout=30).read()
        micros = _watch(f"{url}/api/v1/rules", rounds, every_s)
        return Peer(micros, _value(f"{url}/metrics", "process_resident_memory_bytes"), idle)


def victoriametrics(folder: Path, n: int, windows: tuple[str, ...], history_s: int, rounds: int, every_s: int) -> Peer:
    """VictoriaMetrics filled the same way, vmalert evaluating against it."""
    database, alerter = _free_port(), _free_port()
    rule_file = folder / "rules.yml"
    rule_file.write_text(yaml.safe_dump(_rule_file(windows, every_s), width=1 << 20))
    url = f"http://127.0.0.1:{database}"
    storage = [
        str(binary("victoria-metrics")), f"-storageDataPath={folder / 'vm'}", f"-httpListenAddr=127.0.0.1:{database}",
        "-search.latencyOffset=0s", "-retentionPeriod=1d",
    ]  # fmt: skip
    alerts = [
        str(binary("vmalert")), f"-rule={rule_file}", f"-datasource.url={url}", "-notifier.blackhole",
        f"-httpListenAddr=127.0.0.1:{alerter}", "-rule.evalDelay=0s",
    ]  # fmt: skip
    with ExitStack() as stack:
        stack.enter_context(_running(storage, folder / "vm.log"))
        _wait(f"{url}/health")
        idle = _value(f"{url}/metrics", "process_resident_memory_bytes")
        _fill(f"{url}/api/v1/write", n, history_s)
        urllib.request.urlopen(f"{url}/internal/force_flush", timeout=60).read()
        stack.enter_context(_running(alerts, folder / "vmalert.log"))
        _wait(f"http://127.0.0.1:{alerter}/health")
        micros = _watch(f"http://127.0.0.1:{alerter}/api/v1/rules", rounds, every_s)
        return Peer(micros, _value(f"{url}/metrics", "process_resident_memory_bytes"), idle)


def _rule_file(windows: tuple[str, ...], every_s: int) -> dict[str, Any]:
    # one group, so that the rules run one after the other and do not compete
    found = [{"alert": f"{name}|{window}", "expr": expr} for window in windows for name, expr in rules(window).items()]
    return {"groups": [{"name": "bench", "interval": f"{every_s}s", "rules": found}]}


def _fill(url: str, n: int, history_s: int) -> None:
    now = int(time.time())
    times = np.arange(now - history_s, now + AHEAD_S, dtype=np.int64) * 1000
    for metric in metrics(n, len(times)):
        writer = RemoteWrite(url, times)
        for j, labels in enumerate(metric.labels):
            writer.add({**labels, "__name__": metric.name}, metric.values[:, j])
        writer.flush()


def _watch(url: str, rounds: int, every_s: int) -> dict[tuple[str, str], float]:
    """Medians over `rounds` evaluations; the first one, which is cold, is left out."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    deadline = time.monotonic() + rounds * every_s * 2 + 60
    while time.monotonic() < deadline:
        for group in json.load(urllib.request.urlopen(url, timeout=30))["data"]["groups"]:
            for rule in group["rules"]:
                if not rule["lastEvaluation"].startswith("0001"):
                    name, window = rule["name"].split("|")
                    found.setdefault((name, window), {})[rule["lastEvaluation"]] = rule["evaluationTime"]
        if found and min(len(each) for each in found.values()) > rounds:
            return {key: statistics.median(list(each.values())[1:]) * 1e6 for key, each in found.items()}
        time.sleep(every_s / 3)
    raise TimeoutError(f"{url} did not evaluate its rules {rounds} times")


@contextmanager
def _running(command: list[str], log: Path) -> Iterator[None]:
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait(url: str) -> None:
    for _ in range(300):
        try:
            urllib.request.urlopen(url, timeout=1).read()
            return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(f"{url} does not answer")


def _value(url: str, metric: str) -> float:
    text = urllib.request.urlopen(url, timeout=30).read().decode()
    return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(metric + " "))


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port
