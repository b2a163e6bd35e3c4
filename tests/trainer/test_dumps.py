"""A dump of the flight recorder that the sidecar asks for: what comes back, and what is not believed."""

import asyncio
import fcntl
import json
import os
import socket

import pytest

import spikewatch
from spikewatch import agent as agents
from spikewatch import flight


def file_of(data, seals=flight.SEALS):
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.write(fd, data)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


async def answer(sidecar, trainer, soon, fd=None, **more):
    sidecar.ask_for_dumps("d1")
    asked = await trainer.hear("dump")
    message = {"type": "dumped", "what": asked["what"], "dump_id": asked["dump_id"], "size": 0, "detail": "", **more}
    socket.send_fds(trainer.socket, [json.dumps(message).encode()], [] if fd is None else [fd])
    await soon(lambda: sidecar.dumps())


def test_the_dump_of_every_rank_is_kept_and_read_when_wanted(channel, trainers, soon):
    async def story():
        async with channel() as sidecar:
            one, two = await trainers(rank=0), await trainers(rank=1)
            assert sidecar.ask_for_dumps("d0") == (0, 1)
            await one.hear("dump")
            fd = flight.sealed(b'{"entries": []}')
            await answer(sidecar, two, soon, fd, size=15)
            os.close(fd)
            assert (sidecar.dumps()[1].size, sidecar.dumps()[1].taken_ms) == (15, 1_000_000)
            assert sidecar.dump(1) == b'{"entries": []}'
            assert sidecar.dump(0) == b""
            two.close()
            await soon(lambda: sidecar.identity().ranks == (0,))
            assert sidecar.dump(1) == b'{"entries": []}'  # of a rank that died: the most wanted one

    asyncio.run(story())


@pytest.mark.parametrize(
    ("make", "size"),
    [
        (lambda: file_of(b"1234"), 5),
        (lambda: file_of(b"1234", fcntl.F_SEAL_GROW), 4),
        (lambda: os.open("/dev/zero", os.O_RDONLY), 4),
        (lambda: os.pipe()[0], 0),
    ],
)
def test_a_file_that_is_not_sealed_or_of_another_size_is_not_kept(channel, trainers, soon, make, size):
    async def story():
        async with channel() as sidecar:
            trainer = await trainers()
            fd = make()
            await answer(sidecar, trainer, soon, fd, size=size)
            os.close(fd)
            assert sidecar.dump(0) == b""
            assert sidecar.dumps()[0].detail == "what came is no sealed file of that size"

    asyncio.run(story())


def test_a_rank_that_has_no_flight_recorder_says_why(channel, trainers, soon):
    async def story():
        async with channel() as sidecar:
            await answer(sidecar, await trainers(), soon, detail="torch.distributed is not initialised")
            assert sidecar.dumps()[0].detail == "torch.distributed is not initialised"

    asyncio.run(story())


def test_dumps_that_are_replaced_and_a_channel_that_closes_leave_no_descriptor_behind(
    channel, trainers, descriptors, soon
):
    async def story():
        before = descriptors()
        async with channel() as sidecar:
            trainer = await trainers()
            for n in range(5):
                fd = flight.sealed(b"x" * (n + 1))
                await answer(sidecar, trainer, soon, fd, size=n + 1)
                os.close(fd)
                await soon(lambda n=n: sidecar.dumps()[0].size == n + 1)
            trainer.close()
            await soon(lambda: sidecar.identity() is None)
        assert descriptors() <= before + 1  # the loop's own

    asyncio.run(story())


@pytest.mark.torch
def test_the_recorder_of_a_real_process_group_comes_over_as_json(channel, tmp_path, monkeypatch, soon):
    import torch

    monkeypatch.setattr(agents, "FIRST_RETRY", 0.05)
    monkeypatch.setattr(agents, "PERIOD", 0.02)
    run = None

    async def story():
        nonlocal run
        async with channel() as sidecar:
            run = spikewatch.attach(socket=str(tmp_path / "run" / "trainer.sock"))
            await soon(lambda: run.connected)
            sidecar.ask_for_dumps("none yet")
            await soon(lambda: sidecar.dumps())
            assert sidecar.dumps()[0].detail == "torch.distributed is not initialised"
            store = torch.distributed.HashStore()
            torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
            for _ in range(3):
                torch.distributed.all_reduce(torch.ones(4))
            sidecar.ask_for_dumps("now")
            await soon(lambda: sidecar.dumps()[0].size)
            entries = json.loads(sidecar.dump(0))["entries"]
            # the recorder is the process's: before them may be collectives of groups that other tests had
            assert [entry["profiling_name"] for entry in entries][-3:] == ["gloo:all_reduce"] * 3
            assert run._parts.meter.errors == 0

    try:
        asyncio.run(story())
    finally:
        if run is not None:
            run.close()
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
