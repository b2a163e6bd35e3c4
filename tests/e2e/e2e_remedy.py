"""A training run in some trouble that a remediation may end: real torch, real knobs, a log of what each step was.

In `pairs`, `plain` and `fp16` what is judged depends on the arithmetic alone and not on how busy the machine is: the
value of a loss over all pairs of a micro batch (the logarithm of its size before anything is learnt), and how many
steps overflow in fp16. The long proof judges speed: `all_pairs` computes the distance of each two samples of a micro
batch, which is half the work in half of it; `launches` is a deep stack of tiny layers, whose time is the same for any.
"""

from __future__ import annotations

import json
import math
import os
import signal
import time
from pathlib import Path
from typing import Any, Literal

SAMPLES = 4096
DEVICE_S = 0.02  # of a micro batch, slept where speed is not judged: a dozen of these runs share two cores
Kind = Literal["pairs", "plain", "fp16", "all_pairs", "launches"]


class Numbers:
    """Item i is four numbers. Of each 128 items the second half is ten times as large where gradients are to vary from
    step to step; in `fp16` all are 60. Every `bad_every`-th is infinite.
    """

    def __init__(self, kind: Kind, bad_every: int) -> None:
        self.small, self.large = {"fp16": (60.0, 60.0), "pairs": (1.0, 10.0), "plain": (1.0, 10.0)}.get(
            kind, (1.0, 1.0)
        )
        self.bad_every = bad_every

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, i: int) -> Any:
        import torch

        size = self.large if i % 128 >= 64 else self.small
        bad = self.bad_every and i % self.bad_every == self.bad_every - 1
        return torch.full((4,), math.inf) if bad else size * (1 + 0.1 * torch.arange(4.0) * (1 + i % 3))


def loss_of(kind: Kind, model: Any, batch: Any) -> tuple[Any, Any]:
    """(what the model gave, the loss). The weights begin at zero and the learning rate leaves them there."""
    import torch

    out = model(batch)
    if kind == "pairs":  # each must be told from all others of its micro batch: one of B, by chance
        return out, torch.nn.functional.cross_entropy(out @ batch.T, torch.arange(len(batch)))
    if kind == "plain":
        return out, (out - 1).square().mean()
    if kind == "all_pairs":
        return out, (out[:, None, :] - out[None, :, :]).abs().sum(-1).mean()
    return out, out.float().mean()  # gradients of about 60 in fp16: a scale of 1024 is one too large


def model_for(kind: Kind) -> Any:
    """The weights begin at zero where a loss's value is judged."""
    import torch

    if kind == "launches":
        return torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(60)))
    if kind == "all_pairs":
        return torch.nn.Linear(4, 64)
    model = torch.nn.Linear(4, 4, bias=False)
    torch.nn.init.zeros_(model.weight)
    return model


def train(
    *,
    output: str,
    socket: str,
    job: str,
    kind: Kind,
    batch_size: int = 16,
    accumulation: int = 1,
    bad_every: int = 0,
    breaks_when_changed: bool = False,
) -> None:
    """Trains until SIGTERM. `breaks_when_changed`: once a knob has changed the loss is no number any more."""
    import torch
    from torch.utils.data import DataLoader

    import spikewatch

    stop: list[bool] = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    torch.set_num_threads(1)
    fp16 = kind == "fp16"
    torch.manual_seed(0)
    loader: Any = DataLoader(Numbers(kind, bad_every), batch_size)
    model = model_for(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-30)
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0, growth_interval=1, enabled=fp16)
    run = spikewatch.attach(
        model=model, optimizer=optimizer, loader=loader, scaler=scaler, job=job, socket=socket,
        accumulation_steps=accumulation, global_batch_may_change=True,
    )  # fmt: skip
    context = run.autocast("cpu", torch.float16, enabled=fp16)
    Path(output).mkdir(parents=True)
    with open(f"{output}/steps.jsonl", "w", buffering=1) as log:

        def write(event: str, **values: object) -> None:
            log.write(json.dumps({"event": event, "t": time.time(), "rank": 0, **values}) + "\n")

        write("start", world=1, pid=os.getpid(), seed=0)
        step, seen, first = 0, 0, {}
        while not stop:
            for batch in run.loader:
                if kind not in ("all_pairs", "launches"):
                    time.sleep(DEVICE_S)
                with run.accumulate(), context:
                    out, loss = loss_of(kind, model, batch)
                now = {
                    "micro": len(batch),  # always a full one: the sizes divide SAMPLES
                    "accumulation": run.accumulation_steps,
                    "dtype": str(out.dtype).removeprefix("torch."),
                    "interval": scaler.get_growth_interval() if fp16 else 0,
                }
                first = first or now
                if breaks_when_changed and now != first:
                    loss = loss * math.nan
                scaler.scale(loss * run.loss_weight).backward()
                seen += len(batch)
                if not run.should_step():
                    continue
                norm = None if fp16 else torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                step += 1
                write("trained", step=step, samples=seen, **now)
                seen = 0
                run.step(loss, grad_norm=norm)
                if stop:
                    break
        write("end", steps=step)
    run.close()
