"""The slow fields of a run: what is known is there, what is not is absent, and one bad source harms no other."""

import logging
import math
import os
import statistics
import struct
from types import SimpleNamespace

import pytest

import spikewatch
from sidecar.trainer.ringreader import RingReader
from spikewatch import layout, loaderknobs, procinfo
from spikewatch import run as runs
from spikewatch.meter import LOSSES, Meter
from spikewatch.refusal import Refused
from spikewatch.ring import RingWriter
from spikewatch.telemetry import MAX_FAILURES, Telemetry, deviation


@pytest.fixture
def ring():
    writer = RingWriter()
    reader = RingReader(os.dup(writer.fd))
    yield writer, reader
    reader.close()
    writer.close()


@pytest.fixture
def attach():
    runs = []

    def make(**more):
        runs.append(spikewatch.attach(**more))
        return runs[-1]

    yield make
    for run in runs:
        run.close()


def slow(run):
    """The slow fields as the sidecar would read them now."""
    reader = RingReader(os.dup(run._parts.ring.fd))
    try:
        run._parts.agent.telemetry.publish(0.0)
        found = reader.read()
        return {name: found[name] for name in layout.SLOW_FIELDS if name in found}
    finally:
        reader.close()


def test_values_of_all_sources_go_into_one_slot_and_the_rest_is_missing(ring):
    writer, reader = ring
    sources = [lambda now: {"loss_stddev": now}, lambda now: {"memory_reserved_bytes": 7.0}]
    Telemetry(Meter(), writer, sources).publish(3.0)
    assert reader.read() == {"loss_stddev": 3.0, "memory_reserved_bytes": 7.0}


def test_sources_are_asked_once_a_second_however_often_the_thread_comes_by(ring):
    asked = []
    telemetry = Telemetry(Meter(), ring[0], [lambda now: asked.append(now) or {}])
    for tick in range(40):
        telemetry.tick(100 + tick * 0.1)
    assert len(asked) == 4


def test_a_source_that_fails_is_counted_harms_no_other_and_is_given_up(ring, caplog):
    meter, calls = Meter(), []

    def broken(_):
        calls.append(1)
        raise RuntimeError("no such device")

    telemetry = Telemetry(meter, ring[0], [broken, lambda now: {"loss_stddev": now}])
    with caplog.at_level(logging.WARNING, "spikewatch"):
        for second in range(1, 20):
            telemetry.publish(float(second))
            assert ring[1].read() == {"loss_stddev": second}
    assert (len(calls), meter.errors) == (MAX_FAILURES, MAX_FAILURES)
    assert caplog.text.count("no such device") == 1


def test_a_source_that_recovers_in_between_is_kept(ring):
    answers = iter([0, 0, 0, 0, 1] * 4)
    telemetry = Telemetry(Meter(), ring[0], [lambda _: {"loss_stddev": 1 / next(answers)}])
    for _ in range(20):
        telemetry.publish(0.0)
    assert ring[1].read() == {"loss_stddev": 1.0}


def test_steps_are_counted_by_epoch(attach):
    run = attach(loader=[1, 2, 3])
    assert "epoch_steps" not in slow(run)
    for _ in run.loader:
        run.step()
    assert slow(run)["epoch_steps"] == 3
    for _ in run.loader:
        run.step()
        break
    assert slow(run)["epoch_steps"] == 1
    assert "epoch_overflows" not in slow(run)  # no scaler, so none are counted: not zero


def test_the_cold_start_ends_with_the_first_step(attach):
    run = attach()
    assert "cold_start_seconds" not in slow(run)
    run.step()
    first = slow(run)["cold_start_seconds"]
    run.step()
    assert slow(run)["cold_start_seconds"] == first
    assert 0 < first <= procinfo.since_boot() - procinfo.started_at()


def test_the_spread_of_the_loss_is_that_of_the_last_hundred_steps(attach):
    run = attach()
    losses = [1000.0, 1000.0] + [math.sin(n) for n in range(LOSSES)]
    for loss in losses[: LOSSES - 1]:
        run.step(loss)
    assert "loss_stddev" not in slow(run)
    for loss in losses[LOSSES - 1 :]:
        run.step(loss)
    assert slow(run)["loss_stddev"] == pytest.approx(statistics.stdev(losses[-LOSSES:]))


def test_a_loss_that_is_not_finite_leaves_the_spread_of_the_others(attach):
    run = attach()
    for n in range(LOSSES):
        run.step(math.inf if n % 10 == 0 else float(n))
    finite = [float(n) for n in range(LOSSES) if n % 10]
    assert slow(run)["loss_stddev"] == pytest.approx(statistics.stdev(finite))


def test_less_than_two_values_have_no_spread():
    assert layout.is_missing(deviation([1.0]))
    assert deviation([1.0, 1.0]) == 0


def test_offloaded_bytes_are_absent_until_an_engine_tells_and_then_add_up(attach):
    run = attach()
    assert "offload_bytes_total" not in slow(run)
    run.offloaded(3.0)
    run.offloaded(4.0)
    assert slow(run)["offload_bytes_total"] == 7


