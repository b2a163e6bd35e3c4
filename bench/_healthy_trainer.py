"""A training run with nothing wrong in it, until SIGTERM: `python -m bench._healthy_trainer SOCKET FOLDER PAUSE STEPS`.

fp16 with a GradScaler, a compiled model, two loader workers that are always ahead, an evaluation and a checkpoint at
the end of each epoch. Started again with the same folder it goes on from its last checkpoint. Most of each step is a
pause of PAUSE seconds that stands for the device, so that the whole takes a small part of one core. An epoch has STEPS
steps.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

import spikewatch

BATCH = 16
EVAL_STEPS, EVAL_S = 40, 0.08  # so long each
UPLOAD_S = 3.0  # what a checkpoint takes beyond the local disk


class Images(Dataset):
    """Small images with a label that can be learned; item i is the same at every call."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        image = torch.randn(3, 12, 12, generator=torch.Generator().manual_seed(i))
        return image, int(image.mean() > 0)


def model() -> torch.nn.Module:
    """Some hundred thousand parameters."""
    return torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(432, 256), torch.nn.ReLU(), torch.nn.Linear(256, 2)
    )  # fmt: skip


def main(socket: str, folder: Path, pause: float, steps: int) -> None:
    """Trains until SIGTERM."""
    stop: list[bool] = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02)
    # Doubled after 60 good steps: one overflow in some hundred steps is what a healthy fp16 run shows.
    scaler = torch.amp.GradScaler("cpu", growth_interval=60)
    loader: Any = DataLoader(Images(steps * BATCH), BATCH, shuffle=True, num_workers=2, prefetch_factor=6)
    run = spikewatch.attach(model=net, optimizer=optimizer, loader=loader, scaler=scaler, socket=socket)
    checkpoint = folder / "checkpoint.pt"
    epoch = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=False)
        net.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        scaler.load_state_dict(saved["scaler"])
        run.load_state_dict(saved["run"])
        epoch = saved["epoch"]
    compiled = torch.compile(net)
    context = run.autocast("cpu", torch.float16)
    loss_of = torch.nn.CrossEntropyLoss()
    with run.phase("compile"), context:
        loss_of(compiled(torch.zeros(BATCH, 3, 12, 12)), torch.zeros(BATCH, dtype=torch.long)).backward()
        optimizer.zero_grad()
    while not stop:
        for images, labels in run.loader:
            with context:
                loss = loss_of(compiled(images), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            time.sleep(pause)
            run.step(loss)
            if stop:
                return
        epoch += 1
        with run.phase("eval"), torch.no_grad():
            for images, labels in DataLoader(Images(EVAL_STEPS * BATCH), BATCH):
                loss_of(net(images), labels)
                time.sleep(EVAL_S)
        with run.phase("checkpoint"):
            state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}
            torch.save({**state, "run": run.state_dict(), "epoch": epoch}, checkpoint)
            time.sleep(UPLOAD_S)
    run.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
