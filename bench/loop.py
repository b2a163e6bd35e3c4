"""What watching costs and how fast it sees: the client in a training step, the sidecar at rest, condition → firing.

    python -m bench.loop [--json FILE] [--quick]

The client is measured in pairs of short blocks, the same training loop with and without it, in a random order. The
sidecar is measured over a minute at an evaluation a second, with the shipped rules, an Alertmanager configured, one
attached trainer and a scrape every 15 s. Needs torch (CPU).
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from bench import _latency, _paired, _rows
from bench._live import sidecar, trainer
from bench._rows import Row, below, row

MB = 1_000_000
SCRAPE_S = 15.0
RATIO_LIMIT = 1.005
ADDED_LIMIT = 20.0  # microseconds


@dataclass(frozen=True, slots=True)
class Size:
    """How much is repeated."""

    pairs_1ms: int
    steps_1ms: int
    pairs_10ms: int
    steps_10ms: int
    watch_s: float
    trials: int


FULL = Size(pairs_1ms=200, steps_1ms=25, pairs_10ms=45, steps_10ms=25, watch_s=60.0, trials=7)
QUICK = Size(pairs_1ms=3, steps_1ms=20, pairs_10ms=2, steps_10ms=5, watch_s=1.5, trials=1)


def client(size: Size, rng: random.Random) -> dict[str, Row]:
    """What an attached run adds to a training step, seen from the training loop."""
    from bench._client import Training  # torch takes two seconds to load

    rows: dict[str, Row] = {}
    with sidecar({"responses": []}) as live:
        for workers, name in ((0, "no loader workers"), (1, "one loader worker")):
            training = Training(live.socket, 1.0, workers)
            with training.attached():
                pairs = _paired.interleaved(size.pairs_1ms, lambda a, t=training: t.block(a, size.steps_1ms), rng)
            wall, cpu = _each(pairs)
            rows[f"step without, {name}"] = row(_plain_ms(wall), "ms")
            rows |= _interval(f"added to a step p50, {name}", _paired.added(wall, rng), ADDED_LIMIT, "us", 1e3)
            rows |= _interval(f"added CPU p50, {name}", _paired.added(cpu, rng), ADDED_LIMIT, "us", 1e3)
            rows[f"added to a step p99, {name}"] = row(_paired.added_at(wall, 0.99) / 1e3, "us")
            rows[f"run.step() p50, {name}"] = below(_paired.quantile(training.calls, 0.5) / 1e3, "us", 20.0)
            rows[f"run.step() p99, {name}"] = row(_paired.quantile(training.calls, 0.99) / 1e3, "us")
            training.close()
        training = Training(live.socket, 10.0, 0)
        wall, cpu = _each(
            _paired.interleaved(size.pairs_10ms, lambda a: training.block_with_client(a, size.steps_10ms), rng)
        )
        rows["step without, long steps"] = row(_plain_ms(wall), "ms")
        rows |= _interval("step time ratio", _paired.ratio(wall, rng), RATIO_LIMIT, "x")
        rows |= _interval("step CPU ratio", _paired.ratio(cpu, rng), RATIO_LIMIT, "x")
        training.close()
    return rows


def _each(pairs: Sequence[tuple[Sequence[tuple[int, int]], ...]]) -> tuple[_paired.Pairs, _paired.Pairs]:
    """Pairs of wall times and pairs of CPU times."""
    wall, cpu = ([([x[i] for x in a], [x[i] for x in b]) for a, b in pairs] for i in (0, 1))
    return wall, cpu


def _plain_ms(pairs: _paired.Pairs) -> float:
    return statistics.median([x for _, without in pairs for x in without]) / 1e6


def _interval(name: str, found: _paired.Estimate, limit: float, unit: str, divisor: float = 1.0) -> dict[str, Row]:
    """An estimate and its interval; the target holds, or fails, for the whole interval or not at all."""
    return {
        name: row(found.value / divisor, unit),
        f"{name}, 95 % from": row(found.low / divisor, unit),
        f"{name}, 95 % to": row(found.high / divisor, unit, f"<= {limit:g} {unit}", found.at_most(limit * divisor)),
    }


def watcher(size: Size) -> dict[str, Row]:
    """What the sidecar takes while nothing happens but training."""
    # nobody listens there, and nothing fires: the client for it is loaded all the same
    alertmanagers = [{"url": "http://127.0.0.1:9"}]
    with sidecar({"alertmanagers": alertmanagers}) as live, trainer(live.socket):
        live.get("/metrics")
        time.sleep(min(3.0, size.watch_s))  # past the start: reading files, compiling rules
        began, cpu = time.monotonic(), live.cpu_seconds()
        resident, scrape_at, slowest = 0, began + min(SCRAPE_S, size.watch_s) / 2, 0.0
        while (now := time.monotonic()) < began + size.watch_s:
            resident = max(resident, live.resident_bytes())
            if now >= scrape_at:
                live.get("/metrics")
                slowest = max(slowest, time.monotonic() - now)
                scrape_at += SCRAPE_S
            time.sleep(0.5)
        seconds = time.monotonic() - began
        share = (live.cpu_seconds() - cpu) / seconds
        return {
            "sidecar CPU": below(100 * share, "% of a core", 1.0),
            "sidecar RSS": below(resident / MB, "MB", 80.0),
            "sidecar PSS with children": below(live.proportional_bytes() / MB, "MB", 110.0),
            "scrape of /metrics, slowest": row(slowest * 1e3, "ms"),
        }


def latency(size: Size, rng: random.Random) -> dict[str, Row]:
    """From the step that crosses a threshold to the alert, at an evaluation a second."""
    found = _latency.measure(size.trials, rng)
    return {
        "condition to firing, median": below(statistics.median(found.firing), "s", 1.0),
        "condition to firing, slowest": below(max(found.firing), "s", 2.0),
        "condition to Alertmanager, median": row(statistics.median(found.notified), "s"),
        "condition to Alertmanager, slowest": row(max(found.notified), "s"),
    }


def main() -> int:
    """Returns 0: a target that is missed is in the rows, not in the exit code."""
    asked = _rows.arguments(__doc__ or "")
    size, rng = (QUICK if asked.quick else FULL), random.Random()
    # before numpy and torch are loaded: one thread each, or the blocks fight over two cores
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rows = {**client(size, rng), **watcher(size), **latency(size, rng)}
    _rows.publish(rows, asked.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
