"""The sidecar is killed in every state of an experiment, and started again: the journal resolves what was under way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from e2e_world import ALL, FEED, STARVE, death, response

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]


@dataclass(frozen=True)
class Case:
    """When the sidecar dies, and what must have come of it once another one has taken over."""

    name: str
    death: dict[str, Any]
    workers: int  # the trainer's loader has in the end
    decision: str = "acted"
    verdict: tuple[str, str] | None = ("inconclusive", "interrupted")
    result: str | None = "rolled_back"
    found: int = 1  # loader workers before
    mode: str = "act"
    policy: dict[str, int] | None = None
    again: bool = False  # the next sidecar sees the alert begin to fire once more, and answers it to the end


HELPED, USELESS = ("helped", "gain_is_real"), ("did_not_help", "no_gain")
PHASES = [
    Case("the alert fires", death("edge", edge="firing"), 4, "interrupted", HELPED, "kept", again=True),
    Case(
        "planned, waiting for its baseline",
        death("waiting", reason="thin_baseline"),
        1,
        "interrupted",
        None,
        "interrupted",
    ),
    Case("approved", death("experiment", phase="approved"), 1, "interrupted", None, "interrupted", mode="suggest"),
    Case(
        "intended, not on disk", death("experiment", "before", phase="intended"), 1, "interrupted", None, "interrupted"
    ),
    Case("intended, not sent", death("experiment", phase="intended"), 1, result="not_held", policy={"lease_ms": 1500}),
    Case("intended, sent", death("experiment", "sent", phase="intended"), 1),
    Case("applied", death("experiment", phase="settling"), 1),
    Case("measuring", death("experiment", phase="measuring"), 1),
    Case("helped, not on disk", death("experiment", "before", phase="keeping"), 1),
    Case("helped, keep not sent", death("experiment", phase="keeping"), 4, verdict=HELPED, result="kept"),
    Case("helped, keep sent", death("experiment", "sent", phase="keeping"), 4, verdict=HELPED, result="kept"),
    Case("kept", death("experiment", phase="closed"), 4, verdict=HELPED, result="kept"),
    Case("useless, rollback not sent", death("experiment", phase="reverting"), 4, verdict=USELESS, found=4),
    Case("useless, rollback sent", death("experiment", "sent", phase="reverting"), 4, verdict=USELESS, found=4),
    Case("rolled back", death("experiment", phase="closed"), 4, verdict=USELESS, found=4),
]


@dataclass(frozen=True)
class Ending:
    """What the world looks like when all is over."""

    killed_by: int
    decisions: list[str]
    decided_twice: list[tuple[str, str]]
    verdicts: list[tuple[str, str]]
    results: list[str]
    open: list[Any]
    workers: int
    samples: tuple[int, int, int]  # lost, repeated, reordered
    restored: list[bool]  # of every edge to firing


def killed_and_restarted(world, case):
    """A trainer starves, the sidecar dies on the way to its remedy; another one comes."""
    policy = case.policy or {}
    world.respond(response(STARVE if case.found == 4 else FEED, mode=case.mode))
    world.trainer(workers=case.found)
    first = world.sidecar([case.death], **policy)
    if case.mode == "suggest":
        episode = world.until_entry("waiting", reason="awaiting_approval")["episode"]
        world.until_ready()
        try:
            world.http.post(f"/api/v1/responses/{episode}/feed/approve")
        except Exception:  # noqa: BLE001  it dies while it answers
            pass
    killed_by = world.until_death(first)
    world.until_trains()
    world.sidecar(**policy)
    world.until_ready()
    world.until(lambda: not world.open_experiments(), "the experiment is closed")
    world.until_knobs(case.workers)
    world.until(lambda: not world.open_experiments(), "the experiment of a second episode is closed")
    world.until_trains()
    firing = [bool(e["data"].get("restored")) for e in world.entries("edge") if e["data"]["edge"] == "firing"]
    account = world.accounting()
    return Ending(
        killed_by,
        world.decisions(),
        world.decided_twice(),
        world.verdicts(),
        world.results(),
        world.open_experiments(),
        world.knobs()["num_workers"],
        (account.lost, account.repeated, account.reordered),
        firing,
    )


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=pytest.mark.story(play=killed_and_restarted, args=(case,)))
        for case in PHASES
    ],
)
def test_a_sidecar_killed_at_any_moment_leaves_nothing_undecided_and_loses_no_sample(case, told):
    assert told.killed_by == -9
    assert told.decisions == [case.decision, *(["acted"] if case.again else [])]
    assert told.decided_twice == []
    assert told.verdicts == ([case.verdict] if case.verdict else [])
    assert told.results == ([case.result] if case.result else [])
    assert told.open == []
    assert told.workers == case.workers
    assert told.samples == (0, 0, 0)
    # Where the edge was on disk and the alert's state not yet, it is told again, and opens another episode.
    assert told.restored == [False, not case.again]


def database_lost(world):
    """The sidecar dies while it measures, and what it had written is destroyed before the next one comes."""
    world.trainer()
    policy = {"lease_ms": 1500}
    world.until_death(world.sidecar([death("experiment", phase="measuring")], **policy))
    for path in (world.folder / "state").glob("state.db*"):
        path.write_bytes(b"not a database" * 1000)
    world.sidecar(**policy)
    world.until_knobs(1)
    world.until_ready()
    world.until_trains()
    account = world.accounting()
    kept = [path.name for path in (world.folder / "state").glob("state.db.corrupt-?")]
    return world.results(), kept, (account.lost, account.repeated, account.reordered)


@pytest.mark.story(play=database_lost)
def test_without_its_memory_the_sidecar_begins_anew_and_the_lease_undoes_what_it_has_forgotten(told):
    assert told == ([], ["state.db.corrupt-0"], (0, 0, 0))


def twice(world):
    """Another sidecar is started by mistake, on the same folders, while the first one measures."""
    world.configure(collectors=ALL)
    world.trainer()
    first = world.sidecar()
    world.until_entry("experiment", phase="measuring")
    second = world.sidecar()
    code = world.until_death(second)
    world.until(lambda: world.results(), "the experiment is closed")
    return code, second.said(), first.code, world.results(), [e["data"] for e in world.entries("sidecar")]


@pytest.mark.story(play=twice)
def test_a_second_sidecar_on_the_same_folders_is_refused_and_the_first_goes_on(told):
    code, said, first, results, notes = told
    assert code == 1
    assert "in use by another sidecar" in said
    assert (first, results, notes) == (None, ["kept"], [])
