"""A training run for these tests: a real loop over a real DataLoader, whose items take as long as a file says.

It writes the log that `examples/train_images.py` writes, with the loader's settings at each step beside it.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import struct
import time
from pathlib import Path
from typing import Any

IMAGES = 4096


class Slow:
    """Item i is ([float(i)], i), after as many seconds as the double in `delay_file` says at that moment."""

    def __init__(self, delay_file: str) -> None:
        with open(delay_file, "r+b") as file:
            self._delay = mmap.mmap(file.fileno(), 8)  # the workers are forked, so all of them see a change

    def __len__(self) -> int:
        return IMAGES

    def __getitem__(self, i: int) -> Any:
        import torch

        time.sleep(struct.unpack("<d", self._delay[:8])[0])
        return torch.tensor([float(i)]), i


def train(
    *,
    output: str,
    socket: str,
    delay_file: str,
    job: str,
    startup: float,
    workers: int,
    prefetch: int,
    batch_size: int,
    seed: int,
) -> None:
    """Trains until SIGTERM. `startup` are seconds between attaching and the first batch."""
    import torch
    from torch.utils.data import DataLoader, DistributedSampler

    import spikewatch

    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    sampler: Any = DistributedSampler(Slow(delay_file), num_replicas=1, rank=0, seed=seed)
    loader: Any = DataLoader(
        Slow(delay_file),
        batch_size,
        sampler=sampler,
        num_workers=workers,
        prefetch_factor=prefetch if workers else None,
    )
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    run = spikewatch.attach(model=model, optimizer=optimizer, loader=loader, job=job, socket=socket)
    Path(output).mkdir(parents=True)
    with open(f"{output}/rank0.jsonl", "w", buffering=1) as log:

        def write(event: str, **values: object) -> None:
            log.write(json.dumps({"event": event, "t": time.time(), "rank": 0, **values}) + "\n")

        write("start", world=1, pid=os.getpid(), seed=seed)
        time.sleep(startup)
        step, epoch = 0, 0
        while not stop:
            sampler.set_epoch(epoch)
            write("epoch", epoch=epoch, order=list(sampler))
            began = time.perf_counter()
            for batch, indices in run.loader:
                loss = model(batch).pow(2).mean() * 1e-9
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run.step(loss)
                step += 1
                now = time.perf_counter()
                settings = {"num_workers": loader.num_workers, "prefetch_factor": loader.prefetch_factor}
                write(
                    "step", epoch=epoch, step=step, step_s=now - began, wait_s=0.0, samples=indices.tolist(), **settings
                )
                began = now
                if stop:
                    break
            epoch += 1
        write("end", steps=step)
    run.close()
