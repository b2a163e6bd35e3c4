"""Whatever connects, the sidecar's loop goes on, other trainers are served, and nothing leaks."""

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidecar.trainer import channel as channels
from sidecar.trainer import peer as peers
from spikewatch import protocol

PACKETS = st.one_of(
    st.binary(min_size=1, max_size=400),
    st.sampled_from([b'{"type":"get"}', b'{"type":"hello"}', b'{"type":"nack"}', b"[" * 5000]),
    st.dictionaries(st.text(max_size=10), st.integers() | st.text(max_size=10), max_size=4).map(
        lambda d: json.dumps({"type": "change", **d}).encode()
    ),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(PACKETS, min_size=1, max_size=6), st.booleans())
def test_arbitrary_packets_with_arbitrary_descriptors_only_cost_the_sender_its_connection(
    channel, trainers, stranger, sink, descriptors, soon, packets, after_hello
):
    async def story():
        async with channel() as sidecar:
            good = await trainers(rank=0)
            bad = stranger(rank=1)
            if after_hello:
                bad.say_hello()
                await bad.hear("welcome")
            before = descriptors()
            with contextlib.suppress(OSError):
                for packet in packets:
                    socket.send_fds(bad.socket, [packet], [0])
            with contextlib.suppress(ConnectionResetError):
                while (await bad.hear())["type"] != "hung up":
                    pass
            good.step(steps_total=7)
            sidecar.tick(sidecar._clock.advance(1_000))
            assert sink.value("steps_total", rank="0") == 7
            assert descriptors() <= before
            assert sum(sidecar.refused.values()) == 1
            good.close()
            bad.close()

    asyncio.run(story())


@pytest.mark.parametrize("kind", ["no descriptor", "a pipe", "unsealed"])
def test_a_hello_without_a_proper_ring_is_refused_with_the_reason(channel, stranger, kind):
    async def story():
        async with channel() as sidecar:
            bad = stranger()
            fds = {"no descriptor": [], "a pipe": list(os.pipe()), "unsealed": [os.memfd_create("x")]}[kind]
            socket.send_fds(bad.socket, [json.dumps(bad.hello).encode()], fds[:1])
            for fd in fds:
                os.close(fd)
            answer = await bad.hear()
            assert (answer["type"], answer["reason"]) == ("nack", "bad_message")
            assert (await bad.hear())["type"] == "hung up"
            assert sidecar.identity() is None

    asyncio.run(story())


def test_a_version_nobody_here_speaks_is_refused_by_name(channel, stranger):
    async def story():
        async with channel():
            newer = stranger(protocol=protocol.VERSION + 5, protocol_min=protocol.VERSION + 3)
            newer.say_hello()
            assert (await newer.hear())["reason"] == "unsupported_version"

    asyncio.run(story())


def test_a_newer_trainer_that_still_speaks_our_version_is_welcome(channel, trainers):
    async def story():
        async with channel() as sidecar:
            await trainers(protocol=protocol.VERSION + 2, protocol_min=protocol.VERSION)
            assert sidecar.identity() is not None

    asyncio.run(story())


def test_a_peer_that_never_says_hello_is_dropped(channel, stranger, clock):
    async def story():
        async with channel() as sidecar:
            silent = stranger()
            await asyncio.sleep(0.02)
            sidecar.tick(clock.advance(1_000))
            assert silent.silent()
            sidecar.tick(clock.advance(channels.HELLO_MS))
            assert (await silent.hear())["type"] == "hung up"
            assert sidecar.refused["no_hello"] == 1

    asyncio.run(story())


def test_a_flood_of_packets_costs_the_connection(channel, trainers, soon):
    async def story():
        async with channel() as sidecar:
            noisy = await trainers()

            def send():
                with contextlib.suppress(BlockingIOError):
                    while True:
                        noisy.say(type="nack", reason="busy", detail="", change_id="")

            with pytest.raises(OSError, match="Broken pipe|reset"):
                for _ in range(10_000):
                    send()
                    await asyncio.sleep(0)
            assert sidecar.refused["flood"] == 1

    asyncio.run(story())


