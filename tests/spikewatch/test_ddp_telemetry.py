"""What DistributedDataParallel measures of itself, over real gloo ranks in processes of their own."""

import json
import socket

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]

RANK = """
import json, sys, time
import torch, spikewatch
from spikewatch import ddplog
from spikewatch import run as runs
ddplog.LOOK_EVERY, runs.SHORT_STEP = 0, -1  # every step looks, and leaves a whole record
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()

def train(attached, views, lag):
    torch.manual_seed(0)
    inner = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
    model = torch.nn.parallel.DistributedDataParallel(inner, bucket_cap_mb=0.02, gradient_as_bucket_view=views)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    run = spikewatch.attach(model=model, optimizer=optimizer, socket="/nowhere/s") if attached else None
    seen = []
    for step in range(45):
        loss = model(torch.randn(8, 64)).pow(2).mean()
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        if rank == 1:
            time.sleep(lag)
        optimizer.step()
        if run is not None:
            run._parts.meter.due = 0
            run.step(loss)
            seen.append({**run._measuring._ddp(time.monotonic()), **run._measuring.telemetry.about})
    found = {
        "rank": rank,
        "seen": seen,
        "iteration": model._get_ddp_logging_data()["iteration"],
        "errors": run._parts.meter.errors if run else 0,
        "weights": [p.detach().numpy().tobytes().hex() for p in model.parameters()],
    }
    if run is not None:
        run.close()
    for _ in range(25):
        model(torch.randn(8, 64)).pow(2).mean().backward()
    return {**found, "after": model._get_ddp_logging_data()["iteration"]}

print(json.dumps([train(True, True, 0.02), train(False, True, 0), train(True, False, 0)]))
torch.distributed.destroy_process_group()
"""


def ranks(forked, world=2):
    """What the ranks found, by kind of run."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    base = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
    started = [forked.start("-c", RANK, env={**base, "RANK": str(rank)}) for rank in range(world)]
    found = []
    try:
        for process in started:
            out, errors = process.communicate(timeout=100)
            assert process.returncode == 0, errors
            found.append(json.loads(out.splitlines()[-1]))
    finally:
        for process in started:
            process.kill()
    return dict(zip(("watched", "plain", "without views"), zip(*found, strict=True), strict=True))


@pytest.fixture(scope="module")
def runs(forked):
    return ranks(forked)


@pytest.fixture
def two(runs):
    return runs["watched"]


def test_forward_backward_communication_and_overlap_of_real_steps_are_read(two):
    for rank in two:
        newest = rank["seen"][-1]
        assert rank["errors"] == 0
        for name in ("ddp_forward_seconds", "ddp_backward_seconds", "ddp_communication_seconds"):
            assert 0 < newest[name] < 60
        assert 0 <= newest["ddp_overlap_ratio"] <= 1
        assert newest["parallelism"] == "ddp"


def test_the_time_in_communication_only_grows_and_stands_for_every_step(two):
    for rank in two:
        totals = [seen["sync_seconds_total"] for seen in rank["seen"] if seen.get("sync_seconds_total")]
        assert totals == sorted(totals)
        assert totals[-1] > totals[0]
        assert rank["iteration"] == 40  # measured once in 20 steps, where DDP by itself would have stopped at 10


def test_the_rank_that_waits_for_the_other_communicates_longer(two):
    waited = {rank["rank"]: rank["seen"][-1]["sync_seconds_total"] for rank in two}
    assert waited[0] > waited[1]


def test_the_buckets_handed_to_the_collective_are_counted_by_alignment(two):
    for rank in two:
        newest = rank["seen"][-1]
        buckets = newest["buffers_aligned_total"] + newest["buffers_misaligned_total"]
        assert buckets > 0
        assert buckets % 1 == 0


def test_where_gradients_are_no_views_of_the_buckets_their_addresses_stay_unknown(runs):
    for rank in runs["without views"]:
        assert "buffers_aligned_total" not in rank["seen"][-1]
        assert rank["seen"][-1]["sync_seconds_total"] > 0


def test_weights_are_bit_identical_to_a_run_without_us(runs):
    watched, plain = ([rank["weights"] for rank in runs[kind]] for kind in ("watched", "plain"))
    assert watched == plain
    assert watched[0] == watched[1]


def test_a_closed_run_gives_ddp_its_own_rate_back(runs):
    assert [rank["after"] for rank in runs["watched"]] == [40, 40]  # not 60
    assert [rank["after"] for rank in runs["plain"]] == [10, 10]
