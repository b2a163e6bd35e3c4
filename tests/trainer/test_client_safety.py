"""The client takes itself out of the way: after errors, in forked and spawned workers, in compiled code."""

import asyncio
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import spikewatch
from spikewatch import agent as agents
from spikewatch import protocol
from spikewatch import run as runs

ROOT = Path(spikewatch.__file__).parents[1]


@pytest.fixture
def attach(tmp_path, monkeypatch):
    monkeypatch.setattr(agents, "FIRST_RETRY", 0.05)
    monkeypatch.setattr(agents, "PERIOD", 0.02)
    made = []

    def make(**more):
        made.append(spikewatch.attach(socket=str(tmp_path / "run" / "trainer.sock"), **more))
        return made[-1]

    yield make
    for run in made:
        run.close()


def test_a_client_that_turned_itself_off_has_told_why_and_its_series_have_ended(
    channel, attach, sink, soon, monkeypatch
):
    async def story():
        async with channel() as sidecar:
            run = attach()
            await soon(lambda: run.connected)
            run.step(1.0)
            sidecar.tick(1_000)
            assert sink.value("steps_total", rank="0") == 1

            def fails(*_):
                raise LookupError("a mistake of ours")

            monkeypatch.setattr(runs.Run, "_offered", fails)
            for _ in range(runs.MAX_ERRORS):
                assert run.active
                run.step(1.0)
            assert not run.active
            await soon(lambda: sidecar.identity() is None)
            sidecar.tick(2_000)
            assert sink.value("client_off_info", rank="0", reason="LookupError") == 1
            assert sink.value("steps_total", rank="0") is None

    asyncio.run(story())


class Looks:
    """A dataset whose items say what of the client its process has: 1 a ring, 2 a thread."""

    def __len__(self):
        return 8

    def __getitem__(self, i):
        links = [link for fd in os.listdir("/proc/self/fd") if (link := _link(fd))]
        ring = any("spikewatch-ring" in link for link in links)
        thread = any(thread.name == agents.THREAD_NAME for thread in threading.enumerate())
        return ring + 2 * thread + 10 * (multiprocessing.parent_process() is not None)


def _link(fd):
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:  # closed since it was listed
        return ""


WORKERS = """
import multiprocessing, sys
sys.path[:0] = [{root!r}, {tests!r}]
import spikewatch
from test_client_safety import Looks
from torch.utils.data import DataLoader

if __name__ == "__main__":
    loader = DataLoader(Looks(), batch_size=2, num_workers=2, multiprocessing_context={context!r})
    run = spikewatch.attach(loader=loader, socket="/nowhere/s")
    seen = []
    for batch in run.loader:
        seen += batch.tolist()
        run.step()
    assert run._parts.meter.errors == 0
    assert run.active
    run.close()
    print(seen)
"""


@pytest.mark.torch
@pytest.mark.timeout(150)
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_loaders_workers_hold_nothing_of_the_client_however_they_are_started(context, forked, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(WORKERS.format(root=str(ROOT), tests=str(Path(__file__).parent), context=context))
    if context == "fork":
        process = forked.start(str(script), env={})
        try:
            code, (out, errors) = process.wait(timeout=140), process.communicate(timeout=1)
        finally:
            process.kill()
    else:
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=140, check=False)
        code, out, errors = done.returncode, done.stdout, done.stderr
    assert (code, errors) == (0, "")
    assert out.strip() == str([10] * 8)


@pytest.mark.torch
def test_a_compiled_model_is_neither_compiled_again_nor_broken_up_and_trains_the_same(attach):
    import torch
    from torch._dynamo.utils import counters

    def train(attached):
        torch._dynamo.reset()
        counters.clear()
        torch.manual_seed(3)
        inner = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        model = torch.compile(inner, backend="aot_eager", fullgraph=True)
        optimizer = torch.optim.SGD(inner.parameters(), 0.1)
        run = attach(model=model, optimizer=optimizer) if attached else None
        for _ in range(6):
            loss = model(torch.randn(5, 4)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if run is not None:
                run.step(loss)
        seen = {name: dict(counters[name]) for name in ("frames", "stats", "graph_break")}
        errors = run._parts.meter.errors if run else 0
        return [p.detach().numpy().tobytes() for p in inner.parameters()], seen, errors

    try:
        assert train(True) == train(False)
    finally:
        torch._dynamo.reset()
        counters.clear()


@pytest.mark.torch
def test_a_step_function_that_is_compiled_as_a_whole_still_counts_its_steps(attach):
    import torch

    torch._dynamo.reset()
    run = attach()
    weight = torch.ones(2)

    @torch.compile(backend="eager")
    def step(x):
        loss = (weight * x).sum()
        run.step(loss)
        return loss * 2

    try:
        assert [float(step(torch.full((2,), float(n)))) for n in range(1, 5)] == [4.0, 8.0, 12.0, 16.0]
        assert run._parts.meter.steps == 4
        assert run._parts.meter.errors == 0
        assert run._parts.meter.loss == 8.0
    finally:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()


def test_a_client_thread_whose_every_turn_fails_takes_no_core_and_is_counted(attach, monkeypatch):
    turns = []

    def fails(*_):
        turns.append(threading.get_ident())
        raise LookupError("a mistake of ours")

    run = attach()
    began, cpu = time.monotonic(), time.process_time()
    monkeypatch.setattr(agents.Agent, "_publish", fails)
    while len(turns) < 5:
        assert time.monotonic() < began + 25
        time.sleep(0.02)
    passed = time.monotonic() - began
    assert passed > agents.PERIOD * (2 + 4 + 8)  # it waits longer each time
    assert time.process_time() - cpu < passed
    assert run._parts.meter.errors >= 5
    monkeypatch.undo()
    run.step(1.0)
    assert run.active


@pytest.mark.parametrize(("ours", "oldest", "welcome"), [(3, 1, True), (4, 2, False)])
def test_a_trainer_two_versions_older_is_welcome_and_one_three_versions_older_is_told_why_not(
    channel, stranger, monkeypatch, ours, oldest, welcome
):
    async def story():
        monkeypatch.setattr(protocol, "VERSION", ours)
        monkeypatch.setattr(protocol, "OLDEST", oldest)
        async with channel() as sidecar:
            old = stranger()
            assert (old.hello["protocol"], old.hello["protocol_min"]) == (1, 1)
            old.say_hello()
            answer = await old.hear()
            if welcome:
                assert answer == {"type": "welcome", "protocol": 1}
                assert sidecar.identity() is not None
            else:
                assert answer["reason"] == "unsupported_version"

    asyncio.run(story())