def test_a_trainer_that_does_not_read_is_dropped_and_holds_nobody_up(channel, trainers, monkeypatch):
    async def story():
        async with channel() as sidecar:
            deaf = await trainers(rank=0)
            rank = sidecar._current()[0]
            for _ in range(5_000):
                rank.peer.send({"type": "get"})
            assert sidecar.refused["not_reading"] == 1
            assert sidecar.identity() is None
            deaf.close()

    asyncio.run(story())


def test_a_trainer_slow_to_read_still_gets_everything_in_order(channel, trainers):
    async def story():
        async with channel() as sidecar:
            slow = await trainers(rank=0)
            peer = sidecar._current()[0].peer
            sent = 0
            while len(peer._unsent) < peers.MAX_UNSENT // 2:
                peer.send({"type": "renew", "change_id": str(sent), "lease_ms": 1_000})
                sent += 1
            heard = [(await slow.hear())["change_id"] for _ in range(sent)]
            assert heard == [str(n) for n in range(sent)]

    asyncio.run(story())


def test_more_connections_than_a_pod_can_have_are_turned_away(channel, stranger, trainers, monkeypatch, soon):
    monkeypatch.setattr(channels, "MAX_PEERS", 3)

    async def story():
        async with channel() as sidecar:
            for _ in range(3):
                stranger()
            await soon(lambda: len(sidecar._peers) == 3)
            over = stranger()
            assert (await over.hear())["type"] == "hung up"
            assert sidecar.refused["too_many"] == 1

    asyncio.run(story())


def test_a_user_who_is_not_allowed_is_turned_away_unheard(channel, stranger):
    async def story():
        async with channel(allowed_uids={os.getuid() + 1}) as sidecar:
            other = stranger()
            with contextlib.suppress(OSError):
                other.say_hello()
            with contextlib.suppress(ConnectionResetError):
                assert (await other.hear())["type"] == "hung up"
            assert sidecar.refused["uid"] == 1
            assert sidecar.identity() is None

    asyncio.run(story())


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_cannot_reach_the_socket_and_is_not_heard_where_the_folder_lets_it_through(sink, clock):
    code = (
        "import socket, os, sys; os.setgid(1234); os.setuid(1234)\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "try: s.connect(sys.argv[1])\n"
        "except PermissionError: sys.exit(7)\n"
        "sys.exit(8 if s.recv(10) == b'' else 9)"
    )
    folder = Path(tempfile.mkdtemp())  # not below pytest's own folder, which nobody else may enter
    folder.chmod(0o755)
    path = folder / "run" / "s"

    async def attempt():
        done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", code, str(path)], timeout=20)
        return done.returncode

    async def story():
        sidecar = channels.TrainerChannel(path, sink, clock)
        sidecar.start()
        try:
            assert await attempt() == 7
            path.parent.chmod(0o755)
            path.chmod(0o666)
            assert await attempt() == 8
            assert sidecar.refused["uid"] == 1
        finally:
            sidecar.close()
            shutil.rmtree(folder)

    asyncio.run(story())


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.timeout(60)
def test_a_trainer_of_an_allowed_user_in_the_folders_group_attaches(sink, clock, soon):
    code = (
        f"import os, sys, time; sys.path.insert(0, {str(Path(channels.__file__).parents[2])!r})\n"
        "import spikewatch; spikewatch.attach(socket='/nowhere/s').close()  # all is loaded while it can be read\n"
        "os.setgroups([4321]); os.setgid(1234); os.setuid(1234)\n"
        "run = spikewatch.attach(socket=sys.argv[1])\n"
        "run.step(1.0)\n"
        "while not run.connected: time.sleep(0.02)\n"
        "print('attached', flush=True)\n"
        "sys.stdin.read()\n"
        "run.close()\n"
    )
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    path = folder / "run" / "s"

    async def story():
        sidecar = channels.TrainerChannel(path, sink, clock, allowed_uids={0, 1234})
        sidecar.start()
        process = None
        try:
            os.chown(path.parent, 0, 4321)  # as fsGroup does
            os.chown(path, 0, 4321)
            process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE)
            await soon(lambda: sidecar.identity() is not None)
            sidecar.tick(1_000)
            assert sink.value("steps_total", rank="0") == 1
        finally:
            if process is not None:
                process.communicate(b"", timeout=20)
            sidecar.close()
            shutil.rmtree(folder)
        assert process.returncode == 0

    asyncio.run(story())
