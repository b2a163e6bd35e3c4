"""What a busy pod costs: 1400 series pushed in process and 21 rules over 5 minutes a second, and its /metrics page.

    python -m bench.page [--json FILE] [--quick]

The page is scraped by another process, at moments that have nothing to do with the evaluations.
"""

from __future__ import annotations

import http.client
import json
import random
import subprocess
import sys
import time
from pathlib import Path

from bench import _rows
from bench._rows import Row, below, row


def measure(seconds: int, scrapes: int) -> dict[str, Row]:
    """Evaluates alone for `seconds`, then under `scrapes` scrapes some 100 ms apart."""
    command = [sys.executable, "-m", "bench._pod", str(3600)]
    with subprocess.Popen(
        command, cwd=Path(__file__).parents[1], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as pod:
        assert pod.stdin is not None
        assert pod.stdout is not None
        idle, began = json.loads(pod.stdout.readline()), json.loads(pod.stdout.readline())
        started = time.monotonic()
        time.sleep(seconds)
        alone = _ask(pod)
        cpu = (alone["cpu"] - began["cpu"]) / (time.monotonic() - started) * 100
        took, size = _scraped(idle["port"], scrapes)
        busy = _ask(pod)
        pod.stdin.close()
        pod.wait(10)
    ranked = sorted(took)
    return {
        "CPU of pushing 1400 series and evaluating 21 rules": below(cpu, "% of a core", 1.0),
        "memory over the idle process": below((alone["memory"] - idle["memory"]) / 1e6, "MB", 60.0),
        "memory over the idle process, after the scrapes": below((busy["memory"] - idle["memory"]) / 1e6, "MB", 60.0),
        "/metrics, size": row(size / 1e3, "kB"),
        "/metrics, p50": row(ranked[len(ranked) // 2] * 1e3, "ms"),
        "/metrics, p99": below(ranked[len(ranked) * 99 // 100] * 1e3, "ms", 15.0),
    }


def _ask(pod: subprocess.Popen[str]) -> dict[str, float]:
    assert pod.stdin is not None
    assert pod.stdout is not None
    print(file=pod.stdin, flush=True)
    found: dict[str, float] = json.loads(pod.stdout.readline())
    return found


def _scraped(port: int, scrapes: int) -> tuple[list[float], int]:
    """Seconds of each scrape over one connection, as Prometheus keeps it, and the page's size."""
    chance = random.Random(1)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    took, size = [], 0
    for _ in range(scrapes):
        time.sleep(chance.uniform(0.05, 0.15))
        started = time.perf_counter()
        connection.request("GET", "/metrics", headers={"Accept": "text/plain;version=0.0.4"})
        size = len(connection.getresponse().read())
        took.append(time.perf_counter() - started)
    connection.close()
    return took, size


def main() -> int:
    """Returns 0 whether or not targets are met: `python -m bench` judges."""
    given = _rows.arguments(__doc__ or "")
    rows = measure(2, 10) if given.quick else measure(30, 300)
    _rows.publish(rows, given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
