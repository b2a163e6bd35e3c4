"""A process as a busy pod has it: 1400 series pushed every second, 21 rules over 5 minutes, /metrics served.

Speaks lines of JSON: first its address and memory before any series, then, at each line read, its memory and CPU time.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from pathlib import Path

from bench._engine_load import Metric, metrics
from bench._engine_ours import START_MS, World
from sidecar.api import routes
from sidecar.api.server import Server
from sidecar.api.services import Services
from sidecar.app.memory import NewestValues
from sidecar.model import MetricInfo
from sidecar.outputs.exposition import Exposition

N = 100
HISTORY_S = 300
CATALOGUE = (
    MetricInfo("g", "gauge", "", "Gauges.", ("gpu", "instance", "job", "node")),
    MetricInfo("c_total", "counter", "", "Counters.", ("gpu", "instance", "job", "node")),
    MetricInfo("b_bucket", "gauge", "", "Buckets.", ("gpu", "instance", "job", "le", "node")),
)


class _Clock:
    def __init__(self) -> None:
        self.now = START_MS

    def now_ms(self) -> int:
        return self.now


def _memory() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def _no_reload() -> tuple[()]:
    return ()


async def _pod(seconds: int) -> None:
    world, clock = World(N, "5m"), _Clock()
    exposition = Exposition(NewestValues(world.store, clock), CATALOGUE)  # type: ignore[arg-type]
    exposition.page()
    server = Server(routes.metrics_only(Services(exposition.page, lambda: "", _no_reload, lambda: ())), "127.0.0.1", 0)
    await server.start()
    print(json.dumps({"port": server.address[1], "memory": _memory()}), flush=True)
    load = list(metrics(N, HISTORY_S + seconds))
    input_bytes = sum(metric.values.nbytes for metric in load)  # ours, not the sidecar's
    for metric in load:
        world.place(metric)
    for second in range(HISTORY_S):
        _step(world, clock, load, second)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    asked = asyncio.create_task(reader.readline())
    print(json.dumps({"memory": _memory() - input_bytes, "cpu": time.process_time()}), flush=True)
    due = time.monotonic()
    for second in range(HISTORY_S, HISTORY_S + seconds):
        _step(world, clock, load, second)
        due += 1
        while (left := due - time.monotonic()) > 0:
            done, _ = await asyncio.wait([asked], timeout=left)
            if done:
                if not asked.result():
                    await server.stop()
                    return
                print(json.dumps({"memory": _memory() - input_bytes, "cpu": time.process_time()}), flush=True)
                asked = asyncio.create_task(reader.readline())


def _step(world: World, clock: _Clock, load: list[Metric], second: int) -> None:
    clock.now = START_MS + second * 1000
    world.push(clock.now, [metric.values[second] for metric in load])
    world.manager.tick(clock.now + 5)


if __name__ == "__main__":
    asyncio.run(_pod(int(sys.argv[1])))
