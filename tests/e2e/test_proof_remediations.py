"""The long proof of the remediations: real work on CPU, judged by the speed of the training where it is about speed.

One run at a time, windows of ten seconds. Where a busy machine left nothing but noise the play is played again, as an
alert that fires again is answered again; how often is told. Results go to docs/proof/remediations.json.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml
from e2e_nursing import Nursery
from e2e_world import SPEED, World
from test_remediations_played import BAD, BREAKS, FP16, OVERFLOWS, RULES, answer, settings, steps

from sidecar.cli.demo.traininglog import TrainingLog

pytestmark = [pytest.mark.torch, pytest.mark.proof, pytest.mark.timeout(1200)]

GROW = {"strategy": "stability", "window_steps": 200, "global_batch": "follow"}
ALL_PAIRS, LAUNCHES = {"kind": "all_pairs", "batch_size": 128}, {"kind": "launches"}
FASTER, FEWER = (SPEED, "increase"), (OVERFLOWS, "decrease")
PREFETCH, LESS = {"factor": 4, "max_workers": 4, "max_prefetch": 2}, {"factor": 0.25}

ATTEMPTS = 4
PLAYS = (
    ("micro_batch_tradeoff", {}, ALL_PAIRS, FASTER, "helped"),
    ("micro_batch_tradeoff", {}, LAUNCHES, FASTER, "did_not_help"),
    ("micro_batch_tradeoff", {}, ALL_PAIRS | BREAKS, FASTER, "inconclusive"),
    ("batch_size", GROW, LAUNCHES, FASTER, "helped"),
    ("batch_size", GROW | {"maximum": 256}, ALL_PAIRS, FASTER, "did_not_help"),
    ("batch_size", GROW, LAUNCHES | BREAKS, FASTER, "inconclusive"),
    ("loss_scale", {}, FP16, FEWER, "helped"),
    ("loss_scale", {}, FP16 | BAD, FEWER, "did_not_help"),
    ("loss_scale", {}, FP16 | BREAKS, FEWER, "inconclusive"),
    ("precision_bf16", {}, FP16, FEWER, "helped"),
    ("precision_bf16", {}, FP16 | BAD, FEWER, "did_not_help"),
    ("precision_bf16", {}, FP16 | BREAKS, FEWER, "inconclusive"),
    ("dataloader_prefetch", PREFETCH, {"workers": 1}, FASTER, "helped"),
    ("dataloader_prefetch", LESS, {"workers": 4}, FASTER, "did_not_help"),
)


def longer(response):
    return {**response, "verify": {**response["verify"], "baseline": "10s", "window": "10s"}}


def play(nursery, plugin, params, run, judged, expected):
    world = World(nursery)
    try:
        expr, goal = judged
        loader = plugin == "dataloader_prefetch"
        if not loader:
            (world.folder / "a.rules.yaml").write_text(RULES)
        (world.folder / "caps.yaml").write_text(yaml.safe_dump({"caps": {plugin: "act"}}))
        guarded = "bad_every" not in run
        world.respond(longer(answer(plugin, params, expr, goal, guarded, "Starved" if loader else "Trouble")))
        world.configure(caps="caps.yaml", usd_per_gpu_hour=2.5, gpus=1)
        world.sidecar()
        if loader:
            world.trainer(**run)
        else:
            args = {"output": str(world.folder / "train0"), "socket": str(world.socket), "job": "job", **run}
            child = world.nursery.start("remedy", args, world.folder / "train0.out")
            world.trainers.append(child)
            world.logs.append(TrainingLog(world.folder / "train0"))
        closed = world.until_entry("experiment", phase="closed", seconds=240)
        verdict = world.entries("verdict")[0]["data"]
        if loader:
            world.until_knobs(run["workers"] if closed["data"]["result"] != "kept" else params["max_workers"])
            undone = True
        else:
            there = len(steps(world))
            world.until(lambda: len(steps(world)) > there + 5, "five more steps")
            as_before = settings(steps(world)[-1]) == settings(steps(world)[0])
            undone = as_before == (closed["data"]["result"] != "kept")
        return {
            "remediation": plugin,
            "with": params,
            "run": run,
            "judged_by": f"{goal} of {expr}",
            "expected": expected,
            "verdict": verdict["verdict"],
            "reason": verdict["reason"],
            "gain_percent": verdict.get("gain_percent"),
            "at_least_percent": verdict.get("at_least_percent"),
            "usd_per_hour": verdict.get("usd_per_hour"),
            "result": closed["data"]["result"],
            "trainer_is_as_the_journal_says": undone,
        }
    finally:
        world.close()


def played(nursery, *what):
    """The play, again while it drowns in noise."""
    for attempt in range(1, ATTEMPTS + 1):
        found = {**play(nursery, *what), "attempts": attempt}
        noise = found["verdict"] == "inconclusive" and found["reason"] not in ("guard_broken", "refused")
        if not noise or found["verdict"] == found["expected"]:
            break
    return found


def name_of(plugin, params, run, judged, expected):
    return f"{plugin}, {run.get('kind', 'loader')}: {expected}"


@pytest.fixture(scope="module")
def nursery():
    made = Nursery()
    yield made
    made.close()


@pytest.fixture(scope="module")
def plays(record_proof):
    """What each play came to, with what is on record of those that are not played this time."""
    file = Path(__file__).parents[2] / "docs" / "proof" / "remediations.json"
    known = json.loads(file.read_text())["plays"] if file.exists() else {}
    yield known
    what = "remediations on real training runs, PyTorch on CPU; each play with the load of the machine it was played on"
    record_proof("remediations", {"what": what, "cores": os.cpu_count(), "plays": known})


@pytest.mark.parametrize("what", PLAYS, ids=lambda what: name_of(*what))
def test_each_remediation_is_kept_where_it_helps_and_undone_where_it_does_not(nursery, plays, what):
    found = played(nursery, *what)
    plays[name_of(*what)] = {**found, "load": round(os.getloadavg()[0], 1)}
    expected = "kept" if found["expected"] == "helped" else "rolled_back"
    assert (found["verdict"], found["result"]) == (found["expected"], expected), json.dumps(found, indent=1)
    assert found["trainer_is_as_the_journal_says"]
