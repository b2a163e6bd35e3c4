"""What all ranks share, from the sidecar's order to two ranks' optimizers and back, over sockets and a real store."""

import asyncio
import contextlib
import threading

import pytest

import spikewatch
from sidecar.model import ChangeState, Order, Scope
from spikewatch import attaching
from spikewatch.agreement import THREAD_NAME
from spikewatch.agreement_group import Group
from spikewatch.agreement_leader import Pace

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]


@pytest.fixture
def ranks(tmp_path, monkeypatch, soon):
    """Attaches two runs, as the two processes of a job would, and steps them; gives them and what holds them up."""
    import torch
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setattr(attaching, "PACE", Pace(poll=0.02, busy=0.005, allowance=0.05))
    runs = []

    def attach(rank):
        group = Group(store, rank, 2)
        monkeypatch.setattr(attaching, "find_group", lambda: group)
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1)
        runs.append(spikewatch.attach(optimizer=optimizer, job="pair", socket=str(tmp_path / "run" / "trainer.sock")))

    async def train(goes_on):
        while True:
            await goes_on.wait()
            for run in runs:
                run.step()
            await asyncio.sleep(0.002)

    @contextlib.asynccontextmanager
    async def together(sidecar):
        for rank in (0, 1):
            attach(rank)
            await soon(lambda rank=rank: sidecar.identity() and rank in sidecar.identity().ranks)
        await soon(lambda: "lr_factor" in sidecar.knobs())
        goes_on = asyncio.Event()
        goes_on.set()
        training = asyncio.create_task(train(goes_on))
        try:
            yield runs, goes_on
        finally:
            training.cancel()

    yield together
    for run in runs:
        run.close()
    assert [thread.name for thread in threading.enumerate() if thread.name == THREAD_NAME] == []


def factors(runs):
    return [run._parts.knobs.values()["lr_factor"] for run in runs]


def test_an_order_reaches_every_rank_at_one_step_and_is_confirmed_and_taken_back_everywhere(channel, ranks, soon):
    async def story():
        async with channel() as sidecar, ranks(sidecar) as (runs, goes_on):
            knob = sidecar.knobs()["lr_factor"]
            assert (knob.scope, knob.value, knob.minimum, knob.maximum) == (Scope.ALL_RANK, 1.0, 0.1, 2.0)
            sidecar.apply(Order("a", {"lr_factor": 0.5}, {"lr_factor": 1.0}, 30_000))
            await soon(lambda: sidecar.outcome("a").state is ChangeState.APPLIED)
            await soon(lambda: sidecar.knobs().get("lr_factor") and sidecar.knobs()["lr_factor"].value == 0.5)
            assert len({run._parts.ledger.report("a")["step"] for run in runs} | {sidecar.outcome("a").step}) == 1
            assert factors(runs) == [0.5, 0.5]
            sidecar.keep("a")
            await soon(lambda: {run._parts.ledger.report("a")["state"] for run in runs} == {"kept"})
            sidecar.revert("a")
            await soon(lambda: sidecar.outcome("a").state is ChangeState.REVERTED)
            await soon(lambda: factors(runs) == [1.0, 1.0])
            assert len({run._parts.ledger.report("a")["step"] for run in runs}) == 1

    asyncio.run(story())


def test_a_sidecar_that_falls_silent_leaves_no_rank_changed(channel, ranks, soon):
    async def story():
        async with channel() as sidecar, ranks(sidecar) as (runs, goes_on):
            sidecar.apply(Order("b", {"lr_factor": 0.5}, {}, 1_000))
            await soon(lambda: factors(runs) == [0.5, 0.5])
            sidecar.close()
            await soon(lambda: factors(runs) == [1.0, 1.0])
            reports = [run._parts.ledger.report("b") for run in runs]
            assert {(report["state"], report["by"]) for report in reports} == {("reverted", "lease")}
            assert len({report["step"] for report in reports}) == 1

    asyncio.run(story())


def test_a_run_that_is_closed_after_it_has_said_yes_keeps_its_word(channel, ranks, soon):
    async def story():
        async with channel() as sidecar, ranks(sidecar) as (runs, goes_on):
            goes_on.clear()
            knobs, ledgers = [run._parts.knobs for run in runs], [run._parts.ledger for run in runs]
            sidecar.apply(Order("c", {"lr_factor": 0.5}, {}, 30_000))
            appointments = ledgers[1].promises._appointments
            await soon(lambda: any(a.verdict is not None and a.verdict.commit for a in list(appointments.values())))
            runs[1].close()
            assert not runs[1].active
            goes_on.set()
            await soon(lambda: [knob.values()["lr_factor"] for knob in knobs] == [0.5, 0.5])
            assert len({ledger.report("c")["step"] for ledger in ledgers}) == 1
            assert runs[1]._owed is None

    asyncio.run(story())
