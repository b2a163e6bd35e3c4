"""Declared workers and the real channel: their series, their slots, and no mixing with trainers."""

import asyncio
import os

import pytest

import spikewatch
from sidecar.model import Availability
from spikewatch import serving


@pytest.fixture
def declare(tmp_path, monkeypatch):
    monkeypatch.setattr(serving, "FIRST_RETRY", 0.05)
    monkeypatch.setattr(serving, "LAST_RETRY", 0.1)
    monkeypatch.setattr(serving, "PERIOD", 0.02)
    made = []

    def make(name="worker"):
        made.append(spikewatch.worker(name, socket=str(tmp_path / "run" / "trainer.sock")))
        return made[-1]

    yield make
    for one in made:
        one.close()


def of(sink, name, **labels):
    return sink.now.get((f"spikewatch_worker_{name}", tuple(sorted(labels.items()))))


def test_a_worker_shows_its_idle_time_memory_and_after_the_first_request_its_cold_start(channel, declare, sink, soon):
    async def story():
        async with channel() as sidecar:
            worker = declare("tokenizer")
            await soon(lambda: worker.connected)
            who, tick = {"worker": "tokenizer", "slot": "0"}, iter(range(1_000, 900_000, 1_000))

            def seen(check):
                sidecar.tick(next(tick))
                return check()

            await soon(lambda: seen(lambda: (of(sink, "idle_seconds", **who) or 0) > 0.1))
            assert of(sink, "cold_start_seconds", **who) is None
            assert of(sink, "resident_memory_bytes", **who) > 1_000_000
            with worker.request():
                await soon(lambda: seen(lambda: of(sink, "idle_seconds", **who) == 0))
            await soon(lambda: seen(lambda: of(sink, "requests_total", **who) == 1))
            assert of(sink, "cold_start_seconds", **who) > 0
            assert sidecar.identity() is None  # a worker is no rank of a training
            assert sidecar.status().state is Availability.UNAVAILABLE
            worker.close()
            await soon(lambda: seen(lambda: of(sink, "idle_seconds", **who) is None))

    asyncio.run(story())


def test_workers_of_one_name_have_slots_and_the_lowest_free_one_is_given_again(channel, declare, sink, soon):
    async def story():
        async with channel() as sidecar:
            workers = []
            for _ in range(3):
                workers.append(declare())
                await soon(lambda: workers[-1].connected)
            workers[1].close()
            await soon(lambda: len(sidecar._workers) == 2)
            other = declare("other")
            again = declare()
            await soon(lambda: again.connected and other.connected)
            sidecar.tick(1_000)
            slots = {(dict(labels)["worker"], dict(labels)["slot"]) for name, labels in sink.now if "idle" in name}
            assert slots == {("worker", "0"), ("worker", "1"), ("worker", "2"), ("other", "0")}

    asyncio.run(story())


def test_a_worker_finds_a_restarted_sidecar_by_itself(channel, declare, soon):
    async def story():
        async with channel():
            worker = declare()
            await soon(lambda: worker.connected)
        await soon(lambda: not worker.connected)
        async with channel() as again:
            await soon(lambda: worker.connected)
            assert len(again._workers) == 1

    asyncio.run(story())


@pytest.mark.parametrize(
    ("more", "reason"),
    [({"protocol": 9, "protocol_min": 8}, "unsupported_version"), ({"name": ""}, "bad_message")],
)
def test_a_worker_that_cannot_be_understood_is_refused(channel, stranger, sink, more, reason):
    async def story():
        async with channel() as sidecar:
            found = stranger()
            found.hello = {"type": "worker", "protocol": 1, "protocol_min": 1, "name": "w", "run_id": "r", **more}
            found.say_hello()
            assert (await found.hear("nack"))["reason"] == reason
            assert len(sidecar._workers) == 0

    asyncio.run(story())


def test_a_worker_whose_ring_is_none_is_refused_and_costs_no_descriptor(channel, stranger, descriptors, soon):
    async def story():
        async with channel() as sidecar:
            before = descriptors()
            found = stranger()
            found.hello = {"type": "worker", "protocol": 1, "protocol_min": 1, "name": "w", "run_id": "r"}
            found.ring.close()
            found.ring.fd = os.open("/dev/null", os.O_RDONLY)
            found.say_hello()
            assert (await found.hear("nack"))["reason"] == "bad_message"
            os.close(found.ring.fd)
            found.socket.close()
            await soon(lambda: not sidecar._peers)
            assert descriptors() <= before

    asyncio.run(story())
