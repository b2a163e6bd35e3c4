"""`spikewatch-run python train.py`: a script that knows nothing of us is measured and changed, and trains the same."""

import asyncio
import contextlib
import json
import os
import sys

import pytest

from sidecar.clock import FakeClock
from sidecar.hooks import Handle
from sidecar.model import Order
from sidecar.trainer.channel import TrainerChannel
from spikewatch.zerocode_run import environment

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]

SCRIPT = """
import hashlib, json, os, random, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self): return 400
    def __getitem__(self, i): return torch.tensor([i / 400])

torch.manual_seed(3); random.seed(4)
model = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
loader = DataLoader(Data(), batch_size=4, shuffle=True, num_workers=1)
order = []
for epoch in range(2):
    for number, batch in enumerate(loader):
        order += batch[:, 0].tolist()
        loss = model(batch).pow(2).mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        while epoch == 0 and number == 40 and not os.path.exists(sys.argv[1]):
            time.sleep(0.01)
digest = hashlib.sha256()
for p in model.parameters(): digest.update(p.detach().numpy().tobytes())
digest.update(torch.get_rng_state().numpy().tobytes()); digest.update(repr((order, random.getstate())).encode())
print(json.dumps({"digest": digest.hexdigest(), "workers": loader.num_workers}))
"""


class Listening(TrainerChannel):
    """The sidecar's end, which also notes what the trainer said of its changes."""

    said = ()

    def _message(self, peer, message, fd):
        if message["type"] == "change":
            self.said = (*self.said, message["change"]["state"])
        super()._message(peer, message, fd)


class Newest:
    """A sink that keeps the newest value of each series."""

    def __init__(self):
        self.handles, self.values = {}, {}

    def series(self, metric, labels, producer=""):
        key = (metric, labels.get("phase", ""))
        return self.handles.setdefault(key, Handle(len(self.handles), 0))

    def push(self, block, t_ms, values):
        (self.values[block],) = values.values()

    def value(self, name):
        handle = self.handles.get((f"spikewatch_trainer_{name}", ""))
        return self.values.get(handle.block, 0.0) if handle else 0.0


def run_plain(forked, tmp_path, environ):
    script, go = tmp_path / "train.py", tmp_path / "go"
    script.write_text(SCRIPT)
    go.touch()
    process = forked.start(str(script), str(go), env={**dict.fromkeys(os.environ), **environ})
    try:
        out, err = process.communicate(timeout=150)
    finally:
        process.kill()
    go.unlink()
    assert (process.returncode, err) == (0, "")
    return json.loads(out)


async def run_watched(tmp_path, environ):
    script, go = tmp_path / "train.py", tmp_path / "go"
    script.write_text(SCRIPT)
    sink = Newest()
    channel = Listening(tmp_path / "run" / "trainer.sock", sink, FakeClock(1_000_000))
    channel.start()
    environ = {**environ, "SPIKEWATCH_SOCKET": str(tmp_path / "run" / "trainer.sock")}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(script),
        str(go),
        env=environ,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(150):
            told = await change_it(channel, sink, process, go)
            out, err = await process.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        channel.close()
    assert (process.returncode, err.decode()) == (0, "")
    return json.loads(out), told


async def change_it(channel, sink, process, go):
    ticks = iter(range(1, 1_000_000))

    def tick():
        channel.tick(1_000_000 + 10 * next(ticks))

    async def until(check):
        while not check():
            assert process.returncode is None
            tick()
            await asyncio.sleep(0.01)

    await until(lambda: sink.value("steps_total") == 41)
    told = {
        "steps": sink.value("steps_total"),
        "wait": sink.value("data_wait_seconds_total"),
        "samples": sink.value("samples_total"),
        "knobs": dict(channel.knobs()),
    }
    workers = channel.knobs()["num_workers"].value
    channel.apply(Order("more-workers", {"num_workers": workers + 1}, {"num_workers": workers}, 60_000))
    await until(lambda: "pending" in channel.said)  # it has arrived, so the next step carries it out
    go.touch()
    await until(lambda: channel.outcome("more-workers").state.value == "applied")
    channel.keep("more-workers")
    return told


def test_a_script_that_knows_nothing_of_us_is_measured_and_changed_and_trains_the_same(
    forked, tmp_path, clean_environment
):
    alike = {**clean_environment, "OMP_NUM_THREADS": "1"}
    plain = run_plain(forked, tmp_path, alike)
    watched, told = asyncio.run(run_watched(tmp_path, environment(alike)))
    assert told["steps"] == 41
    assert told["samples"] == 164
    assert told["wait"] > 0
    assert {"num_workers", "prefetch_factor"} <= set(told["knobs"])
    assert watched["workers"] == plain["workers"] + 1
    assert watched["digest"] == plain["digest"]


RANKS = """
import hashlib, json, os, sys, time
import torch, torch.distributed as dist
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(3)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 8))
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
data = torch.arange(400.0)[:, None] / 400
loader = DataLoader(data, 4, sampler=DistributedSampler(data, seed=5), num_workers=1)
for epoch in range(2):
    loader.sampler.set_epoch(epoch)
    for number, batch in enumerate(loader):
        model(batch).pow(2).mean().backward(); optimizer.step(); optimizer.zero_grad()
        while epoch == 0 and number == 20 and not os.path.exists(sys.argv[1]):
            time.sleep(0.01)
digest = hashlib.sha256(repr([p.tolist() for p in model.parameters()]).encode())
digest.update(torch.get_rng_state().numpy().tobytes())
print(json.dumps([dist.get_rank(), digest.hexdigest()]), flush=True)
dist.destroy_process_group()
"""


async def run_ranks(tmp_path, environ, *, sidecar):
    script, go = tmp_path / "ranks.py", tmp_path / "go"
    script.write_text(RANKS)
    channel = Listening(tmp_path / "run" / "trainer.sock", Newest(), FakeClock(1_000_000))
    channel.start()
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    process = await asyncio.create_subprocess_exec(
        *launcher,
        *(str(script), str(go)),
        env={**environ, "SPIKEWATCH_SOCKET": str(tmp_path / "run" / "trainer.sock")},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    ranks = ()
    try:
        async with asyncio.timeout(600):
            while sidecar and len(ranks) < 2:
                assert process.returncode is None
                ranks = channel.identity().ranks if channel.identity() else ()
                await asyncio.sleep(0.02)
            go.touch()
            out, err = await process.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        channel.close()
        go.unlink(missing_ok=True)
    assert process.returncode == 0, err.decode()[-2000:]
    return sorted(json.loads(line) for line in out.decode().splitlines()), ranks


@pytest.mark.proof
def test_every_rank_of_a_launcher_is_attached_and_trains_the_same(tmp_path, clean_environment, record_proof):
    plain, _ = asyncio.run(run_ranks(tmp_path, clean_environment, sidecar=False))
    watched, ranks = asyncio.run(run_ranks(tmp_path, environment(clean_environment), sidecar=True))
    assert ranks == (0, 1)
    assert watched == plain
    record_proof("zerocode", {"what": "torchrun with two ranks, armed by the environment alone", "bit_identical": True})
