"""Signals of training and of its input, on real runs with PyTorch on the CPU."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Sequence

from signals_lever import Lever
from signals_rows import Row, Source, fired, pod_on, quiet
from signals_stage import Pod, Stage

TRAINING = "training run, PyTorch on CPU"
VERDICT_S = 700.0  # three minutes before a change and three after it
OVERFLOWS_VERDICT_S = 1900.0  # five minutes of a mean over five
_chance = random.SystemRandom()


def training(stage: Stage, pod: Pod, kind: str, lever: Lever, ranks: int = 1, **environ: str) -> None:
    """Starts a run of `signals_trainer.py` and waits until it has trained for a while and nothing was wrong."""
    port = _free_port()
    for rank in range(ranks):
        more = (rank, ranks, port, stage.folder) if ranks > 1 else ()
        env = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)} if ranks > 1 else {}
        stage.run("signals_trainer.py", kind, pod.socket, lever.file, *more, **env, **environ)
    pod.until_true(f"count(spikewatch_trainer_steps_total > 50) == {ranks}")
    pod.until_true(f'count(spikewatch_trainer_phase{{phase="train"}} == 1) == {ranks}')


def starved(stage: Stage, kit: object) -> Sequence[Row]:
    """A loader whose items become slow."""
    pod, lever = pod_on(stage), stage.lever()
    training(stage, pod, "starving", lever)
    time.sleep(40)  # a `for` and more: healthy, it fires nothing
    quiet(pod, "TrainerStarvedOfData", "InputThroughputLow", "PrefetchHitRateLow")
    since = lever.pull(0.02)
    source, cause = Source(TRAINING, "device"), "an item takes 20 ms more, from one loader worker"
    return [
        fired(pod, "TrainerStarvedOfData", since, source, cause, verdict_s=VERDICT_S),
        fired(pod, "InputThroughputLow", since, source, cause),
        fired(pod, "PrefetchHitRateLow", since, source, cause),
    ]


def overflow_storm(stage: Stage, kit: object) -> Sequence[Row]:
    """Gradients that grow, under a scaler that grows its scale at every good step."""
    pod, lever = pod_on(stage), stage.lever()
    training(stage, pod, "overflowing", lever)
    time.sleep(15)
    quiet(pod, "GradientOverflowsMany", "GradientOverflowsFrequent", "LossScaleCollapse")
    source = Source(f"{TRAINING}, fp16 with a GradScaler", "device")
    storm = "gradients 60 times as large, and a scaler that doubles its scale after each good step"
    since = lever.pull(1)
    return [
        fired(pod, "GradientOverflowsMany", since, source, storm),
        fired(pod, "GradientOverflowsFrequent", since, source, storm, verdict_s=OVERFLOWS_VERDICT_S),
    ]


def scale_collapse(stage: Stage, kit: object) -> Sequence[Row]:
    """Data that is infinite."""
    pod, lever = pod_on(stage), stage.lever()
    training(stage, pod, "overflowing", lever)
    time.sleep(15)
    quiet(pod, "LossScaleCollapse")
    source = Source(f"{TRAINING}, fp16 with a GradScaler", "device")
    return [fired(pod, "LossScaleCollapse", lever.pull(2), source, "every batch holds infinite numbers")]


def late_rank(stage: Stage, kit: object) -> Sequence[Row]:
    """Two ranks of which one comes late to every all-reduce."""
    records = str(stage.folder / "inspector-*.log")
    pod = pod_on(stage, collectors={"nccl": {"inspector": [records], "discover": False}})
    lever = stage.lever()
    training(stage, pod, "late", lever, ranks=2)
    quiet(pod, "AllReduceWait")
    said = "all-reduces of two gloo ranks on the CPU, timed by the script and written in the NCCL Inspector's format"
    return [fired(pod, "AllReduceWait", lever.pull(0.15), Source(said, "fake"), "one rank is 150 ms late each time")]


TIMED_OUT = (
    "[rank0]:[E1130 00:00:00.0 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600034 milliseconds "
    "before timing out.\n"
)
"""As PyTorch 2.5 prints it."""


def reading(stage: Stage) -> dict[str, dict[str, object]]:
    """The collector that follows the trainer's log."""
    return {"nccl": {"logs": [str(stage.folder / "trainer.log")], "discover": False}}


def timed_out(stage: Stage, kit: object, pod: Pod | None = None) -> Sequence[Row]:
    """A collective that runs into the watchdog's limit, by the trainer's log."""
    log = stage.folder / "trainer.log"
    log.write_text("starting\n")
    pod = pod or pod_on(stage, collectors=reading(stage))
    pod.until_true('spikewatch_nccl_watchdog_timeouts_total{op="AllReduce"} == 0')
    time.sleep(1)
    quiet(pod, "CollectiveTimedOut")
    with log.open("a") as file:
        since = time.time()
        file.write(TIMED_OUT)
    source = Source("the trainer's log, with a line as PyTorch's NCCL watchdog prints it", "fake")
    return [fired(pod, "CollectiveTimedOut", since, source, "an all-reduce times out")]


def _free_port() -> int:
    while True:
        port = _chance.randrange(15_000, 32_000)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
