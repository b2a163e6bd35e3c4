"""A training loop whose single steps run with or without an attached client: model, scaler, clipping, loader, DDP."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

import spikewatch
from bench._client import Rows

WARM_UP = 30
BATCH = 32


class Loop:
    """Both kinds of step train the same model, with an optimizer, a scaler and a loader of their own; one of each is
    attached. All that the client can measure without a GPU is measured. Times are in nanoseconds.
    """

    def __init__(self, step_ms: float) -> None:
        """Adds layers until a step takes about `step_ms` of one CPU thread."""
        torch.set_num_threads(1)
        self._group()
        width = 96 if step_ms < 5 else 256
        rows = Rows(width)
        self._loaders = {which: DataLoader(rows, BATCH) for which in (True, False)}
        self._batches: dict[bool, Iterator[Any]] = {}
        self.run: spikewatch.Run | None = None
        self.calls: list[int] = []  # time of run.step() alone
        self.exceptions = 0
        fastest = {}
        for depth in (2, 6):
            self._build(width, depth)
            fastest[depth] = min(self.step(False)[1] for _ in range(20))
        layer = max(1, (fastest[6] - fastest[2]) / 4)
        self._build(width, max(2, round(2 + (step_ms * 1e6 - fastest[2]) / layer)))

    @staticmethod
    def _group() -> None:
        if not torch.distributed.is_initialized():
            store = torch.distributed.HashStore()
            torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)

    def _build(self, width: int, depth: int) -> None:
        layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
        inner = nn.Sequential(*layers, nn.Linear(width, 1))
        self.model = nn.parallel.DistributedDataParallel(inner, gradient_as_bucket_view=True)
        self._optimizers = {which: torch.optim.SGD(self.model.parameters(), 1e-5) for which in (True, False)}
        self._scalers = {which: torch.amp.GradScaler("cpu", init_scale=8.0) for which in (True, False)}
        self._batches.clear()

    @contextmanager
    def attached(self, socket: Path) -> Iterator[spikewatch.Run]:
        """Attaches; the steps inside know both kinds."""
        run = spikewatch.attach(
            self.model, self._optimizers[True], self._loaders[True], self._scalers[True], socket=str(socket)
        )
        self.run = run
        try:
            for _ in range(WARM_UP):
                for which in (True, False):
                    self.step(which)
            self.calls.clear()
            yield run
        finally:
            self.run = None
            run.close()

    def step(self, watched: bool) -> tuple[int, int]:
        """(wall, CPU of this thread) of one step."""
        if watched not in self._batches:
            loader = self.run.loader if watched and self.run is not None else self._loaders[watched]
            self._batches[watched] = iter(loader)
        batches, optimizer, scaler = self._batches[watched], self._optimizers[watched], self._scalers[watched]
        model, run, called = self.model, self.run if watched else None, 0
        cpu, began = time.thread_time_ns(), time.perf_counter_ns()
        inputs, targets = next(batches)
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        if run is not None:
            called = time.perf_counter_ns()
            try:
                run.step(loss, grad_norm=norm)
            except Exception:  # noqa: BLE001  what is counted here
                self.exceptions += 1
        ended = time.perf_counter_ns()
        if run is not None:
            self.calls.append(ended - called)
        return ended - began, time.thread_time_ns() - cpu


def thread_cpu_ns(native_id: int) -> int:
    """CPU time of one thread of this process, from the scheduler."""
    return int(Path(f"/proc/self/task/{native_id}/schedstat").read_text().split()[0])
