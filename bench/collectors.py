"""What watching costs: eight GPUs behind a stand-in for NVML and 64 processes, in CPU, memory and time of a scrape.

    python -m bench.collectors [--json FILE] [--quick]

The whole sidecar is measured, with its own children: a process of its own, started as in a pod, without rules where CPU
is measured. The stand-in answers in microseconds; what a real driver adds is what `make device-check` prints.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench import _rows
from bench._live import Live, descendants, sidecar
from bench._rows import Row, below, row

FAKES = Path(__file__).resolve().parents[1] / "tests" / "fakes"
GPUS, PROCESSES = 8, 64
WARM_UP_S = 6.0


@contextlib.contextmanager
def crowd(number: int) -> Iterator[None]:
    """So many processes that do nothing: all of them are looked at."""
    sleepers = [subprocess.Popen(["sleep", "3600"]) for _ in range(number)]
    try:
        yield
    finally:
        for one in sleepers:
            one.kill()
        for one in sleepers:
            one.wait(10)


def tree_cpu_seconds(live: Live) -> float:
    """CPU used so far by the sidecar and its children that are still there."""
    found = 0.0
    for pid in descendants(live.pid):
        with contextlib.suppress(OSError):
            found += time.clock_gettime((~pid << 3) | 2)
    return found


def cpu_ratio(library: Path, pace: str, seconds: float, *, on: bool = True) -> float:
    """Share of a core the whole tree uses with everything read at `pace`; `on` False: without collectors."""
    with sidecar(configuration(library, pace, on=on)) as live:
        time.sleep(WARM_UP_S)
        began, cpu = time.monotonic(), tree_cpu_seconds(live)
        time.sleep(seconds)
        return (tree_cpu_seconds(live) - cpu) / (time.monotonic() - began)


def configuration(library: Path, pace: str, *, on: bool = True) -> Mapping[str, Any]:
    """A sidecar that reads GPUs and processes at one pace and, by itself, nothing else."""
    quiet = {name: {"enabled": False} for name in others()}
    nvml = {"enabled": on, "interval": pace, "fast": pace, "library_path": str(library)}
    return {
        "collectors": {**quiet, "nvml": nvml, "process": {"enabled": on, "interval": pace}},
        "collector_cpu_budget": None,
        "rules": [],
        "responses": [],
    }


def others() -> list[str]:
    """Collectors that have benchmarks of their own."""
    from sidecar.plugins import Registry

    registry = Registry()
    registry.discover()
    return [name for name in registry.collectors if name not in ("nvml", "process")]


def scrapes(live: Live, number: int) -> list[float]:
    """Milliseconds each of so many scrapes takes, twenty a second."""
    found = []
    for _ in range(number):
        began = time.perf_counter()
        page = live.get("/metrics")
        found.append((time.perf_counter() - began) * 1000)
        if b"spikewatch_gpu_up" not in page:
            raise RuntimeError("the page has no GPUs: the collector is down")
        time.sleep(max(0.0, 0.05 - found[-1] / 1000))
    return found


def alone() -> bool:
    """Whether this process is in a PID namespace of its own, as a pod is; where it may, it moves into one."""
    if os.getpid() == 1 or os.environ.get("BENCH_ALONE"):
        return True
    inside = ["unshare", "--fork", "--pid", "--mount-proc", "--kill-child"]
    with contextlib.suppress(OSError):
        if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode == 0:
            command = [*inside, sys.executable, "-m", "bench.collectors", *sys.argv[1:]]
            environ = {**os.environ, "BENCH_ALONE": "1"}
            sys.exit(subprocess.run(command, check=False, env=environ).returncode)
    print("no right to make a PID namespace: every process of this machine is looked at, not only 64", flush=True)
    return False


def main() -> int:
    """Returns 1 when a target is missed."""
    alone()
    arguments = _rows.arguments(__doc__ or "")
    sys.path.insert(0, str(FAKES))
    import fakenvml

    seconds, number = (4.0, 40) if arguments.quick else (30.0, 600)
    rows: dict[str, Row] = {}
    with tempfile.TemporaryDirectory(prefix="spikewatch-bench-") as name, crowd(PROCESSES):
        library = fakenvml.build(Path(name))
        scenario = fakenvml.Scenario(Path(name) / "scenario", GPUS)
        os.environ.update(scenario.environment)
        idle = cpu_ratio(library, "1s", seconds, on=False)
        rows["sidecar without collectors"] = row(idle * 100, "% core")
        for pace, limit in (("200ms", 3.0), ("1s", 1.0)):
            whole = cpu_ratio(library, pace, seconds)
            rows[f"whole sidecar at {pace}"] = row(whole * 100, "% core")
            rows[f"8 GPUs and 64 processes at {pace}"] = below((whole - idle) * 100, "% core", limit)
        ordinary = {"nvml": {"library_path": str(library)}, **{name: {"enabled": False} for name in others()}}
        with sidecar({"collectors": ordinary}) as live:  # every pace and rule as shipped
            time.sleep(WARM_UP_S)
            took = sorted(scrapes(live, number))
            rows["/metrics, median"] = row(statistics.median(took), "ms")
            rows["/metrics, 99th percentile"] = below(took[int(len(took) * 0.99)], "ms", 15)
            rows["main process, resident"] = below(live.resident_bytes() / 1e6, "MB", 80)
            rows["main process, of that anonymous"] = row(live.anonymous_bytes() / 1e6, "MB")
            rows["main process and children, PSS"] = below(live.proportional_bytes() / 1e6, "MB", 110)
    _rows.publish(rows, arguments.json)
    return 0 if all(r["ok"] is not False for r in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
