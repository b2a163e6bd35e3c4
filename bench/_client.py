"""A tiny training loop, run with and without an attached client in short blocks side by side."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import spikewatch
from spikewatch.randomness import DrawProbe

CONNECT_S = 5.0
WARM_UP = 3  # steps of a block that are not counted: the caches still hold the other kind of block
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
    """One model and two equal loaders, one of them attached. Times are in nanoseconds: wall time, or CPU time of the
    training thread, which does not count what other programs take and so is the steadier of the two.
    """

    def __init__(self, socket: Path, step_ms: float, workers: int) -> None:
        """Adds layers until a step takes about `step_ms`, of one CPU thread."""
        torch.set_num_threads(1)
        self._socket = socket
        width, batch = (96, 16) if step_ms < 5 else (256, 64)
        rows = Rows(width)
        self._plain, self._watched = (
            DataLoader(rows, batch, num_workers=workers, persistent_workers=workers > 0) for _ in range(2)
        )
        self._batches = {False: iter(self._plain)}
        self._run: spikewatch.Run | None = None
        self.calls: list[int] = []  # of run.step() alone
        fastest = {}
        for depth in (2, 6):
            self._build(width, depth)
            fastest[depth] = min(cpu for _, cpu in self.block(False, 20))
        a_layer = max(1, (fastest[6] - fastest[2]) / 4)
        self._build(width, max(2, round(2 + (step_ms * 1e6 - fastest[2]) / a_layer)))

    def _build(self, width: int, depth: int) -> None:
        layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
        self._model = nn.Sequential(*layers, nn.Linear(width, 1))
        self._optimizer = torch.optim.SGD(self._model.parameters(), 1e-4)

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Attaches, waits for the sidecar, and closes at the end."""
        run = spikewatch.attach(self._model, self._optimizer, self._watched, socket=str(self._socket))
        until = time.monotonic() + CONNECT_S
        while not run.connected:
            if time.monotonic() > until:
                raise TimeoutError(f"nobody answers at {self._socket}")
            time.sleep(0.001)
        if True not in self._batches:
            self._batches[True] = iter(run.loader)
            self.block(True, DrawProbe.LAST)  # the first batches are looked at more closely
        self._run = run
        try:
            yield
        finally:
            self._run = None
            run.close()

    def block(self, watched: bool, steps: int) -> list[tuple[int, int]]:
        """(wall, CPU) of each of `steps` steps, with `run.loader` and `run.step` or without either."""
        after = self._run.step if watched and self._run is not None else _nothing
        model, optimizer, batches = self._model, self._optimizer, self._batches[watched]
        clock, cpu_clock = time.perf_counter_ns, time.thread_time_ns
        times, calls = [], []
        for _ in range(WARM_UP + steps):
            cpu, began = cpu_clock(), clock()
            inputs, targets = next(batches)
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            called = clock()
            after(loss)
            ended = clock()
            times.append((ended - began, cpu_clock() - cpu))
            calls.append(ended - called)
        if after is not _nothing:
            self.calls += calls[WARM_UP:]
        return times[WARM_UP:]

    def block_with_client(self, attached: bool, steps: int) -> list[tuple[int, int]]:
        """As `block`, but without `attached` there is no client thread either."""
        if not attached:
            return self.block(False, steps)
        with self.attached():
            return self.block(True, steps)

    def close(self) -> None:
        """Ends the loaders' workers."""
        self._batches.clear()
        del self._plain, self._watched


def _nothing(_: torch.Tensor) -> None:
    pass
