"""Signals of serving workers: real processes that declared themselves."""

from __future__ import annotations

import time
from collections.abc import Sequence

from signals_rows import Row, Source, fired, pod_on, quiet
from signals_stage import Pod, Stage

SOURCE = Source("serving worker, a process of its own", "device")


def cold_start(stage: Stage, kit: object, pod: Pod | None = None) -> Sequence[Row]:
    """A worker that takes longer than it may until it has served its first request."""
    pod, lever = pod or pod_on(stage), stage.lever()
    lever.pull(1)
    since = time.time()
    stage.run("signals_worker.py", pod.socket, 1.2, lever.file)
    return [fired(pod, "ColdStartSlow", since, SOURCE, "1.2 s of start-up before the first request")]


def idle(stage: Stage, kit: object) -> Sequence[Row]:
    """A worker that is asked twenty times a second, then no more."""
    pod, lever = pod_on(stage), stage.lever()
    stage.run("signals_worker.py", pod.socket, 0, lever.file)
    pod.until_true("spikewatch_worker_requests_total == 0")
    for number in range(1, 400):
        lever.pull(number)
        time.sleep(0.05)
    quiet(pod, "IdleWorker")
    return [fired(pod, "IdleWorker", lever.pull(400), SOURCE, "no request comes any more", seconds=400)]
