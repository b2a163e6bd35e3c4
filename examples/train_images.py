#!/usr/bin/env python
"""Trains a small CNN on images fetched over HTTP from an object store; attached to spikewatch in four marked places.

Run it alone (the first command serves a generated data set and prints its address):

    python -m sidecar.cli.demo.store --listen 127.0.0.1:9000
    python examples/train_images.py --url http://127.0.0.1:9000 --output /tmp/train --epochs 1

or on two ranks:

    torchrun --standalone --nproc-per-node 2 examples/train_images.py --url http://127.0.0.1:9000 --output /tmp/train

It needs PyTorch and nothing else. Without what is marked `spikewatch` it trains the same: same weights, same order of
samples. It writes its own log, `OUTPUT/rank<N>.jsonl`, one JSON object a line: `start` (how the run was set up),
`epoch` (the order the sampler laid down for this rank), `step` (end time, seconds of the step, seconds of it spent
waiting for data, the samples consumed, loss) and `end`. Speed and lost or repeated samples are read from that log.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import http.client
import json
import multiprocessing
import os
import signal
import time
import urllib.parse
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import spikewatch  # spikewatch: without this and the other places marked so, the script trains the same

SIDE = 32  # pixels; larger images are scaled down to it
STOP_EVERY = 8  # steps between two agreements on whether to stop


class ObjectStoreImages(Dataset):
    """Images of an HTTP object store, one GET each: `__getitem__(i)` is (image float32 [3, 32, 32], class, i)."""

    def __init__(self, url: str, turn: Callable[[int], AbstractContextManager[object]]) -> None:
        """`turn(pixels)` is entered while an image of so many is decoded."""
        self.url, self.turn = url.rstrip("/"), turn
        with urllib.request.urlopen(f"{self.url}/dataset", timeout=10) as answer:
            self.images = int(json.load(answer)["images"])
        self.connection: http.client.HTTPConnection | None = None
        self.owner = 0

    def __len__(self) -> int:
        return self.images

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, int]:
        headers, body = self.get(f"/images/{index}")
        side = int(headers["X-Side"])
        with self.turn(side * side):
            image = decoded(body, side)
        return image, int(headers["X-Class"]), index

    def get(self, path: str) -> tuple[http.client.HTTPMessage, bytes]:
        """One GET over a kept-alive connection; one retry, because a store may close an idle connection."""
        for last in (False, True):
            if self.connection is None or self.owner != os.getpid():  # a worker must not share its parent's socket
                host = urllib.parse.urlsplit(self.url).netloc
                self.connection, self.owner = http.client.HTTPConnection(host, timeout=60), os.getpid()
            try:
                self.connection.request("GET", path)
                answer = self.connection.getresponse()
                body = answer.read()
            except (http.client.HTTPException, OSError):
                self.connection.close()
                self.connection = None
                if last:
                    raise
                continue
            if answer.status != 200:
                raise RuntimeError(f"GET {self.url}{path}: {answer.status} {answer.reason}")
            return answer.headers, body
        raise AssertionError("unreachable")


def decoded(body: bytes, side: int) -> torch.Tensor:
    """float32 [3, 32, 32] between -1 and 1, scaled down where the stored image is larger."""
    pixels = torch.frombuffer(bytearray(zlib.decompress(body)), dtype=torch.uint8).view(1, 3, side, side)
    image = pixels.float().div_(127.5).sub_(1)
    return (image if side == SIDE else F.interpolate(image, size=(SIDE, SIDE), mode="area"))[0]


def small_cnn(width: int) -> nn.Module:
    """Three convolutions and a classifier; `width` 64 takes about 35 ms a step of 8 images on one 2025 server core."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(2 * width * (SIDE // 4) ** 2, 10),
    )  # fmt: skip


class Throttle:
    """So many pixels decoded a second by all loader workers of this rank together, however many they are.

    That is what a container's CPU quota comes down to: who has used it up sleeps until the time is paid for. `turns`
    is a file to lock; the lock of a process that dies is free again.
    """

    def __init__(self, pixels_per_s: float, turns: Path) -> None:
        self.pixels_per_s, self.turns = pixels_per_s, turns

    @contextlib.contextmanager
    def turn(self, pixels: int) -> Iterator[None]:
        """Decode so many inside."""
        with self.turns.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            due = time.perf_counter() + pixels / self.pixels_per_s
            yield
            time.sleep(max(0.0, due - time.perf_counter()))


