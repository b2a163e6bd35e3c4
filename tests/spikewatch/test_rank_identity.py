"""Who a process says it is."""

import pytest

from spikewatch.identity import identify


def test_without_a_launcher_it_is_rank_zero_of_one():
    me = identify(None, {})
    assert (me.rank, me.local_rank, me.world, me.job, me.epoch) == (0, 0, 1, "default", "single")


def test_the_launchers_environment_tells():
    me = identify(
        None,
        {
            "RANK": "5",
            "LOCAL_RANK": "1",
            "WORLD_SIZE": "8",
            "SPIKEWATCH_JOB": "llm",
            "TORCHELASTIC_RUN_ID": "run9",
            "TORCHELASTIC_RESTART_COUNT": "3",
            "MASTER_ADDR": "ignored",
        },
    )
    assert (me.rank, me.local_rank, me.world, me.job, me.epoch) == (5, 1, 8, "llm", "run9:3")


def test_a_plain_rendezvous_is_named_by_its_address():
    assert identify("mine", {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}).epoch == "10.0.0.1:29500"


@pytest.mark.parametrize("rank", ["", "-1", "two", "1.5"])
def test_a_rank_that_is_no_number_is_zero(rank):
    assert identify(None, {"RANK": rank}).rank == 0


@pytest.mark.torch
def test_an_initialised_process_group_is_believed_over_the_environment(tmp_path):
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        me = identify(None, {"RANK": "7", "WORLD_SIZE": "9"})
        assert (me.rank, me.world, me.backend) == (0, 1, "gloo")
        assert me.framework.startswith("pytorch ")
    finally:
        dist.destroy_process_group()
