"""A sidecar that is gone, hangs or is asked to leave: the trainer falls back by itself, nothing is left half done."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys

import pytest
from e2e_world import ALL, death, response

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]

SHORT_LEASE = {"lease_ms": 1500}


def story(function, *args):
    return pytest.mark.story(play=function, args=args)


def undecided():
    """A response whose verdict comes first on no machine, however slow."""
    made = response()
    made["verify"]["window"] = "10m"
    return made


def samples(world):
    account = world.accounting()
    return account.lost, account.repeated, account.reordered


# --- killed, and nobody comes ---------------------------------------------------------------------------------------


def killed_for_good(world, phase, workers):
    world.trainer()
    assert world.until_death(world.sidecar([death("experiment", "sent", phase=phase)], **SHORT_LEASE)) == -9
    world.until_trains(150)  # three seconds of the fastest trainer: two leases
    world.until_knobs(workers)
    alone = world.knobs()["num_workers"], samples(world)
    world.sidecar(**SHORT_LEASE)
    world.until(lambda: world.results(), "the experiment is closed")
    return alone, world.verdicts(), world.results()


@pytest.mark.story(play=killed_for_good, args=("settling", 1))
def test_an_unverified_change_ends_with_its_lease_when_no_sidecar_is_left(told):
    alone, verdicts, results = told
    assert alone == (1, (0, 0, 0))
    assert verdicts == [("inconclusive", "interrupted")]
    assert results == ["reverted_by_lease"]


@pytest.mark.story(play=killed_for_good, args=("keeping", 4))
def test_a_kept_change_stays_when_no_sidecar_is_left(told):
    alone, verdicts, results = told
    assert alone == (4, (0, 0, 0))
    assert verdicts == [("helped", "gain_is_real")]
    assert results == ["kept"]


# --- hanging --------------------------------------------------------------------------------------------------------


def hung(world):
    world.respond(undecided())
    world.trainer()
    sidecar = world.sidecar(**SHORT_LEASE)
    world.until_entry("experiment", phase="measuring")
    os.kill(sidecar.pid, signal.SIGSTOP)
    world.until_knobs(1)
    os.kill(sidecar.pid, signal.SIGCONT)
    world.until(lambda: world.results(), "the experiment is closed")
    world.until_ready()
    return world.knobs()["num_workers"], world.verdicts(), world.results(), samples(world)


@pytest.mark.story(play=hung)
def test_a_sidecar_that_hung_finds_that_the_lease_has_run_out(told):
    assert told == (1, [("inconclusive", "lease_expired")], ["reverted_by_lease"], (0, 0, 0))


def trainer_hung(world):
    trainer = world.trainer()
    world.sidecar(close_timeout_ms=1500)
    world.until_entry("experiment", phase="settling")
    os.kill(trainer.pid, signal.SIGSTOP)
    world.until(lambda: world.results(), "the experiment is closed")
    world.until_ready()
    os.kill(trainer.pid, signal.SIGCONT)
    world.until_knobs(1)
    return [verdict for verdict, _ in world.verdicts()], world.results(), samples(world)


@pytest.mark.story(play=trainer_hung)
def test_a_trainer_that_hung_through_its_experiment_still_takes_its_values_back(told):
    assert told == (["inconclusive"], ["rollback_unconfirmed"], (0, 0, 0))


# --- asked to leave -------------------------------------------------------------------------------------------------


def interrupted(world, kind, data):
    world.configure(collectors=ALL)
    world.respond(undecided())
    world.trainer()
    sidecar = world.sidecar(**SHORT_LEASE)
    world.until_entry(kind, **data)
    took = world.leave(sidecar.pid, sidecar.died.is_set)
    end = world.entries()
    notes = [e for e in end if e["data"].get("event") == "interrupted"]
    after = [e["kind"] for e in end if e["id"] > notes[0]["id"]] if notes else []
    under_way = [row["change_id"] for row in world.open_experiments()]
    world.until_knobs(1)
    world.sidecar(**SHORT_LEASE)
    world.until_ready()
    world.until(lambda: not world.open_experiments(), "the experiment is closed")
    return {
        "code": sidecar.code,
        "seconds": took,
        "noted": [e["data"]["experiments"] for e in notes],
        "under_way": under_way,
        "after": after,
        "decisions": world.decisions(),
        "decided_twice": world.decided_twice(),
        "verdicts": world.verdicts(),
        "results": world.results(),
        "samples": samples(world),
    }


@pytest.mark.parametrize(
    ("decision", "end"),
    [
        pytest.param(
            "interrupted",
            ([], []),
            marks=story(interrupted, "waiting", {"reason": "thin_baseline"}),
            id="planned",
        ),
        pytest.param(
            "acted",
            ([("inconclusive", "interrupted")], ["reverted_by_lease"]),
            marks=story(interrupted, "experiment", {"phase": "settling"}),
            id="applied",
        ),
        pytest.param(
            "acted",
            ([("inconclusive", "interrupted")], ["reverted_by_lease"]),
            marks=story(interrupted, "experiment", {"phase": "measuring"}),
            id="measuring",
        ),
    ],
)
def test_sigterm_ends_the_sidecar_within_two_seconds_without_another_command(decision, end, told):
    assert told["code"] == 0
    assert told["seconds"] < 2
    assert told["noted"] == [told["under_way"]]
    assert told["after"] == []
    assert told["decisions"] == [decision]
    assert told["decided_twice"] == []
    assert (told["verdicts"], told["results"]) == end
    assert told["samples"] == (0, 0, 0)


def command_line(world):
    world.configure(collectors=ALL)
    world.trainer()
    command = [sys.executable, "-m", "sidecar", "run", "--config", str(world.folder / "spikewatch.yaml")]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SPIKEWATCH_")}
    with (world.folder / "cli.out").open("w") as out, (world.folder / "cli.err").open("w") as err:
        with subprocess.Popen(command, stdout=out, stderr=err, env=environ) as process:
            try:
                world.until_entry("experiment", phase="settling")
                world.until_trains()
                took = world.leave(process.pid, lambda: process.poll() is not None)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
    lines = [json.loads(line) for line in (world.folder / "cli.out").read_text().splitlines()]
    table = [(e["kind"], e["episode"], e["data"]) for e in world.entries()]
    world.sidecar()
    world.until_knobs(1)
    world.until(lambda: world.results(), "the experiment is closed")
    return {
        "code": process.returncode,
        "seconds": took,
        "lines": [(e["kind"], e.get("episode", ""), e["data"]) for e in lines],
        "table": table,
        "errors": (world.folder / "cli.err").read_text(),
        "results": world.results(),
    }


@pytest.mark.story(play=command_line)
def test_spikewatch_run_writes_its_journal_to_stdout_and_leaves_on_sigterm(told):
    assert told["code"] == 0
    assert told["seconds"] < 2
    assert told["lines"] == told["table"]
    assert told["lines"][-1][2]["event"] == "interrupted"
    assert "Traceback" not in told["errors"]
    assert told["results"] == ["rolled_back"]


def unread(world):
    rule = 'groups: [{name: g, rules: [{alert: Flaps, expr: "floor(vector(time() * 20)) % 2 == 1"}]}]'
    (world.folder / "a.rules.yaml").write_text(rule)
    world.configure(responses=[], evaluation_interval="50ms")
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    command = [sys.executable, "-m", "sidecar", "run", "--config", str(world.folder / "spikewatch.yaml")]
    with (world.folder / "cli.err").open("w") as err:
        with subprocess.Popen(command, stdout=writing, stderr=err) as process:
            try:
                os.close(writing)
                world.until(lambda: len(world.entries("edge")) > 60, "more edges than a pipe of 4 KiB holds")
                took = world.leave(process.pid, lambda: process.poll() is not None)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
    with os.fdopen(reading, "rb") as pipe:
        lines = pipe.read().splitlines()
    return process.returncode, took, [json.loads(line)["kind"] for line in lines]


@pytest.mark.story(play=unread)
def test_a_stdout_that_nobody_reads_holds_up_nothing(told):
    code, took, kinds = told
    assert code == 0
    assert took < 2
    assert set(kinds) == {"edge"}
