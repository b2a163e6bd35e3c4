"""What attached trainers give to the store, tick by tick."""

import asyncio

import pytest

from sidecar.model import Availability
from sidecar.trainer import catalogue, workercatalogue
from spikewatch import layout

UNSAID = dict.fromkeys(("parallelism", "precision", "offload"), "unknown")


def test_every_rank_gives_its_newest_numbers_under_its_rank(channel, trainers, sink):
    async def story():
        async with channel() as sidecar:
            one, two = await trainers(rank=0), await trainers(rank=1)
            for n in range(5):
                one.step(steps_total=n, loss=0.5)
            two.step(steps_total=9, samples_total=72)
            sidecar.tick(1_000)
            assert sink.value("steps_total", rank="0") == 4
            assert sink.value("steps_total", rank="1") == 9
            assert sink.value("loss", rank="0") == 0.5
            assert sink.value("loss", rank="1") is None
            assert sink.value("samples_total", rank="0") is None
            sidecar.tick(2_000)
            assert sink.value("steps_total", rank="1") == 9

    asyncio.run(story())


def test_the_phase_is_one_and_the_other_phases_zero(channel, trainers, sink):
    async def story():
        async with channel() as sidecar:
            trainer = await trainers()
            trainer.step(phase=layout.EVAL)
            sidecar.tick(1_000)
            seen = {name: sink.value("phase", rank="0", phase=name) for name in layout.PHASES}
            assert seen == {"startup": 0, "compile": 0, "train": 0, "eval": 1, "checkpoint": 0}
            trainer.step(phase=99)
            sidecar.tick(2_000)
            assert sink.value("phase", rank="0", phase="eval") is None

    asyncio.run(story())


def test_a_rank_that_leaves_ends_all_its_series_in_the_next_tick_and_no_others(channel, trainers, sink, soon):
    async def story():
        async with channel() as sidecar:
            one, two = await trainers(rank=0), await trainers(rank=1)
            one.step(steps_total=1)
            two.step(steps_total=2)
            sidecar.tick(1_000)
            one.close()
            await soon(lambda: sidecar.identity().ranks == (1,))
            sidecar.tick(2_000)
            assert {dict(labels)["rank"] for _, labels in sink.now} == {"1"}
            two.close()
            await soon(lambda: sidecar.identity() is None)
            sidecar.tick(3_000)
            assert sink.now == {}

    asyncio.run(story())


def test_a_trainer_that_restarts_gives_its_counters_anew_and_another_run_info(channel, trainers, sink, soon):
    async def story():
        async with channel() as sidecar:
            first = await trainers(run_id="first")
            first.step(steps_total=500)
            sidecar.tick(1_000)
            who = {"rank": "0", "framework": "pytorch", "backend": "gloo", **UNSAID}
            assert sink.value("run_info", run_id="first", **who) == 1
            first.close()
            second = await trainers(run_id="second")
            second.step(steps_total=3)
            await soon(lambda: sidecar.identity().run_ids == ("second",))
            sidecar.tick(2_000)
            assert sink.value("steps_total", rank="0") == 3
            assert sink.value("run_info", run_id="first", **who) is None
            assert sink.value("run_info", run_id="second", **who) == 1

    asyncio.run(story())


def test_only_the_job_that_attached_last_is_exported_and_changed(channel, trainers, sink):
    async def story():
        async with channel() as sidecar:
            old = await trainers(rank=0, run_id="old", epoch="e1")
            await trainers(rank=1, run_id="old too", epoch="e1")
            new = await trainers(rank=0, run_id="new", epoch="e2")
            old.step(steps_total=1)
            new.step(steps_total=2)
            sidecar.tick(1_000)
            assert sink.value("steps_total", rank="0") == 2
            identity = sidecar.identity()
            assert (identity.epoch, identity.run_ids, identity.ranks) == ("e2", ("new",), (0,))
            assert sidecar.status().reason == "several_jobs"

    asyncio.run(story())


def test_its_status_says_whether_a_trainer_can_be_seen(channel, trainers):
    async def story():
        async with channel() as sidecar:
            assert (sidecar.status().state, sidecar.status().reason) == (Availability.UNAVAILABLE, "no_trainer")
            await trainers()
            assert sidecar.status().state is Availability.AVAILABLE
        assert sidecar.status().reason == "not_listening"

    asyncio.run(story())


