"""Ranks that agree on other batches change at the same step, keep every sample, and end as if written by hand."""

import json
import socket
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

RANK = Path(__file__).with_name("rank_that_accumulates.py")


def train(forked, tmp_path, world, seconds, **settings):
    """What each rank saw."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    shared |= {"SPIKEWATCH_SOCKET": str(tmp_path / "nobody")}
    command = [str(RANK), json.dumps({"out": str(tmp_path), "seed": 1, **settings})]
    ranks = [
        forked.start(*command, env={**shared, "RANK": str(number), "LOCAL_RANK": str(number)})
        for number in range(world)
    ]
    try:
        said = [rank.communicate(timeout=seconds)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * world, said
    return [json.loads((tmp_path / f"rank{number}.json").read_text()) for number in range(world)]


def verify(seen, changes):
    first = seen[0]
    for rank in seen:
        assert rank["sizes"] == first["sizes"]  # at the same step on every rank, or nowhere
        assert rank["sums"] == first["sums"]  # the same weights after every step
        assert rank["samples_right"]  # none lost, repeated or moved
        assert rank["as_by_hand"]  # bit for bit a run that had these sizes at these steps
        assert rank["errors"] == 0
    assert len(first["ends"]) == changes
    assert {"kept", "reverted"} >= set(first["ends"])
    moved = sum(one != other for one, other in zip(first["sizes"], first["sizes"][1:], strict=False))
    assert moved >= changes / 2
    return moved


@pytest.mark.timeout(200)
def test_two_ranks_change_the_size_of_batches_together_while_each_changes_its_workers(tmp_path, forked):
    verify(train(forked, tmp_path, 2, 180, changes=4, most=200), 4)


@pytest.mark.proof
@pytest.mark.timeout(3000)
def test_two_hundred_changes_of_the_size_of_batches_on_two_and_on_four_ranks(tmp_path, forked, record_proof):
    found = {}
    for world in (2, 4):
        folder = tmp_path / str(world)
        folder.mkdir()
        seen = train(forked, folder, world, 1400, changes=200, most=20_000)
        found[f"{world} ranks"] = {
            "changes": len(seen[0]["ends"]),
            "kept": seen[0]["ends"].count("kept"),
            "taken back": seen[0]["ends"].count("reverted"),
            "changes of size seen": verify(seen, 200),
            "steps with equal weights": len(seen[0]["sums"]),
            "passes with every sample once": seen[0]["passes"],
        }
    record_proof("batches", found)
