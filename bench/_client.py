"""A tiny training loop, run with and without an attached client in short blocks side by side."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import spikewatch

CONNECT_S = 5.0
WARM_UP = 5  # steps of a block that are not counted: caches, and a loader that is looked at as it begins
POOL = 512


class Rows(Dataset):
    """An endless table of float32 [width] rows and targets, made before."""

    def __init__(self, width: int) -> None:
        self.inputs, self.targets = torch.randn(POOL, width), torch.randn(POOL, 1)

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs[index % POOL], self.targets[index % POOL]


class Training:
    """One model and two equal loaders, one of them attached. Times are in nanoseconds."""

    def __init__(self, socket: Path, step_ms: float, workers: int) -> None:
        """Adds layers until a step takes about `step_ms`, of one CPU thread."""
        torch.set_num_threads(1)
        self._socket = socket
        width, batch = (96, 16) if step_ms < 5 else (256, 64)
        rows = Rows(width)
        self._loaders = {
            attached: DataLoader(rows, batch, num_workers=workers, persistent_workers=workers > 0)
            for attached in (False, True)
        }
        self.calls: list[int] = []  # of run.step() alone, in attached blocks
        depth = 2
        self._build(width, depth)
        plain = self._loaders[False]
        self._batches = {False: iter(plain)}
        one = min(self._timed(False, lambda _: None, 20)) / depth
        self._build(width, max(2, round(step_ms * 1e6 / one)))

    def _build(self, width: int, depth: int) -> None:
        layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
        self._model = nn.Sequential(*layers, nn.Linear(width, 1))
        self._optimizer = torch.optim.SGD(self._model.parameters(), 1e-4)

    def block(self, attached: bool, steps: int) -> list[int]:
        """The time of each of `steps` steps, in a block with or without the client and its thread."""
        if not attached:
            return self._timed(False, lambda _: None, steps)
        loader = self._loaders[True]
        run = spikewatch.attach(self._model, self._optimizer, loader, socket=str(self._socket))
        until = time.monotonic() + CONNECT_S
        while not run.connected:
            if time.monotonic() > until:
                raise TimeoutError(f"nobody answers at {self._socket}")
            time.sleep(0.001)
        if True not in self._batches:
            self._batches[True] = iter(run.loader)
        try:
            return self._timed(True, run.step, steps)
        finally:
            run.close()

    def _timed(self, attached: bool, after: Callable[[torch.Tensor], None], steps: int) -> list[int]:
        model, optimizer, batches = self._model, self._optimizer, self._batches[attached]
        clock = time.perf_counter_ns
        times, calls = [], []
        for _ in range(WARM_UP + steps):
            began = clock()
            inputs, targets = next(batches)
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            called = clock()
            after(loss)
            ended = clock()
            times.append(ended - began)
            calls.append(ended - called)
        if attached:
            self.calls += calls[WARM_UP:]
        return times[WARM_UP:]

    def close(self) -> None:
        """Ends the loaders' workers."""
        self._batches.clear()
        self._loaders.clear()
