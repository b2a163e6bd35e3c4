"""The trainer is killed in every state of an experiment: it is closed, and the next trainer gets help of its own."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from typing import Any

import pytest
from e2e_world import death

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]


@dataclass(frozen=True)
class End:
    """What came of the episode during which a trainer was killed."""

    decision: str
    verdict: tuple[str, str] | None
    result: str | None


STATES = {
    "planned": death("waiting", victim="trainer", reason="thin_baseline"),
    "intended, not sent": death("experiment", victim="trainer", phase="intended"),
    "intended, sent": death("experiment", "sent", victim="trainer", phase="intended"),
    "applied": death("experiment", victim="trainer", phase="settling"),
    "measuring": death("experiment", victim="trainer", phase="measuring"),
    "helped, keep not sent": death("experiment", victim="trainer", phase="keeping"),
    "helped, keep sent": death("experiment", "sent", victim="trainer", phase="keeping"),
    "kept": death("experiment", victim="trainer", phase="closed", result="kept"),
}
STARTUP = 1.2
"""Seconds between attaching and the first batch: in them the alert of the trainer before resolves, as it does anywhere
while a new one loads its model."""
HALVES = (list(STATES)[::2], list(STATES)[1::2])


@dataclass(frozen=True)
class Told:
    """`ends` by state; `last` is of the trainer that was let live."""

    ends: dict[str, End]
    last: End
    began_with: list[int]  # loader workers of each trainer's first step
    last_workers: int
    decided_twice: list[Any]
    samples: list[tuple[int, int, int]]
    one_sidecar: bool


def killed(world, states, at_once):
    """One trainer after the other dies; `at_once` says whether the next comes before anybody has noticed."""
    world.rule(keep="400ms")
    # Where nobody comes, the sidecar gives up soon; where the next trainer comes at once, it may take time to start.
    patience = 60_000 if at_once else 1500
    # On a busy machine a guard without its series would be the first to end what this is to end.
    sidecar = world.sidecar([STATES[s] for s in states], close_timeout_ms=patience, guard_grace_ms=60_000)
    world.until_ready()
    ends, seen = {}, 0
    for state in states:
        trainer = world.trainer(startup=STARTUP)
        assert world.until_death(trainer) == -9
        episode = episode_of(world, STATES[state], seen)
        if at_once:
            ends[state] = episode
        else:
            ends[state] = end_of(world, episode)
            world.until(lambda episode=episode: closed(world, episode), "the episode is closed")
        seen = last_id(world)
    world.trainer(startup=STARTUP)
    last = world.until(lambda: episode_after(world, seen), "an episode of the last trainer")
    last_end = end_of(world, last)
    world.until_knobs(4)
    world.until_trains()
    return Told(
        {state: end_of(world, end) if at_once else end for state, end in ends.items()},
        last_end,
        [first_workers(world, n) for n in range(len(states) + 1)],
        world.knobs()["num_workers"],
        world.decided_twice(),
        [account(world, n) for n in range(len(states) + 1)],
        sidecar.code is None and len(world.sidecars) == 1,
    )


def last_id(world):
    return max((e["id"] for e in world.entries()), default=0)


def episode_of(world, death, after):
    """The one during which it struck: at the first entry that matches."""
    entries = world.entries(death["kind"], after)
    return next(e["episode"] for e in entries if death["data"].items() <= e["data"].items())


def episode_after(world, after):
    return next((e["episode"] for e in world.entries("experiment", after) if e["data"]["phase"] == "planned"), None)


def closed(world, episode):
    return world.rows(f"SELECT 1 FROM episodes WHERE id = '{episode}' AND closed_at_ms > 0")


def end_of(world, episode):
    def decided():
        return next((e for e in world.entries("decision") if e["episode"] == episode), None)

    decision = world.until(decided, f"a decision in {episode}")["data"]["reason"]
    if decision != "acted":
        return End(decision, None, None)

    def over():
        entries = [e for e in world.entries("experiment") if e["episode"] == episode]
        return entries[-1]["data"] if entries and entries[-1]["data"]["phase"] == "closed" else None

    data = world.until(over, f"the experiment of {episode} is closed")
    return End(decision, (data["verdict"], data["reason"]), data["result"])


def first_workers(world, number):
    for line in (world.folder / f"train{number}" / "rank0.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if entry["event"] == "step":
            return entry["num_workers"]
    raise AssertionError(f"trainer {number} did no step")


def account(world, number):
    a = world.accounting(number)
    return a.lost, a.repeated, a.reordered


def stories(at_once):
    return [
        pytest.param(half, id=", ".join(half), marks=pytest.mark.story(play=killed, args=(half, at_once), long=True))
        for half in HALVES
    ]


def check(told, states, results):
    # A trainer that takes its time to come back is given up before it is seen again.
    gone = {"trainer_restarted", "trainer_gone"} if results["measuring"] == "trainer_gone" else {"trainer_gone"}
    for state in states:
        end = told.ends[state]
        if state == "planned":
            assert end == End("resolved", None, None)
        elif state.startswith(("helped", "kept")):
            assert (end.decision, end.verdict) == ("acted", ("helped", "gain_is_real"))
            # A trainer that was sent the `keep` may or may not have confirmed it in its last moment.
            assert end.result in ({results[state], "kept"} if state == "helped, keep sent" else {results[state]})
        else:
            assert end in [End("acted", ("inconclusive", why), results[state]) for why in gone]
    assert told.last == End("acted", ("helped", "gain_is_real"), "kept")
    assert told.last_workers == 4
    assert set(told.began_with) == {1}
    assert told.decided_twice == []
    assert set(told.samples) == {(0, 0, 0)}
    assert told.one_sidecar


@pytest.mark.parametrize("states", stories(at_once=False))
def test_a_trainer_that_dies_ends_its_experiment_and_a_later_one_is_helped_from_its_own_values(states, told):
    results = dict.fromkeys(STATES, "rollback_unconfirmed") | {
        "helped, keep not sent": "keep_unconfirmed",
        "helped, keep sent": "keep_unconfirmed",
        "kept": "kept",
    }
    check(told, states, results)


@pytest.mark.parametrize("states", stories(at_once=True))
def test_a_trainer_restarted_at_once_ends_the_experiment_of_the_one_before(states, told):
    results = dict.fromkeys(STATES, "trainer_gone") | {"kept": "kept"}
    check(told, states, results)


def ended_in_order(world):
    trainer = world.trainer()
    sidecar = world.sidecar()
    world.until_entry("experiment", phase="measuring")
    os.kill(trainer.pid, signal.SIGTERM)  # the script leaves its loop and closes its run
    code = world.until_death(trainer)
    world.until(lambda: world.results(), "the experiment is closed")
    return code, world.verdicts(), world.results(), account(world, 0), sidecar.code


@pytest.mark.story(play=ended_in_order)
def test_a_trainer_that_ends_in_order_undoes_the_change_and_says_so(told):
    assert told == (0, [("inconclusive", "lease_expired")], ["reverted_by_lease"], (0, 0, 0), None)
