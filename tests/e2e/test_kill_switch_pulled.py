"""The kill switch while a change is being tried in a real trainer: it gets no further word, and undoes it by itself."""

from __future__ import annotations

import httpx
import pytest
from e2e_world import response

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]

SHORT_LEASE = {"lease_ms": 3_000}


def pulled(world, by_file):
    slow = response()
    slow["verify"]["window"] = "10m"  # no verdict comes first, however slow the machine is
    world.respond(slow)
    world.trainer()
    world.sidecar(**SHORT_LEASE)
    world.until_entry("experiment", phase="measuring")
    switch = world.folder / "state" / "kill-switch"
    if by_file:
        switch.touch()
    else:  # over the Unix socket, as somebody in the pod would
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(world.folder / "run" / "api.sock"))) as client:
            client.post("http://localhost/api/v1/kill-switch", data={"by": "ada"}, timeout=30).raise_for_status()
    world.until_knobs(1)
    world.until(lambda: world.results(), "the experiment is closed")
    turned = world.until_entry("sidecar", event="kill_switch")
    said = [e["data"]["command"] for e in world.entries("command", turned["id"])]
    held = (world.verdicts(), world.results(), said, world.knobs()["num_workers"])
    world.http.delete("/api/v1/kill-switch", params={"by": "ada"}).raise_for_status()
    world.until_trains()
    account = world.accounting()
    return held, switch.exists(), (account.lost, account.repeated, account.reordered)


@pytest.mark.parametrize(
    "by_file",
    [
        pytest.param(by_file, id="file" if by_file else "socket", marks=pytest.mark.story(play=pulled, args=(by_file,)))
        for by_file in (True, False)
    ],
)
def test_a_change_on_trial_ends_with_its_lease_when_the_switch_is_pulled_and_no_sample_is_lost(by_file, told):
    held, still_there, samples = told
    assert held == ([("inconclusive", "kill_switch")], ["reverted_by_lease"], [], 1)
    assert not still_there
    assert samples == (0, 0, 0)