def waits(loader: Any) -> Iterator[tuple[float, Any]]:
    """The loader's batches, each with the seconds this process waited for it."""
    batches = iter(loader)
    while True:
        asked = time.perf_counter()
        try:
            batch = next(batches)
        except StopIteration:
            return
        yield time.perf_counter() - asked, batch


class Stop:
    """Whether to stop: on SIGTERM or SIGINT, after so many seconds or steps; all ranks after the same step."""

    def __init__(self, seconds: float, steps: int) -> None:
        self.steps = steps
        self.deadline = time.monotonic() + seconds
        self.wanted = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.want)

    def want(self, *_: object) -> None:
        self.wanted = True

    def after(self, step: int) -> bool:
        if step >= self.steps:
            return True
        wanted = self.wanted or time.monotonic() >= self.deadline
        if not dist.is_initialized():
            return wanted
        if step % STOP_EVERY:
            return False
        agreed = torch.tensor([int(wanted)])
        dist.all_reduce(agreed, op=dist.ReduceOp.MAX)  # a rank that stops alone leaves the others hanging
        return bool(agreed.item())


def train(args: argparse.Namespace) -> None:
    """The whole run; every rank executes it."""
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    if "RANK" in os.environ:  # started by torchrun
        dist.init_process_group("gloo")
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    stop = Stop(args.seconds, args.steps)

    args.output.mkdir(parents=True, exist_ok=True)
    throttle = Throttle(args.decode_pixels_per_s, args.output / f"turns{rank}") if args.decode_pixels_per_s else None
    dataset = ObjectStoreImages(args.url, throttle.turn if throttle else contextlib.nullcontext)
    sampler = DistributedSampler(dataset, num_replicas=world, rank=rank, shuffle=True, seed=args.seed)
    loader = DataLoader(
        dataset,
        args.batch_size,
        sampler=sampler,
        num_workers=args.workers,
        prefetch_factor=args.prefetch if args.workers else None,
    )
    model = small_cnn(args.width)
    if world > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    run = spikewatch.attach(model=model, optimizer=optimizer, loader=loader)  # spikewatch

    with (args.output / f"rank{rank}.jsonl").open("w", buffering=1, encoding="utf-8") as log:

        def write(event: str, **values: object) -> None:
            log.write(json.dumps({"event": event, "t": time.time(), "rank": rank, **values}) + "\n")

        write("start", world=world, pid=os.getpid(), images=len(dataset), batch_size=args.batch_size,
              workers=args.workers, prefetch=args.prefetch, seed=args.seed)  # fmt: skip
        step, done = 0, False
        for epoch in range(args.epochs):
            sampler.set_epoch(epoch)
            write("epoch", epoch=epoch, order=list(sampler))
            began = time.perf_counter()
            for waited, (images, classes, indices) in waits(run.loader):  # spikewatch: `run.loader` for `loader`
                loss = F.cross_entropy(model(images), classes)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run.step(loss)  # spikewatch
                step += 1
                now = time.perf_counter()
                write("step", epoch=epoch, step=step, step_s=round(now - began, 6), wait_s=round(waited, 6),
                      samples=indices.tolist(), loss=round(loss.item(), 4))  # fmt: skip
                began = now
                done = stop.after(step)
                if done:
                    break
            if done:
                break
        write("end", steps=step)
    if dist.is_initialized():
        dist.destroy_process_group()


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train a small CNN on images of an HTTP object store.")
    parser.add_argument("--url", required=True, help="the object store, e.g. http://127.0.0.1:9000")
    parser.add_argument("--output", type=Path, required=True, help="directory for rank<N>.jsonl")
    parser.add_argument("--workers", type=int, default=2, help="loader worker processes per rank")
    parser.add_argument("--prefetch", type=int, default=2, help="batches each worker prepares ahead")
    parser.add_argument("--batch-size", type=int, default=8, help="images per step and rank")
    parser.add_argument("--width", type=int, default=64, help="channels of the CNN: the work of a step")
    parser.add_argument("--epochs", type=int, default=1_000_000)
    parser.add_argument("--steps", type=int, default=1_000_000_000, help="stop after so many steps")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so many seconds")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of the forward and backward pass")
    parser.add_argument(
        "--decode-pixels-per-s", type=float, help="limit for a rank's workers together, like a CPU quota"
    )
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    # A loader worker holds nothing but a socket: forked, it is ready in milliseconds instead of importing torch again.
    multiprocessing.set_start_method("fork")
    train(arguments())
