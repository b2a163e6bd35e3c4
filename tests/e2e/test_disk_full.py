"""The disk takes nothing more, in the middle of an experiment: no new command, the lease decides, the watch goes on."""

from __future__ import annotations

import resource

import pytest
from e2e_world import ALL

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]


def fill(child):
    """No file of that process can grow any more, as on a full disk."""
    resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))


def room(child):
    resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def full(world, kind, data):
    world.configure(collectors=ALL)
    world.trainer()
    sidecar = world.sidecar(lease_ms=1500)
    world.until_entry(kind, **data)
    fill(sidecar)
    last = max(e["id"] for e in world.entries())
    failed = "spikewatch_tick_errors_total"
    world.until(lambda: world.metric(failed, part="responses"), "a failed write")
    ticks, evaluations = (world.metric(f"spikewatch_{n}_total") for n in ("ticks", "rule_evaluations"))
    world.until_trains(100)
    world.until_knobs(1)
    told = {
        "written": [e for e in world.entries() if e["id"] > last],
        "ticks": world.metric("spikewatch_ticks_total") - ticks,
        "evaluations": world.metric("spikewatch_rule_evaluations_total") - evaluations,
    }
    room(sidecar)
    world.until(lambda: world.results() or world.decisions() == ["interrupted"], "the experiment is closed")
    world.until_ready()
    entries = [(e["kind"], e["data"].get("phase"), e["data"].get("command")) for e in world.entries()]
    told["twice"] = [e for e in entries if e[0] == "experiment" and entries.count(e) > 1]
    told |= {"decisions": world.decisions(), "results": world.results(), "alive": sidecar.code is None}
    return told


@pytest.mark.parametrize(
    "results",
    [
        pytest.param(
            {"reverted_by_lease", "rolled_back"},  # by the lease, or by an order where there was room before it ran out
            id="measuring",
            marks=pytest.mark.story(play=full, args=("experiment", {"phase": "measuring"})),
        ),
        pytest.param(
            {"not_held"},
            id="planned",
            marks=pytest.mark.story(play=full, args=("waiting", {"reason": "thin_baseline"})),
        ),
    ],
)
def test_with_a_full_disk_nothing_new_is_ordered_and_all_is_written_once_there_is_room(results, told):
    assert told["written"] == []
    assert told["ticks"] > 5
    assert told["evaluations"] > 5
    assert told["decisions"] == ["acted"]
    assert len(told["results"]) == 1
    assert set(told["results"]) <= results
    assert told["twice"] == []
    assert told["alive"]
