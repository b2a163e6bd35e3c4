"""Two real ranks under DDP: changed as one, their sidecar killed, and in the end none the different for it."""

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sidecar.clock import SystemClock
from sidecar.model import ChangeState, Order
from sidecar.trainer.channel import TrainerChannel

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[2]

TRAINER = """
import hashlib, json, os, sys, time
import torch, torch.distributed as dist
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
import spikewatch

class Data:
    def __len__(self): return 1600
    def __getitem__(self, i): return torch.tensor([float(i) / 1600]), i

def train(steps, around):
    torch.manual_seed(5)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = Data()
    loader = DataLoader(data, batch_size=4, num_workers=1, sampler=DistributedSampler(data, seed=3))
    batches, after = around(loader)
    seen, epoch = [], 0
    while True:
        loader.sampler.set_epoch(epoch)
        epoch += 1
        for x, i in batches:
            loss = (model(x) - 1).pow(2).mean()
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            seen += i.tolist()
            if after(loss) or len(seen) == steps * 4:
                state = torch.get_rng_state().numpy().tobytes() + model.module.weight.detach().numpy().tobytes()
                return {"seen": seen, "state": hashlib.sha256(state).hexdigest()}

def attached(loader):
    global run
    run = spikewatch.attach(loader=loader, job="two")
    def after(loss):
        run.step(loss)
        time.sleep(0.002)
        enough = torch.tensor([os.path.exists(sys.argv[1])], dtype=torch.int64)
        dist.all_reduce(enough)  # both ranks stop at the same step
        return enough.item() == 2
    return run.loader, after

torch.set_num_threads(1)
dist.init_process_group("gloo")
watched = train(10**9, attached)
watched |= {"errors": run._parts.meter.errors, "workers": run.loader.num_workers, "steps": run._parts.meter.steps}
run.close()
plain = train(watched["steps"], lambda loader: (loader, lambda loss: False))
print(json.dumps([watched, plain]), flush=True)
dist.destroy_process_group()
"""

SIDECAR = """
import asyncio, sys
from sidecar.clock import SystemClock
from sidecar.model import ChangeState, Order
from sidecar.trainer.channel import TrainerChannel

class Nothing:
    def series(self, *_): return None
    def push(self, *_): pass

async def main():
    sidecar = TrainerChannel(sys.argv[1], Nothing(), SystemClock())
    sidecar.start()
    while not (sidecar.identity() and len(sidecar.identity().ranks) == 2):
        await asyncio.sleep(0.01)
    sidecar.apply(Order("c3", {"num_workers": 3}, {"num_workers": 2}, 1_000))
    while sidecar.outcome("c3").state is not ChangeState.APPLIED:
        await asyncio.sleep(0.01)
    print("applied", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@contextlib.contextmanager
def job(forked, path, *args):
    """Two ranks of TRAINER; gives the processes, and ends them in any case."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "SPIKEWATCH_SOCKET": str(path)}
    ranks = [
        forked.start("-c", TRAINER, *args, env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(2)
    ]
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.kill()


async def watch_change_and_confirm(path, sink, soon):
    """A first sidecar: one change it confirms, one it takes back. Then it stops properly."""
    sidecar = TrainerChannel(path, sink, SystemClock())
    sidecar.start()
    try:
        await soon(lambda: sidecar.identity() and sidecar.identity().ranks == (0, 1), 80)
        identity = sidecar.identity()
        assert (identity.job, identity.world, len(set(identity.run_ids))) == ("two", 2, 2)
        sidecar.apply(Order("c1", {"num_workers": 2, "prefetch_factor": 3}, {"num_workers": 1}, 30_000))
        await soon(lambda: sidecar.outcome("c1").state is ChangeState.APPLIED)
        sidecar.tick(int(time.time() * 1000))
        assert {sink.value("dataloader_workers", rank=r) for r in ("0", "1")} == {2}
        sidecar.keep("c1")
        await soon(lambda: sidecar.outcome("c1").state is ChangeState.KEPT)
        sidecar.apply(Order("c2", {"num_workers": 0}, {"num_workers": 2}, 30_000))
        await soon(lambda: sidecar.outcome("c2").state is ChangeState.APPLIED)
        sidecar.revert("c2")
        await soon(lambda: sidecar.outcome("c2").state is ChangeState.REVERTED)
    finally:
        sidecar.close()


def change_and_be_killed(path):
    """A second sidecar, in its own process: killed with a change on the ranks that nobody has confirmed."""
    sidecar = subprocess.Popen([sys.executable, "-c", SIDECAR, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert sidecar.stdout.readline() == "applied\n"
        sidecar.send_signal(signal.SIGKILL)
    finally:
        sidecar.kill()
        sidecar.wait()
        sidecar.stdout.close()


async def look_again(path, sink, soon):
    """A third sidecar learns what became of it all."""
    sidecar = TrainerChannel(path, sink, SystemClock())
    sidecar.start()
    try:
        await soon(lambda: sidecar.outcome("c3").state is ChangeState.REVERTED)
        assert sidecar.outcome("c3").by == "lease"
        assert sidecar.outcome("c1").state is ChangeState.KEPT
    finally:
        sidecar.close()


def test_two_ranks_are_changed_as_one_survive_their_sidecar_and_end_as_without_us(tmp_path, forked, sink, soon):
    """Weights, random state and order of samples of either rank are those of an untouched run of as many steps."""
    path, enough = tmp_path / "run" / "s", tmp_path / "enough"
    with job(forked, path, str(enough)) as ranks:
        asyncio.run(watch_change_and_confirm(path, sink, soon))
        change_and_be_killed(path)
        asyncio.run(look_again(path, sink, soon))
        enough.touch()
        ended = [json.loads(rank.communicate(timeout=80)[0]) for rank in ranks]
    for watched, plain in ended:
        assert watched["errors"] == 0
        assert watched["workers"] == 2
        assert watched["seen"] == plain["seen"]
        assert watched["state"] == plain["state"]
