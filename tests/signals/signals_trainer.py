"""Real training runs with PyTorch on the CPU, healthy until a lever is pulled.

python signals_trainer.py KIND SOCKET LEVER [RANK WORLD PORT FOLDER]
"""

from __future__ import annotations

import itertools
import json
import math
import mmap
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from signals_lever import Lever, end_with_parent
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import spikewatch
from spikewatch import allocator

PAGE = 4096
DEVICE_S = 0.02  # of a step, slept: what a GPU would do meanwhile


class Items:
    """Item i is `width` floats. It takes as many seconds as the lever says, where `slow`; else the lever scales it."""

    def __init__(self, lever: Lever, count: int, width: int, *, slow: bool) -> None:
        self.lever, self.count, self.width, self.slow = lever, count, width, slow

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> Any:
        if self.slow:
            time.sleep(self.lever.at())
            return torch.full((self.width,), i / self.count)
        return torch.ones(self.width)


def _train(run: Any, model: Any, optimizer: Any) -> None:
    """Until the loader ends; a pause in each step stands for a device at work."""
    for batch in run.loader:
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(DEVICE_S)
        run.step(loss)


def starving(socket: str, lever: Lever) -> None:
    """One loader worker; the lever is the seconds that an item takes."""
    loader: Any = DataLoader(Items(lever, 100_000, 4096, slow=True), 8, num_workers=1, prefetch_factor=4)
    model = torch.nn.Linear(4096, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    run = spikewatch.attach(model=model, optimizer=optimizer, loader=loader, socket=socket)
    _train(run, model, optimizer)


def overflowing(socket: str, lever: Lever) -> None:
    """fp16 with a GradScaler. Lever 0: gradients are small. 1: they are 60 times as large, and the scaler tries a
    larger scale after every good step. 2: the data is infinite.
    """
    loader: Any = DataLoader(Items(lever, 16 * 30_000, 4, slow=False), 16)
    model = torch.nn.Linear(4, 4, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-30)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2000)
    run = spikewatch.attach(model=model, optimizer=optimizer, loader=loader, scaler=scaler, socket=socket)
    context, seen = run.autocast("cpu", torch.float16), 0.0
    for batch in itertools.chain.from_iterable(itertools.repeat(run.loader)):
        trouble = lever.at()
        if trouble != seen and trouble == 1:
            # With the tracker: beyond the interval it never equals it, and the scale would not grow any more.
            scaler.load_state_dict({**scaler.state_dict(), "growth_interval": 1, "_growth_tracker": 0})
        seen = trouble
        with context:
            loss = model(batch * (1.0, 60.0, math.inf)[int(trouble)]).float().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        time.sleep(DEVICE_S)
        run.step(loss)


