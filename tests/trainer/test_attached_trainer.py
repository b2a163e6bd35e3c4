"""The real client in this process and the real channel: what a training loop does shows, what is ordered happens."""

import asyncio
import gc
import itertools
import socket

import pytest

import spikewatch
from sidecar.clock import SystemClock
from sidecar.model import ChangeState, Order
from sidecar.trainer.channel import TrainerChannel
from spikewatch import agent as agents

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(agents, "FIRST_RETRY", 0.05)
    monkeypatch.setattr(agents, "LAST_RETRY", 0.1)
    monkeypatch.setattr(agents, "PERIOD", 0.02)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def attach(tmp_path):
    runs = []

    def make(**more):
        runs.append(spikewatch.attach(socket=str(tmp_path / "run" / "trainer.sock"), **more))
        return runs[-1]

    yield make
    for run in runs:
        run.close()
        run.loader = None
    gc.collect()


class Numbers:
    def __len__(self):
        return 400

    def __getitem__(self, i):
        return i


def loader(**more):
    from torch.utils.data import DataLoader

    return DataLoader(Numbers(), batch_size=4, **{"num_workers": 1, **more})


async def stepping(run, batches, check):
    """Trains on until `check` holds."""
    seen = []
    for batch in batches:
        seen += batch.tolist()
        run.step(1.0)
        if check():
            return seen
        await asyncio.sleep(0.01)
    raise AssertionError("the data ended first")


def test_an_order_is_applied_amid_the_pass_kept_and_seen_in_the_samples(channel, attach, sink, soon):
    async def story():
        async with channel() as sidecar:
            run = attach(loader=loader())
            await soon(lambda: sidecar.identity() is not None)
            batches = iter(run.loader)
            assert sidecar.knobs()["num_workers"].value == 1
            found = {"num_workers": 1, "prefetch_factor": 2}
            order = Order("c1", {"num_workers": 2, "prefetch_factor": 4}, found, 30_000)
            sidecar.apply(order)
            seen = await stepping(run, batches, lambda: sidecar.outcome("c1").state is ChangeState.APPLIED)
            outcome = sidecar.outcome("c1")
            assert outcome.found == found
            assert outcome.now == {"num_workers": 2, "prefetch_factor": 4}
            assert 1 <= outcome.step <= run._parts.meter.steps
            sidecar.keep("c1")
            seen += await stepping(run, batches, lambda: sidecar.outcome("c1").state is ChangeState.KEPT)
            for batch in batches:
                seen += batch.tolist()
                run.step(1.0)
            assert seen == list(range(400))
            ticks = itertools.count(1)

            def all_told():  # the newest steps by the client's thread
                sidecar.tick(next(ticks) * 1_000)
                return sink.value("steps_total", rank="0") == 100

            await soon(all_told)
            assert sink.value("samples_total", rank="0") == 400
            assert sink.value("dataloader_workers", rank="0") == 2
            assert sink.value("client_errors_total", rank="0") == 0

    asyncio.run(story())


def test_an_order_against_values_that_are_no_longer_there_is_refused(channel, attach, soon):
    async def story():
        async with channel() as sidecar:
            attach(loader=loader())
            await soon(lambda: sidecar.identity() is not None)
            sidecar.apply(Order("c1", {"num_workers": 3}, {"num_workers": 2}, 30_000))
            await soon(lambda: sidecar.outcome("c1").state is ChangeState.REFUSED)
            assert sidecar.outcome("c1").reason == "conflict"

    asyncio.run(story())


def test_a_wait_that_does_not_end_shows_while_it_lasts(channel, attach, sink, soon):
    async def story():
        async with channel() as sidecar:
            run = attach(loader=[1])
            began = run._parts.meter.wait_begins()  # the loader is stuck
            await soon(lambda: sidecar.identity() is not None)
            waits = []
            for tick in range(1, 200):
                sidecar.tick(tick * 1_000)
                waits.append(sink.value("data_wait_seconds_total", rank="0"))
                if waits[-1] > 0.3:
                    break
                await asyncio.sleep(0.02)
            assert waits == sorted(waits)
            assert waits[-1] > 0.3
            assert sink.value("phase", rank="0", phase="train") == 1
            run._parts.meter.wait_ends(began)

    asyncio.run(story())