def test_every_metric_given_is_in_the_catalogue_and_the_other_way_round(channel, trainers, sink, soon):
    async def story():
        async with channel() as sidecar:
            broken = await trainers(rank=1, about={"off": "TypeError"})
            broken.close()
            await soon(lambda: sidecar.identity() is None)
            origin = {"origin_module": "head", "origin_operation": "exp", "origin_direction": "forward"}
            trainer = await trainers(about={"gpu": "GPU-1", **origin})
            trainer.step(**{name: 1.0 for name in layout.FIELDS})
            trainer.slow(**{name: 1.0 for name in layout.SLOW_FIELDS})
            sidecar.tick(1_000)
            given = {name: {label for label, _ in labels} for name, labels in sink.now}
            of_trainers = [info for info in catalogue.METRICS if info not in workercatalogue.METRICS]
            assert given == {info.name: set(info.labels) for info in of_trainers}

    asyncio.run(story())


@pytest.mark.parametrize("info", catalogue.METRICS, ids=lambda info: info.name)
def test_a_catalogue_entry_keeps_the_naming_rules(info):
    shared = ("spikewatch_offload_bytes_total",)  # the engine's, not the client's
    of_worker = info in workercatalogue.METRICS
    assert info.name.startswith("spikewatch_worker_" if of_worker else "spikewatch_trainer_") or info.name in shared
    assert info.name.endswith("_total") == (info.kind == "counter")
    if info.unit:
        assert f"_{info.unit}" in info.name
    assert info.help.endswith(".")
    assert ("worker" if of_worker else "rank") in info.labels
    assert info.source


def test_the_catalogue_knows_every_field_of_the_ring():
    internal = {"written_at", "phase"}
    known = {field for field, _ in (*catalogue.FIELDS, *catalogue.BUFFER_FIELDS)}
    assert known == {*layout.FIELDS, *layout.SLOW_FIELDS} - internal


def test_how_a_run_trains_is_in_its_run_info_and_follows_what_it_says_later(channel, trainers, sink, soon):
    async def story():
        async with channel() as sidecar:
            trainer = await trainers(about={"parallelism": "ddp", "precision": "fp16 mixed"})
            trainer.step(steps_total=1)
            sidecar.tick(1_000)
            who = {"rank": "0", "run_id": "run-of-0", "framework": "pytorch", "backend": "gloo"}
            said = {"parallelism": "ddp", "precision": "fp16 mixed", "offload": "unknown"}
            assert sink.value("run_info", **who, **said) == 1
            said |= {"precision": "bf16 mixed"}
            about = said | {"framework": "lightning 2.6.6"}  # an adapter knows it after the hello
            trainer.say(type="state", step=1, knobs=[], unavailable={}, changes=[], about=about)
            who["framework"] = "lightning 2.6.6"
            tick = iter(range(2_000, 900_000, 1_000))

            def seen():
                sidecar.tick(next(tick))
                return sink.value("run_info", **who, **said) == 1

            await soon(seen)
            assert sum(name.endswith("run_info") for name, _ in sink.now) == 1

    asyncio.run(story())


def test_why_a_client_turned_itself_off_stays_visible_until_its_rank_attaches_anew(channel, trainers, sink, soon):
    async def story():
        async with channel() as sidecar:
            trainer = await trainers(rank=2)
            trainer.step(steps_total=5)
            trainer.say(type="state", step=5, knobs=[], unavailable={}, changes=[], about={"off": "TypeError"})
            trainer.close()
            await soon(lambda: sidecar.identity() is None)
            sidecar.tick(1_000)
            assert sink.value("client_off_info", rank="2", reason="TypeError") == 1
            assert sink.value("steps_total", rank="2") is None
            await trainers(rank=2, run_id="again")
            sidecar.tick(2_000)
            assert sink.value("client_off_info", rank="2", reason="TypeError") is None

    asyncio.run(story())


def test_a_series_of_the_slow_slot_is_absent_as_long_as_nothing_is_known(channel, trainers, sink):
    async def story():
        async with channel() as sidecar:
            trainer = await trainers()
            trainer.step(steps_total=1)
            sidecar.tick(1_000)
            assert sink.value("memory_reserved_bytes", rank="0") is None
            trainer.slow(memory_reserved_bytes=7.0, buffers_aligned_total=3.0)
            sidecar.tick(2_000)
            assert sink.value("memory_reserved_bytes", rank="0") == 7
            assert sink.value("gradient_buckets_total", rank="0", aligned="true") == 3
            assert sink.value("memory_fragmentation_ratio", rank="0") is None
            trainer.slow()
            sidecar.tick(3_000)
            assert sink.value("memory_reserved_bytes", rank="0") is None

    asyncio.run(story())