class MadeUpCuda:
    """torch.cuda's allocator as far as the client asks it. Lever 0: half of the device is held and in use. Beyond: most
    of it is held in segments whose free parts are crumbs, and every allocation has to be tried again.
    """

    TOTAL, SEGMENT = 80 << 30, 256 << 20

    def __init__(self, lever: Lever) -> None:
        self.lever, self.retries = lever, 0

    def memory_stats_as_nested_dict(self, device: int) -> dict[str, Any]:
        held = sum(s["total_size"] for s in self.memory_snapshot())
        used = sum(b["size"] for s in self.memory_snapshot() for b in s["blocks"] if b["state"] != "inactive")
        self.retries += self.lever.at() > 0
        return {
            "reserved_bytes": {"all": {"current": held}},
            "allocated_bytes": {"all": {"current": used}},
            "num_alloc_retries": self.retries,
            "num_ooms": 0,
        }

    def memory_snapshot(self) -> list[dict[str, Any]]:
        troubled = self.lever.at() > 0
        crumbs = [(self.SEGMENT // 32, "active_allocated"), (self.SEGMENT // 32, "inactive")] * 16
        blocks = crumbs if troubled else [(self.SEGMENT, "active_allocated")]
        return [
            {
                "device": 0, "total_size": self.SEGMENT, "segment_type": "large", "segment_pool_id": (0, 0),
                "is_expandable": False, "blocks": [{"size": size, "state": state} for size, state in blocks],
            }
            for _ in range(310 if troubled else 160)
        ]  # fmt: skip

    def mem_get_info(self, device: int) -> tuple[int, int]:
        return self.TOTAL - sum(s["total_size"] for s in self.memory_snapshot()), self.TOTAL

    def is_current_stream_capturing(self) -> bool:
        return False

    def get_device_properties(self, device: int) -> Any:
        return type("Properties", (), {"uuid": "00000000-0000-0000-0000-000000000000"})


def crowded(socket: str, lever: Lever) -> None:
    """A run whose device memory is made up; the rest of it is real. Lever 2: steps take twice as long, too."""
    allocator.of_model = lambda model, _: (MadeUpCuda(lever), 0)  # type: ignore[assignment]
    loader: Any = DataLoader(Items(lever, 16 * 100_000, 4, slow=False), 16)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    run = spikewatch.attach(model=model, optimizer=optimizer, loader=loader, socket=socket, accumulation_steps=1)
    for batch in run.loader:
        with run.accumulate():
            loss = model(batch).square().mean()
            (loss * run.loss_weight).backward()
        time.sleep(DEVICE_S * (2 if lever.at() == 2 else 1))
        if run.should_step():
            optimizer.step()
            optimizer.zero_grad()
            run.step(loss)


def offloading(socket: str, lever: Lever) -> None:
    """Each step writes parameters to a file, past the page cache, and waits until they are on disk. Lever 0: a megabyte
    at once, and then it computes for a while; 1: pages of 4 KiB by eight threads, without a pause.
    """
    fd = os.open(os.environ["SIGNALS_OFFLOAD_FILE"], os.O_RDWR | os.O_DIRECT | os.O_DSYNC | os.O_CLOEXEC)
    pages = os.fstat(fd).st_size // PAGE
    run = spikewatch.attach(loader=itertools.repeat(0), socket=socket)

    def put(first: int, size: int, times: int) -> int:
        with mmap.mmap(-1, size) as memory:
            return sum(os.pwritev(fd, [memory], (first + 7 * n) % pages * PAGE) for n in range(times))

    with ThreadPoolExecutor(8) as pool:
        for step, _ in enumerate(run.loader):
            if lever.at() == 1:
                firsts = [n * pages // 8 + step for n in range(8)]
                run.offloaded(sum(pool.map(put, firsts, [PAGE] * 8, [200] * 8)))
            else:
                run.offloaded(put(0, 256 * PAGE, 1))
                time.sleep(0.2)
            run.step()


def distributed(socket: str, lever: Lever, rank: int, world: int, port: int, folder: str) -> None:
    """DDP over gloo. The lever is the seconds by which the link is slower: every gradient bucket waits so long."""
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    model = DistributedDataParallel(torch.nn.Linear(256, 256))

    def over_a_slow_link(_, bucket):  # without annotations: torch takes them for types, here they are texts
        time.sleep(lever.at())
        reduced: Any = dist.all_reduce(bucket.buffer(), async_op=True)
        return reduced.get_future().then(lambda done: done.value()[0] / world)

    model.register_comm_hook(None, over_a_slow_link)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    loader: Any = DataLoader(Items(lever, 16 * 100_000, 256, slow=False), 16)
    run = spikewatch.attach(model=model, optimizer=optimizer, loader=loader, socket=socket)
    _train(run, model, optimizer)


def late(socket: str, lever: Lever, rank: int, world: int, port: int, folder: str) -> None:
    """All-reduces over gloo; the last rank comes late by the lever's seconds. Each writes how long its own call took,
    in the Inspector's format.
    """
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    run = spikewatch.attach(loader=itertools.repeat(0), socket=socket)
    tensor = torch.ones(1024)
    with open(f"{folder}/inspector-{rank}.log", "w", buffering=1) as records:
        for number, _ in enumerate(run.loader, 1):
            time.sleep(DEVICE_S + (lever.at() if rank == world - 1 else 0.0))
            began = time.perf_counter()
            dist.all_reduce(tensor)
            took = time.perf_counter() - began
            perf = {
                "coll": "AllReduce", "coll_sn": number, "coll_msg_size_bytes": tensor.nbytes,
                "coll_exec_time_us": took * 1e6, "coll_timing_source": "kernel_gpu",
            }  # fmt: skip
            header = {"id": "0x1", "rank": rank, "n_ranks": world}
            records.write(json.dumps({"header": header, "coll_perf": perf}) + "\n")
            run.step()


KINDS: dict[str, Callable[..., None]] = {
    f.__name__: f for f in (starving, overflowing, crowded, offloading, distributed, late)
}


def main() -> None:
    """Trains until it is killed."""
    end_with_parent()
    kind, socket, file, *rest = sys.argv[1:]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    ranked = [int(rest[0]), int(rest[1]), int(rest[2]), rest[3]] if rest else []
    KINDS[kind](socket, Lever(Path(file)), *ranked)


if __name__ == "__main__":
    main()
