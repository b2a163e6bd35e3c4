"""A sink that is a dict, a trainer made by hand, and an event loop with a channel on it."""

import asyncio
import json
import os
import socket
import struct
import time
from contextlib import asynccontextmanager

import pytest

from sidecar.clock import FakeClock
from sidecar.hooks import Handle
from sidecar.model import STALE
from sidecar.trainer.channel import TrainerChannel
from spikewatch import protocol
from spikewatch.layout import FIELDS, MISSING, SLOW_FIELDS
from spikewatch.ring import RingWriter

PATIENCE = 25.0  # seconds; only a hang takes that long


class DictSink:
    """The newest value of each series; a series that ended is gone."""

    def __init__(self):
        self.series_of, self.now, self.pushes = {}, {}, []

    def series(self, metric, labels, producer=""):
        key = (metric, tuple(sorted(labels.items())))
        if key not in self.series_of:
            block = next((h.block for (m, _), h in self.series_of.items() if m == metric), len(self.series_of))
            column = sum(m == metric for m, _ in self.series_of)
            self.series_of[key] = Handle(block, column)
        return self.series_of[key]

    def push(self, block, t_ms, values):
        assert (block, t_ms) not in self.pushes, "one slot a block and tick"
        self.pushes.append((block, t_ms))
        names = {handle: key for key, handle in self.series_of.items()}
        for column, value in values.items():
            key = names[Handle(block, column)]
            if struct.pack("<d", value) == struct.pack("<d", STALE):
                self.now.pop(key, None)
            else:
                self.now[key] = value

    def value(self, name, **labels):
        return self.now.get((f"spikewatch_trainer_{name}", tuple(sorted(labels.items()))))


@pytest.fixture
def sink():
    return DictSink()


@pytest.fixture
def clock():
    return FakeClock(1_000_000)


@pytest.fixture
def channel(sink, clock, tmp_path):
    """An async context that gives a listening channel: `async with channel() as c`."""

    @asynccontextmanager
    async def make(**more):
        made = TrainerChannel(tmp_path / "run" / "trainer.sock", sink, clock, **more)
        made.start()
        try:
            yield made
        finally:
            made.close()

    return make


async def eventually(check, seconds=PATIENCE):
    """Waits for `check`, letting the loop and other threads run."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if check():
            return
        await asyncio.sleep(0.005)
    raise AssertionError(f"never came true: {check}")


@pytest.fixture
def soon():
    return eventually


class HandMade:
    """A trainer that says what the test wants."""

    def __init__(self, path, rank=0, run_id=None, job="demo", epoch="single", world=2, described=None, **hello):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.setblocking(False)
        self.socket.connect(str(path))
        self.ring = RingWriter()
        self.rank, self.run_id = rank, run_id or f"run-of-{rank}"
        self.number = 0
        self.values = {"num_workers": 2, "prefetch_factor": 2}
        self.hello = {
            "type": "hello",
            "protocol": 1,
            "protocol_min": 1,
            "job": job,
            "run_id": self.run_id,
            "rank": rank,
            "local_rank": rank,
            "world": world,
            "epoch": epoch,
            "framework": "pytorch",
            "backend": "gloo",
            "step": 0,
            "knobs": described or [self.knob(name, value) for name, value in self.values.items()],
            "unavailable": {},
            "changes": [],
            **hello,
        }

    @staticmethod
    def knob(name, value):
        bounds = {"minimum": 0, "maximum": 64}
        return {"name": name, "type": "int", "unit": "", "scope": "local", "value": value, **bounds}

    def say_hello(self):
        socket.send_fds(self.socket, [json.dumps(self.hello).encode()], [self.ring.fd])
        return self

    def say(self, **message):
        self.socket.send(json.dumps(message).encode())

    def report(self, change_id, state, answer=False, **more):
        change = {"id": change_id, "state": state, "by": "", "reason": "", "detail": "", "step": -1, "lease_ms": 0}
        change |= {"found": {}, "values": {"num_workers": 4}, **more}
        self.say(type="change", change=change, knobs=self.values, answer=answer)

    def step(self, **fields):
        self.number += 1
        self.ring.write(self.number, [{"written_at": self.number, **fields}.get(n, MISSING) for n in FIELDS])

    def slow(self, **fields):
        self.ring.write_slow([fields.get(n, MISSING) for n in SLOW_FIELDS])

    async def hear(self, kind=None):
        """The next message (of a kind)."""
        while True:
            data = await asyncio.wait_for(
                asyncio.get_running_loop().sock_recv(self.socket, protocol.MAX_PACKET), PATIENCE
            )
            if not data:
                return {"type": "hung up"}
            message = protocol.decode(data)
            if kind in (None, message["type"]):
                return message

    def silent(self):
        """Whether nothing has been said to it."""
        try:
            self.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        return False

    def close(self):
        if self.socket.fileno() >= 0:
            self.socket.close()
            self.ring.close()


@pytest.fixture
def trainers(tmp_path):
    """Makes hand-made trainers that said hello and were welcomed."""
    made = []

    async def make(**more):
        made.append(HandMade(tmp_path / "run" / "trainer.sock", **more).say_hello())
        assert (await made[-1].hear())["type"] == "welcome"
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def stranger(tmp_path):
    """Connects without a word."""
    made = []

    def make(**more):
        made.append(HandMade(tmp_path / "run" / "trainer.sock", **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def descriptors():
    """How many descriptors this process has open."""
    return lambda: len(os.listdir("/proc/self/fd"))
