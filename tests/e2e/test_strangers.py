"""Strangers on the trainer's socket, another job, a run_dir that is swept away: everybody goes on."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import socket

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]


def packets():
    """What no client of ours sends, each with the descriptors that go along."""
    chance = random.Random(1)
    hello = {"type": "hello", "protocol": 1, "protocol_min": 1, "job": "x", "run_id": "x", "rank": 0, "local_rank": 0,
             "world": 1, "epoch": "", "framework": "", "backend": "", "step": 0, "knobs": [], "unavailable": {},
             "changes": []}  # fmt: skip
    plain = os.memfd_create("unsealed")
    with contextlib.closing(socket.socket()) as other, open(os.devnull) as null:
        yield b"\x00" * 10, []
        yield chance.randbytes(60_000), []
        yield b"{" * 50_000, []
        yield b"[" * 60_000, []
        yield json.dumps({"type": "hello"}).encode(), []
        yield json.dumps({"type": "set", "change_id": "x", "values": {}, "expect": {}, "lease_ms": 1}).encode(), []
        yield json.dumps(hello).encode(), []
        yield json.dumps(hello | {"protocol": 99, "protocol_min": 99}).encode(), [plain]
        yield json.dumps(hello | {"rank": -1}).encode(), [plain]
        yield json.dumps(hello | {"knobs": [{"name": 1}]}).encode(), [plain]
        for fd in (plain, null.fileno(), other.fileno()):
            yield json.dumps(hello).encode(), [fd]
        yield json.dumps(hello).encode(), [plain, null.fileno(), plain]
    os.close(plain)


def throw(path):
    """One connection a packet, and some that say nothing. Returns those left open."""
    silent = []
    for data, fds in packets():
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as connection:
            connection.settimeout(5)
            connection.connect(str(path))
            with contextlib.suppress(OSError):
                socket.send_fds(connection, [data], fds)
                connection.recv(1 << 16)
    for _ in range(30):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect(str(path))
        silent.append(connection)
    return silent


def pelted(world):
    world.trainer()
    world.sidecar()
    silent = []
    for kind, data in (
        ("edge", {"edge": "pending"}),
        ("experiment", {"phase": "settling"}),
        ("experiment", {"phase": "measuring"}),
    ):
        world.until_entry(kind, **data)
        silent += throw(world.socket)
    world.until(lambda: world.results(), "the experiment is closed")
    world.until_trains()
    for connection in silent:
        connection.close()
    told = end(world)
    told["said"] = world.sidecars[0].said()
    return told


def end(world):
    account = world.accounting(0)
    return {
        "end": (world.verdicts(), world.results()),
        "samples": (account.lost, account.repeated, account.reordered),
        "errors": world.metric("spikewatch_tick_errors_total"),
    }


@pytest.mark.story(play=pelted)
def test_garbage_on_the_trainers_socket_disturbs_neither_sidecar_nor_experiment(told):
    assert told["end"] == ([("helped", "gain_is_real")], ["kept"])
    assert told["samples"] == (0, 0, 0)
    assert told["errors"] is None
    assert "Traceback" not in told["said"]


def joined(world):
    world.trainer()
    world.sidecar()
    world.until_entry("experiment", phase="settling")
    second = world.trainer(job="another")
    world.until(lambda: world.results(), "the experiment is closed")
    world.until_knobs(1, number=0)
    world.until_trains(number=0)
    world.until_trains(number=1)
    degraded = world.metric("spikewatch_collector_status", collector="trainer", reason="several_jobs")
    os.kill(second.pid, 15)
    assert world.until_death(second) == 0
    world.until(
        lambda: world.metric("spikewatch_collector_status", collector="trainer", state="available"), "one job again"
    )
    world.until_trains(number=0)
    return end(world) | {"degraded": degraded}


@pytest.mark.story(play=joined)
def test_another_job_that_attaches_ends_the_experiment_and_the_first_job_has_its_values_back(told):
    assert told["end"] == ([("inconclusive", "trainer_restarted")], ["rolled_back"])
    assert told["samples"] == (0, 0, 0)
    assert told["degraded"] == 1
    assert told["errors"] is None


def swept(world):
    world.trainer()
    sidecar = world.sidecar()
    world.until_entry("experiment", phase="settling")
    shutil.rmtree(world.socket.parent)
    world.until(lambda: world.results(), "the experiment is closed")
    world.until_trains()
    told = end(world)
    world.trainer(job="later")
    world.until(lambda: world.metric("spikewatch_collector_status", reason="several_jobs"), "the later one attaches")
    return told | {"alive": sidecar.code is None, "mode": oct(world.socket.parent.stat().st_mode & 0o777)}


@pytest.mark.story(play=swept)
def test_without_its_run_dir_the_sidecar_keeps_its_trainer_and_makes_the_socket_anew(told):
    assert told["end"] == ([("helped", "gain_is_real")], ["kept"])
    assert told["samples"] == (0, 0, 0)
    assert told["errors"] is None
    assert told["alive"]
    assert told["mode"] == "0o700"
