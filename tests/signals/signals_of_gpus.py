"""Signals of GPUs: the whole collector, on a stand-in for the driver's library."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fakenvml
from signals_of_training import TRAINING, training
from signals_rows import Row, Source, fired, pod_on, quiet
from signals_stage import Pod, Stage

NVML = Source("stand-in for libnvidia-ml.so.1", "fake")


class Gpus:
    """A scenario, and how a sidecar is told to read it."""

    def __init__(self, stage: Stage, library: Path, gpus: int = 1) -> None:
        self.scenario = fakenvml.Scenario(stage.folder / "gpus.txt", gpus)
        self.environ = self.scenario.environment
        self.collector: dict[str, Any] = {"library_path": str(library)}

    def become(self, **values: float | str) -> float:
        """Changes what the driver says; the wall time of that. `gpm_2` stands for `gpm.2`."""
        self.scenario.set({name.replace("gpm_", "gpm."): value for name, value in values.items()})
        return time.time()


def pod_with_gpus(stage: Stage, library: Path, **collectors: Any) -> tuple[Pod, Gpus]:
    """A sidecar that reads GPUs which are well."""
    gpus = Gpus(stage, library)
    pod = pod_on(stage, environ=gpus.environ, collectors={"nvml": gpus.collector, **collectors})
    pod.until_true("spikewatch_gpu_sm_active_ratio > 0.5")
    return pod, gpus


def full_and_idle(stage: Stage, library: Path) -> Sequence[Row]:
    """A serving GPU whose memory fills up, and whose SMs then have nothing to do."""
    pod, gpus = pod_with_gpus(stage, library)
    time.sleep(10)
    quiet(pod, "GpuMemorySaturated", "GpuHeldIdle")
    full = fired(
        pod, "GpuMemorySaturated", gpus.become(mem_used=0.92 * 79.5e9), NVML, "memory in use goes from 50 % to 92 %"
    )
    quiet(pod, "GpuHeldIdle")
    since = gpus.become(gpm_2=5, gpm_5=0, gpm_10=3, util=5)
    return [
        full,
        fired(pod, "GpuHeldIdle", since, NVML, "SM activity goes from 80 % to 5 % while 92 % of the memory is held"),
    ]


def coupled(stage: Stage, library: Path) -> Sequence[Row]:
    """Two DDP ranks whose link becomes slow, and a GPU whose SMs do less meanwhile."""
    pod, gpus = pod_with_gpus(stage, library)
    lever = stage.lever()
    training(stage, pod, "distributed", lever, ranks=2)
    time.sleep(60)
    quiet(pod, "GpuCommCoupling")
    since = lever.pull(0.1)
    gpus.become(gpm_2=11, gpm_5=8)
    source = Source(
        f"DDP of two gloo ranks, PyTorch on CPU, measured by DDP itself; SM activity from a {NVML.what}", "fake"
    )
    cause = "each gradient bucket takes 100 ms more; SM activity goes from 80 % to 11 %"
    return [fired(pod, "GpuCommCoupling", since, source, cause, seconds=300)]


def crowded(stage: Stage, library: Path) -> Sequence[Row]:
    """A caching allocator that holds nearly the whole GPU in pieces."""
    pod, gpus = pod_with_gpus(stage, library)
    lever = stage.lever()
    gpus.become(mem_total=80 << 30, mem_used=41 << 30)
    training(stage, pod, "crowded", lever)
    time.sleep(30)
    quiet(pod, "CheckpointResidency", "GpuMemoryFragmented", "GpuMemoryFragmentedAndSlow")
    since = lever.pull(1)
    gpus.become(mem_used=78 << 30)
    source = Source(
        f"{TRAINING}, with states of the CUDA caching allocator made for it; memory size from a {NVML.what}", "fake"
    )
    cause = "97 % of the memory reserved in pieces of 8 MiB, and each allocation succeeds only at the second try"
    rows = [
        fired(pod, "CheckpointResidency", since, source, cause, seconds=300),
        fired(pod, "GpuMemoryFragmented", since, source, cause, seconds=400),
    ]
    slow = fired(pod, "GpuMemoryFragmentedAndSlow", lever.pull(2), source, "then steps take twice as long", seconds=600)
    return [*rows, slow]
