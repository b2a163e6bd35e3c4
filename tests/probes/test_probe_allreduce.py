"""The all-reduce benchmark on this machine's CPU: real ranks, real sums."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from probes import allreduce
from probes.commands import main

ROOT = Path(__file__).parents[2]


def run(*arguments, **environ):
    command = [sys.executable, "-m", "probes", "allreduce", *map(str, arguments)]
    given = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")} | environ
    return subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True, timeout=110, check=False)


@pytest.mark.torch
@pytest.mark.timeout(120)
def test_two_ranks_add_up_and_say_how_fast():
    done = run("--ranks", 2, "--sizes", 1024, 65536)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["size"], line["ranks"], line["backend"]) for line in lines] == [(1024, 2, "gloo"), (65536, 2, "gloo")]
    for line in lines:
        assert line["bus_bytes_per_second"] == pytest.approx(line["size"] / line["seconds"])
        assert line["best_bus_bytes_per_second"] >= line["bus_bytes_per_second"]


@pytest.mark.torch
@pytest.mark.timeout(120)
def test_a_rank_that_fails_ends_the_others():
    done = run("--ranks", 2, "--sizes", 1024, GLOO_SOCKET_IFNAME="no-such-interface")
    assert done.returncode == 1


def test_bus_bandwidth_is_what_the_slowest_link_of_a_ring_carries():
    assert allreduce.bus_bandwidth(1000, 1.0, 2) == 1000
    assert allreduce.bus_bandwidth(1000, 1.0, 8) == pytest.approx(1750)


def test_transports_are_read_from_what_nccl_prints():
    log = """
host:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
host:1:2 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM/read
host:1:2 [0] NCCL INFO Channel 00/0 : 7[7] -> 8[0] [send] via NET/IB/0/GDRDMA
host:1:2 [0] NCCL INFO Connected all rings
"""
    assert allreduce.transports(log) == {"P2P/CUMEM/read": 2, "NET/IB/0/GDRDMA": 1}


def test_without_torch_it_says_what_is_missing(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["allreduce"]) == 1
    assert "allreduce needs torch" in capsys.readouterr().err
