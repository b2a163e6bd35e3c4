"""What goes over the wire for an order, with trainers made by hand."""

import asyncio
import logging

from sidecar.hooks import Actuator
from sidecar.model import ChangeState, Order

ORDER = Order("c1", {"num_workers": 4}, {"num_workers": 2}, 30_000)


def test_the_channel_is_an_actuator(channel):
    async def story():
        async with channel() as sidecar:
            assert isinstance(sidecar, Actuator)
            assert sidecar.name == "trainer"

    asyncio.run(story())


def test_every_rank_gets_the_order_the_renewals_and_the_confirmation(channel, trainers, soon):
    async def story():
        async with channel() as sidecar:
            ranks = [await trainers(rank=0), await trainers(rank=1)]
            sidecar.apply(ORDER)
            for rank in ranks:
                assert await rank.hear("set") == {
                    "type": "set",
                    "change_id": "c1",
                    "values": {"num_workers": 4},
                    "expect": {"num_workers": 2},
                    "lease_ms": 30_000,
                    "ranks": 2,
                }
                rank.report("c1", "applied", step=7, found={"num_workers": 2})
            await soon(lambda: sidecar.outcome("c1").state is ChangeState.APPLIED)
            sidecar.renew("c1", 20_000)
            sidecar.keep("c1")
            for rank in ranks:
                assert (await rank.hear())["lease_ms"] == 20_000
                assert (await rank.hear())["type"] == "keep"
                assert rank.silent()

    asyncio.run(story())


def test_a_process_that_takes_a_ranks_place_ends_the_change_of_the_one_before_at_once(channel, trainers, soon):
    async def story():
        async with channel() as sidecar:
            old = await trainers(rank=0, run_id="old")
            sidecar.apply(ORDER)
            await old.hear("set")
            old.report("c1", "applied", step=7)
            await soon(lambda: sidecar.outcome("c1").state is ChangeState.APPLIED)
            old.close()
            await soon(lambda: sidecar.identity() is None)
            assert sidecar.outcome("c1").state is ChangeState.APPLIED  # it may come back
            new = await trainers(rank=0, run_id="new")
            assert (sidecar.outcome("c1").state, sidecar.outcome("c1").reason) == (ChangeState.UNKNOWN, "trainer_gone")
            assert new.silent()

    asyncio.run(story())


def test_a_new_connection_of_the_same_process_replaces_the_old_one(channel, trainers, soon):
    async def story():
        async with channel() as sidecar:
            first = await trainers(rank=0, run_id="same")
            await trainers(rank=0, run_id="same")
            assert (await first.hear())["type"] == "hung up"
            assert sidecar.identity().run_ids == ("same",)

    asyncio.run(story())


def test_a_refusal_is_logged_with_what_the_trainer_says_about_it(channel, trainers, soon, caplog):
    async def story():
        async with channel() as sidecar:
            rank = await trainers(rank=0)
            sidecar.apply(ORDER)
            await rank.hear("set")
            rank.report("c1", "refused", reason="failed", detail="OSError: no more processes")
            await soon(lambda: sidecar.outcome("c1").state is ChangeState.REFUSED)

    with caplog.at_level(logging.WARNING):
        asyncio.run(story())
    assert "rank 0 refused c1: failed OSError: no more processes" in caplog.text


def test_knobs_are_what_all_ranks_have_within_the_bounds_of_all(channel, trainers):
    def knob(name, value, low, high):
        bounds = {"minimum": low, "maximum": high}
        return {"name": name, "type": "int", "unit": "", "scope": "local", "value": value, **bounds}

    async def story():
        async with channel() as sidecar:
            one = [knob("a", 2, 0, 16), knob("b", 1, None, None), knob("only here", 1, 0, 1)]
            two = [knob("a", 2, 1, 8), knob("b", 1, 0, None)]
            await trainers(rank=0, described=one)
            await trainers(rank=1, described=two, unavailable={"c": "no loader"})
            knobs = sidecar.knobs()
            assert (knobs["a"].minimum, knobs["a"].maximum) == (1, 8)
            assert (knobs["b"].minimum, knobs["b"].maximum) == (0, None)
            assert set(knobs) == {"a", "b"}
            assert sidecar.unavailable() == {"c": "no loader", "only here": "not every rank has it"}

    asyncio.run(story())


SHARED = {"name": "lr_factor", "type": "float", "unit": "", "scope": "all_rank", "value": 1.0}
SHARED |= {"minimum": 0.1, "maximum": 2.0}
FOR_ALL = Order("c2", {"lr_factor": 0.5}, {"lr_factor": 1.0}, 30_000)
TOLD = {"found": {"lr_factor": 1.0}, "values": {"lr_factor": 0.5}, "scope": "all_rank"}


def test_what_all_ranks_share_is_ordered_at_rank_0_alone_whose_word_counts(channel, trainers, soon):
    async def story():
        async with channel() as sidecar:
            leader, other = [await trainers(rank=rank, described=[SHARED]) for rank in (0, 1)]
            sidecar.apply(FOR_ALL)
            assert (await leader.hear("set"))["values"] == {"lr_factor": 0.5}
            other.report("c2", "applied", step=9, **TOLD)
            other.say(type="get")  # not for a sidecar: it hangs up, so all before that has been read
            assert (await other.hear("nack"))["reason"] == "bad_message"
            assert sidecar.outcome("c2").state is ChangeState.PENDING
            leader.report("c2", "applied", step=9, **TOLD)
            await soon(lambda: sidecar.outcome("c2").state is ChangeState.APPLIED)
            sidecar.revert("c2")
            assert (await leader.hear())["type"] == "revert"

    asyncio.run(story())


def test_a_sidecar_without_rank_0_refuses_what_all_ranks_share(channel, trainers):
    async def story():
        async with channel() as sidecar:
            rank = await trainers(rank=1, described=[SHARED])
            sidecar.apply(FOR_ALL)
            assert (sidecar.outcome("c2").state, sidecar.outcome("c2").reason) == (ChangeState.REFUSED, "not_leader")
            assert rank.silent()

    asyncio.run(story())


def test_a_sidecar_never_gives_orders_about_a_change_that_another_pods_sidecar_leads(channel, trainers, soon, clock):
    async def story():
        async with channel(settle_ms=1_000) as sidecar:
            rank = await trainers(rank=1, described=[SHARED])
            rank.report("theirs", "pending", **TOLD)
            rank.report("ours", "kept", values={"num_workers": 4})
            await soon(lambda: sidecar.outcome("ours").state is ChangeState.KEPT)
            clock.advance(60_000)
            sidecar.tick(1)
            assert sidecar.outcome("theirs").state is ChangeState.UNKNOWN
            assert rank.silent()

    asyncio.run(story())


def test_a_job_of_one_rank_shares_nothing(channel, trainers):
    async def story():
        async with channel() as sidecar:
            rank = await trainers(rank=0, world=1, described=[SHARED])
            sidecar.apply(FOR_ALL)
            assert (await rank.hear("set"))["change_id"] == "c2"

    asyncio.run(story())