def test_a_sidecar_that_was_killed_and_restarted_finds_the_change_and_can_still_undo_it(attach, sink, tmp_path, soon):
    path = tmp_path / "run" / "trainer.sock"

    async def before(run, batches):
        sidecar = TrainerChannel(path, sink, SystemClock())
        sidecar.start()
        await soon(lambda: sidecar.identity() is not None)
        sidecar.apply(Order("c1", {"num_workers": 2}, {"num_workers": 1}, 60_000))
        seen = await stepping(run, batches, lambda: sidecar.outcome("c1").state is ChangeState.APPLIED)
        # Killed: its sockets end and the path stays. (Workers forked from this very process hold them, too.)
        for end in (sidecar._listener.socket, *(peer._socket for peer in sidecar._peers)):
            asyncio.get_running_loop().remove_reader(end.fileno())
            end.shutdown(socket.SHUT_RDWR)
            end.close()
        return seen

    async def after(run, batches):
        sidecar = TrainerChannel(path, sink, SystemClock())
        sidecar.start()
        try:
            await soon(lambda: sidecar.outcome("c1").state is ChangeState.APPLIED)
            sidecar.revert("c1")
            seen = await stepping(run, batches, lambda: sidecar.outcome("c1").state is ChangeState.REVERTED)
            assert sidecar.knobs()["num_workers"].value == 1
            return seen
        finally:
            sidecar.close()

    run = attach(loader=loader())
    batches = iter(run.loader)
    seen = asyncio.run(before(run, batches))
    for _ in range(5):
        seen += next(batches).tolist()
        run.step(1.0)
    seen += asyncio.run(after(run, batches))
    assert seen == list(range(len(seen)))


def test_a_trainer_that_closes_is_seen_to_leave_though_its_workers_live_on(channel, attach, soon):
    async def story():
        async with channel() as sidecar:
            run = attach(loader=loader(persistent_workers=True))
            await soon(lambda: sidecar.identity() is not None)
            batches = iter(run.loader)
            next(batches)
            run.close()
            await soon(lambda: sidecar.identity() is None)
            assert batches._workers[0].is_alive()

    asyncio.run(story())


def test_a_knob_that_differs_between_ranks_is_left_out_with_the_reason(channel, attach, monkeypatch, soon):
    async def story():
        async with channel() as sidecar:
            for rank, workers in (("0", 1), ("1", 2)):
                monkeypatch.setenv("RANK", rank)
                attach(loader=loader(num_workers=workers))
                await soon(lambda rank=rank: sidecar.identity() and int(rank) in sidecar.identity().ranks)
            assert "num_workers" not in sidecar.knobs()
            assert sidecar.unavailable()["num_workers"] == "the ranks have different values: 1, 2"
            assert sidecar.knobs()["prefetch_factor"].maximum == 64

    asyncio.run(story())


def test_a_knob_that_one_rank_cannot_change_is_left_out_with_that_ranks_reason(channel, attach, monkeypatch, soon):
    async def story():
        async with channel() as sidecar:
            attach(loader=loader())
            await soon(lambda: sidecar.identity() is not None)
            monkeypatch.setenv("RANK", "1")
            attach(loader=[1, 2])
            await soon(lambda: sidecar.identity().ranks == (0, 1))
            assert sidecar.knobs() == {}
            assert sidecar.unavailable()["num_workers"] == "not a torch DataLoader"

    asyncio.run(story())


def test_a_knob_that_opens_later_is_told_without_being_asked(channel, attach, soon):
    async def story():
        async with channel() as sidecar:
            run = attach(loader=loader(num_workers=0))
            await soon(lambda: sidecar.identity() is not None)
            assert sidecar.knobs() == {}
            for _ in run.loader:
                run.step()
            await soon(lambda: set(sidecar.knobs()) == {"num_workers", "prefetch_factor"})

    asyncio.run(story())