@pytest.mark.torch
def test_overflows_are_counted_by_step_in_a_row_and_by_epoch(attach):
    import torch

    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], 0.0)
    scaler = torch.amp.GradScaler("cpu")
    run = attach(optimizer=optimizer, scaler=scaler, loader=[1.0, math.inf, math.inf, 1.0, math.inf])
    seen = []
    for _ in range(2):
        for factor in run.loader:
            optimizer.zero_grad()
            scaler.scale((weight * factor).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            run.step()
            meter = run._parts.meter
            seen.append((meter.overflows, meter.consecutive_overflows, slow(run)["epoch_overflows"]))
    assert seen == [
        (0, 0, 0), (1, 1, 1), (2, 2, 2), (2, 0, 2), (3, 1, 3),
        (3, 0, 0), (4, 1, 1), (5, 2, 2), (5, 0, 2), (6, 1, 3),
    ]  # fmt: skip


@pytest.mark.torch
def test_how_a_run_trains_is_told_in_words_and_can_be_told_better(attach):
    import torch

    model = torch.nn.Linear(2, 2)
    run = attach(model=model, scaler=torch.amp.GradScaler("cpu"), optimizer=torch.optim.SGD(model.parameters(), 0.1))
    about = run._parts.agent.telemetry.about
    assert about == {"parallelism": "none", "precision": "fp16-mixed", "offload": "none"}
    run.describe(parallelism="zero3", offload="nvme")
    told = run._parts.agent._hello()["about"]
    assert told == {"parallelism": "zero3", "precision": "fp16-mixed", "offload": "nvme"}
    assert attach(model=model.bfloat16())._parts.agent.telemetry.about["precision"] == "bf16"
    assert attach(model=[model, model])._parts.agent.telemetry.about == {}


def test_a_profile_without_device_time_says_nothing_and_a_broken_one_is_our_error(attach):
    class Profile:
        def events(self):
            return []

    run = attach()
    run.on_trace(Profile())
    assert "copy_compute_overlap_ratio" not in slow(run)
    run.on_trace(None)
    assert run._parts.meter.errors == 1


def test_a_chore_of_the_training_thread_that_fails_is_given_up_and_the_others_go_on(attach, monkeypatch):
    class Chore:
        due, looks = 0, 0

        def look(self, now):
            self.looks += 1
            self.due = now + 1
            if self.broken:
                raise RuntimeError("gone")

    run = attach()
    good, bad = Chore(), Chore()
    good.broken, bad.broken = False, True
    run._measuring.chores = (bad, good)
    monkeypatch.setattr(runs, "SHORT_STEP", -1)  # every step leaves a whole record
    for _ in range(5):
        run._parts.meter.due = 0
        run.step()
    assert (bad.looks, good.looks, run._parts.meter.errors) == (1, 5, 1)


@pytest.mark.torch
def test_where_cuda_graphs_were_seen_only_the_loader_can_still_be_changed(attach, indices):
    import torch
    from torch.utils.data import DataLoader

    model = torch.nn.Linear(1, 1)
    loader = DataLoader(indices(8), batch_size=2, num_workers=1)
    run = attach(model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1), loader=loader)
    knobs = run._parts.knobs
    before = {knob["name"] for knob in knobs.describe()}
    run._measuring._allocator = SimpleNamespace(graphs=True)  # no GPU here: what a snapshot of one would say
    after = {knob["name"] for knob in knobs.describe()}
    assert after == before & set(loaderknobs.NAMES)
    assert before - after
    for name in before - after:
        with pytest.raises(Refused, match="CUDA graphs replay what was captured"):
            knobs.check({name: 0.5})


def test_what_proc_does_not_tell_is_not_known(tmp_path):
    assert procinfo.started_at(str(tmp_path)) is None
    assert procinfo.resident_bytes(str(tmp_path)) is None
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "stat").write_text("1 (a) b) S " + " ".join(str(n) for n in range(4, 60)))
    (tmp_path / "self" / "statm").write_text("100 7 3 1 0 5 0")
    assert procinfo.started_at(str(tmp_path)) == 22 / os.sysconf("SC_CLK_TCK")
    assert procinfo.resident_bytes(str(tmp_path)) == 7 * os.sysconf("SC_PAGE_SIZE")


def test_the_slow_table_has_room_for_its_fields():
    assert len(set(layout.SLOW_FIELDS)) == len(layout.SLOW_FIELDS) <= layout.MAX_SLOW_FIELDS
    assert not set(layout.SLOW_FIELDS) & set(layout.FIELDS)
    end = layout.SLOW_NAMES_OFFSET + len(layout.field_table(layout.SLOW_FIELDS))
    assert layout.LIVE_OFFSET + layout.SLOT_SIZE <= layout.SLOW_OFFSET < end <= layout.SLOW_SLOT_OFFSET
    assert layout.SLOW_SLOT_OFFSET + layout.SLOW_SLOT_SIZE <= layout.HEADER_SIZE
    assert struct.calcsize("<II") == layout.SLOW_HEADER.size
    with pytest.raises(ValueError, match="slow fields do not fit a slot"):
        RingWriter(slow=tuple(f"f{n}" for n in range(layout.MAX_SLOW_FIELDS + 1)))
