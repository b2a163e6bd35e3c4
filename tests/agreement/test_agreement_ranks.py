"""Real ranks under gloo change what they share at one step or not at all, whatever happens to one of them meanwhile."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
JOB = Path(__file__).with_name("agreement_job.py")
PATIENCE = 3.0  # seconds, as the job is told: the deadline of a proposal
LIVENESS = 150.0  # seconds: only a hang takes so long

STOPPED = 1.0  # seconds for which a stopped rank is stopped

# before and after each step of the protocol, on the leading rank and on another
PHASES = [
    (phase, rank) for phase in ("hearing", "answering", "learning", "carrying out", "reporting") for rank in (0, 1)
]
PHASES += [("proposing", 0), ("proposing after", 0), ("deciding", 0), ("deciding after", 0), ("answering after", 1)]


def settings_of(tmp_path, **settings):
    told = {"out": str(tmp_path), "steps": 20, "changes": 4, "seed": 1, "most": 4_000, **settings}
    return json.dumps({**told, "pace": {"patience": PATIENCE}})


@contextlib.contextmanager
def job(tmp_path, world, **settings):
    """The ranks' processes, ended in any case."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, str(JOB), settings_of(tmp_path, **settings)]
    shared = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    shared |= {"SPIKEWATCH_SOCKET": str(tmp_path / "nobody"), "PYTHONPATH": str(ROOT)}
    ranks = [
        subprocess.Popen(
            command,
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        yield ranks
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
            rank.wait()
            rank.stderr.close()


def ended(tmp_path, ranks, seconds=LIVENESS):
    """What each rank saw, once all have ended well."""
    for rank in ranks:
        _, said = rank.communicate(timeout=seconds)
        assert rank.returncode == 0, said[-2000:]
    return reports(tmp_path, range(len(ranks)))


def check(seen, changes):
    """The ranks never differed, and everything ordered came to an end."""
    assert [rank["unequal"] for rank in seen] == [0] * len(seen)
    assert [rank["errors"] for rank in seen] == [0] * len(seen)
    assert len({(rank["steps"], rank["values"]) for rank in seen}) == 1
    assert len(seen[0]["ends"]) == changes
    return Counter(state for state, *_ in seen[0]["ends"])


def continued(pid, seconds):
    """A stopped rank goes on after a while."""
    until = time.monotonic() + LIVENESS
    while time.monotonic() < until:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state == "T":
            time.sleep(seconds)
            os.kill(pid, signal.SIGCONT)
            return
        assert state != "Z"
        time.sleep(0.02)
    raise AssertionError("it never stopped")


class Crew:
    """Jobs one after the other, their ranks forked from one process that has imported torch."""

    def __init__(self):
        command = [sys.executable, str(JOB), "serve"]
        env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "SPIKEWATCH_SOCKET": "/nowhere/s"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, env=env, bufsize=0, start_new_session=True, **pipes)

    def start(self, tmp_path, world, **settings):
        """The ranks' process ids."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        env = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        told = {"world": world, "env": env, "settings": json.loads(settings_of(tmp_path, **settings))}
        self.process.stdin.write(json.dumps(told).encode() + b"\n")
        return self.line()["pids"]

    def line(self):
        ready, _, _ = select.select([self.process.stdout], [], [], LIVENESS)
        assert ready, "a rank hangs"
        return json.loads(self.process.stdout.readline())

    def ended(self, world):
        """rank → (exit code, when)."""
        return {said["rank"]: (said["code"], time.monotonic()) for said in (self.line() for _ in range(world))}

    def close(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture(scope="module")
def crew():
    made = Crew()
    yield made
    made.close()


def trouble(act, phase, rank, seconds=0.0):
    """Happens once, in the second change or so."""
    return {"act": act, "phase": phase, "rank": rank, "at": 3, "seconds": seconds}


def reports(tmp_path, ranks):
    return [json.loads((tmp_path / f"rank{number}.json").read_text()) for number in ranks]


def stopped_or_slow(crew, tmp_path, act, phase, rank, world=2, changes=3):
    """A job in which one rank stands still for a while; what the ranks saw."""
    seconds = STOPPED if act == "stop" else 1.5 * PATIENCE
    pids = crew.start(tmp_path, world, trouble=trouble(act, phase, rank, seconds), changes=changes)
    if act == "stop":
        continued(pids[rank], seconds)
    assert [code for code, _ in crew.ended(world).values()] == [0] * world
    seen = reports(tmp_path, range(world))
    assert seen[rank]["trouble"] >= 3
    others = [one["longest"] for number, one in enumerate(seen) if number != rank]
    assert max(others) < PATIENCE, "a training thread waited for another rank"
    return seen


def killed(crew, tmp_path, phase, rank):
    """A job in which one rank is killed: how many seconds the other lived on, and what it saw."""
    crew.start(tmp_path, 2, trouble=trouble("kill", phase, rank), changes=3)
    codes = crew.ended(2)
    assert codes[rank][0] == -signal.SIGKILL
    assert codes[1 - rank][0] == 1  # gloo tells it that its peer is gone
    return codes[1 - rank][1] - codes[rank][1], reports(tmp_path, [1 - rank])[0]


def test_two_ranks_apply_random_changes_at_one_step_and_never_differ(tmp_path, crew):
    crew.start(tmp_path, 2, changes=8, seed=5)
    assert [code for code, _ in crew.ended(2).values()] == [0, 0]
    seen = reports(tmp_path, range(2))
    ends = check(seen, 8)
    assert ends["kept"] + ends["reverted"] >= 6
    assert seen[0]["values"] > 4


def test_one_of_four_ranks_answers_too_late_and_nothing_hangs_or_differs(tmp_path, crew):
    check(stopped_or_slow(crew, tmp_path, "slow", "hearing", 3, world=4, changes=3), 3)


@pytest.mark.proof
@pytest.mark.timeout(3600)
def test_two_hundred_random_changes_on_two_and_on_four_ranks(tmp_path, record_proof):
    found = {}
    for world in (2, 4):
        folder = tmp_path / str(world)
        folder.mkdir()
        with job(folder, world, changes=200, seed=world, most=100_000) as ranks:
            seen = ended(folder, ranks, 10 * LIVENESS)
        ends = check(seen, 200)
        assert ends["kept"] + ends["reverted"] >= 190
        found[f"{world} ranks"] = {
            "changes": 200,
            **ends,
            "steps": seen[0]["steps"],
            "steps after which weights or shared values differed": 0,
            "longest call of run.step in milliseconds": round(max(rank["longest"] for rank in seen) * 1e3, 1),
        }
    record_proof("agreement", found)


@pytest.mark.proof
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("act", ["stopped", "slow"])
def test_a_rank_that_stands_still_in_any_phase_makes_nobody_wait_or_differ(tmp_path, crew, record_proof, act):
    found = {}
    for phase, rank in PHASES:
        folder = tmp_path / f"{phase} {rank}"
        folder.mkdir()
        seen = stopped_or_slow(crew, folder, {"stopped": "stop", "slow": "slow"}[act], phase, rank)
        found[f"rank {rank}, {phase}"] = {
            **check(seen, 3),
            "steps": seen[0]["steps"],
            "longest call of run.step on the other rank, seconds": round(seen[1 - rank]["longest"], 3),
        }
    seconds = STOPPED if act == "stopped" else 1.5 * PATIENCE
    record_proof(f"agreement_{act}", {"deadline, seconds": PATIENCE, "stood still, seconds": seconds, "phases": found})


@pytest.mark.proof
@pytest.mark.timeout(3600)
def test_a_rank_killed_in_any_phase_leaves_the_others_equal_and_the_job_starts_anew(tmp_path, crew, record_proof):
    found = {}
    for phase, rank in PHASES:
        folder, again = tmp_path / f"{phase} {rank}", tmp_path / f"{phase} {rank} again"
        folder.mkdir()
        again.mkdir()
        lived_on, seen = killed(crew, folder, phase, rank)
        assert (seen["unequal"], seen["errors"]) == (0, 0)
        assert lived_on < 2 * PATIENCE
        crew.start(again, 2, changes=2)
        assert [code for code, _ in crew.ended(2).values()] == [0, 0]
        found[f"rank {rank}, {phase}"] = {
            "seconds until gloo ended the other rank": round(lived_on, 2),
            "steps compared until then": seen["steps"],
            "started again": check(reports(again, (0, 1)), 2),
        }
    record_proof("agreement_killed", {"phases": found})
