"""Records what the whole sidecar exports, once a second, beside a training run with nothing wrong in it.

    nice -n 19 python -m bench.record_healthy --seconds 1200 --out tests/signals/recorded/healthy.om.xz

The run is `bench._healthy_trainer`: warm-up, compilation, epochs with an evaluation and a checkpoint at each end, and
half way it is stopped and started again from its last checkpoint. Beside it stands a GPU of the tests' stand-in for the
driver's library, 92 % of its memory in use and 90 % of its SMs. The rest is real: trainer, sidecar, kernel. What is
kept is OpenMetrics text that `spikewatch backtest --data` reads once it is unpacked: the metrics that the shipped rules
read. `--raw` keeps all of them.
"""

from __future__ import annotations

import argparse
import lzma
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import httpx
import yaml

from sidecar.alerting.backtest import reads
from sidecar.alerting.loader import load_rules
from sidecar.app.files import shipped_folder

FAKES = Path(__file__).parent.parent / "tests" / "fakes"
ALWAYS = frozenset({"spikewatch_trainer_steps_total", "spikewatch_trainer_phase", "spikewatch_trainer_epoch"})
"""Kept, whatever rules read: they tell what the run was doing."""

Recording = dict[str, list[tuple[int, str]]]
"""Series as on the page → (seconds since 1970, value as text), oldest first."""


def wanted() -> frozenset[str]:
    """The metrics that the shipped rules read."""
    metrics = reads(load_rules(sorted(shipped_folder().glob("**/*.rules.yaml"))).groups).metrics
    assert metrics is not None, "a shipped rule has a selector without a name"
    return metrics | ALWAYS


def samples(page: str) -> Iterator[tuple[str, str]]:
    """(series, value) of every line of a page in Prometheus's text format."""
    for line in page.splitlines():
        if line and not line.startswith("#"):
            series, _, value = line.rpartition(" ")
            yield series, value


def openmetrics(recording: Mapping[str, Iterable[tuple[int, str]]], metrics: frozenset[str] | None) -> Iterator[str]:
    """Lines, metric by metric; `metrics` None keeps all."""
    for series in sorted(recording, key=lambda s: (s.partition("{")[0], s)):
        if metrics is None or series.partition("{")[0] in metrics:
            yield from (f"{series} {value} {t}\n" for t, value in recording[series])
    yield "# EOF\n"


def write(path: Path, recording: Recording, metrics: frozenset[str] | None) -> None:
    """Compressed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with lzma.open(path, "wt", preset=9) as file:
        file.writelines(openmetrics(recording, metrics))


def read(path: Path) -> Recording:
    """What `write` wrote."""
    recording: Recording = {}
    with lzma.open(path, "rt") as file:
        for line in file:
            if not line.startswith("#"):
                series, value, t = line.rstrip("\n").rsplit(" ", 2)
                recording.setdefault(series, []).append((int(t), value))
    return recording


def record(url: str, seconds: int, then: Mapping[int, object]) -> Recording:
    """Asks for the page once a second; `then` are functions to call at a second."""
    found: Recording = {}
    start = int(time.time()) + 1
    with httpx.Client(timeout=10, trust_env=False) as http:
        for second in range(seconds):
            time.sleep(max(0.0, start + second + 0.5 - time.time()))
            if second in then:
                then[second]()  # type: ignore[operator]
            for series, value in samples(http.get(url + "/metrics").text):
                found.setdefault(series, []).append((start + second, value))
    return found


class Run:
    """The trainer; `again` stops it and starts it from its checkpoint."""

    def __init__(self, socket: Path, folder: Path, pause: float, steps: int) -> None:
        arguments = map(str, (socket, folder, pause, steps))
        self._command = [sys.executable, "-m", "bench._healthy_trainer", *arguments]
        self._environ = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, env=self._environ)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)

    def again(self) -> None:
        self.stop()
        self.start()


def main() -> None:
    """Records, filters, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=1200)
    parser.add_argument("--pause", type=float, default=0.15, help="seconds of a step that stand for the device")
    parser.add_argument("--steps", type=int, default=900, help="of an epoch")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--raw", action="store_true", help="keep every metric")
    given = parser.parse_args()
    sys.path.insert(0, str(FAKES))
    import fakenvml

    with tempfile.TemporaryDirectory(prefix="swheal-", dir="/tmp") as name:
        folder = Path(name)
        scenario = fakenvml.Scenario(folder / "gpus.txt")
        # percent: 92 of what can be used; SMs, tensor cores and memory busy as under large matrices
        usable = 80e9 - 500e6
        scenario.set(
            {"mem_used": 0.92 * usable, "gpm.2": "wave:90:4:7:0", "gpm.5": "wave:60:4:7:0", "gpm.10": "wave:55:5:7:0.3"}
        )
        nvml = {"library_path": str(fakenvml.build(folder / "lib"))}
        config = {
            "state_dir": "state", "run_dir": "run", "http": {"listen": "127.0.0.1:0"}, "metrics": None,
            "collectors": {"nvml": nvml}, "usd_per_gpu_hour": 2.5, "gpus": 1,
        }  # fmt: skip
        (folder / "spikewatch.yaml").write_text(yaml.safe_dump(config))
        log = folder / "sidecar.out"
        with log.open("wb") as output:
            command = [sys.executable, "-m", "sidecar", "run", "--config", str(folder / "spikewatch.yaml")]
            sidecar = subprocess.Popen(
                command, env={**os.environ, **scenario.environment}, stdout=output, stderr=output
            )
        while "running: " not in log.read_text():
            assert sidecar.poll() is None, log.read_text()
            time.sleep(0.1)
        url = log.read_text().partition("running: ")[2].partition(",")[0]
        run = Run(folder / "run" / "trainer.sock", folder, given.pause, given.steps)
        try:
            found = record(url, given.seconds, {given.seconds // 2: run.again})
        finally:
            run.stop()
            sidecar.terminate()
            sidecar.wait(30)
    write(given.out, found, None if given.raw else wanted())
    print(f"{len(found)} series, {given.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
