"""How often a step leaves a record in the ring, and how large batches are said to be on the quick way there."""

import itertools
import os
import time

import pytest

import spikewatch
from sidecar.trainer.ringreader import RingReader
from spikewatch import layout
from spikewatch.batches import BatchLengths, measure
from spikewatch.livepass import LivePass
from spikewatch.run import PUBLISH_BURST, PUBLISH_EVERY

BURST = PUBLISH_BURST // PUBLISH_EVERY


@pytest.fixture
def clocked():
    """An attached run whose clock stands still until `pass_ns` moves it."""
    run = spikewatch.attach()
    time = [2 * PUBLISH_BURST]
    run._parts.meter.now = lambda: time[0]

    def step(pass_ns):
        time[0] += pass_ns
        run.step()
        return run._parts.ring._words[layout.HEAD_OFFSET >> 3]

    yield step
    run.close()


def test_every_step_of_usual_length_leaves_a_record(clocked):
    assert [clocked(PUBLISH_EVERY) for _ in range(1000)] == list(range(1, 1001))


def test_the_first_steps_leave_a_record_however_short_they_are(clocked):
    assert [clocked(1000) for _ in range(BURST)] == list(range(1, BURST + 1))


def test_short_steps_share_records_in_the_long_run(clocked):
    steps = 10_000
    records = [clocked(PUBLISH_EVERY // 10) for _ in range(steps)][-1]
    assert records == pytest.approx(BURST + steps / 10, abs=3)


def test_after_a_pause_the_next_step_leaves_a_record_at_once(clocked):
    for _ in range(3 * BURST):
        before = clocked(1000)
    assert clocked(PUBLISH_EVERY) == before + 1


def test_steps_without_a_record_are_told_by_the_clients_thread():
    with spikewatch.attach() as run:
        reader = RingReader(os.dup(run._parts.ring.fd))
        for _ in range(3 * BURST):
            run.step(1.0)
        until = time.monotonic() + 10
        while reader.read()["steps_total"] < 3 * BURST and time.monotonic() < until:
            time.sleep(0.01)
        assert reader.read()["steps_total"] == 3 * BURST
        assert reader.lost == 0
        reader.close()


def test_runs_that_were_closed_hold_no_descriptor():
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with spikewatch.attach() as run:
            run.step()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.torch
@pytest.mark.parametrize("workers", [0, 1])
def test_a_request_made_the_quick_way_counts_as_one_made_the_careful_way(workers, monkeypatch):
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    def totals():
        loader = DataLoader(TensorDataset(torch.zeros(25, 3), torch.zeros(25)), batch_size=4, num_workers=workers)
        with spikewatch.attach(loader=loader) as run:
            meter, ticks = run._parts.meter, itertools.count(1)
            run._parts.agent.stop()  # it reads the clock, too
            meter.now = lambda: next(ticks)
            run._parts.tuner.probe.draws = False
            for _ in range(2):
                for _ in run.loader:
                    run.step(1.0)
            return dict(zip(layout.FIELDS, meter.record(next(ticks)), strict=True))

    quick = totals()
    monkeypatch.setattr(LivePass, "__next__", LivePass._carefully)
    careful = totals()
    for name in ("written_at", "step_seconds_total", "data_wait_seconds_total", "samples_total", "input_bytes_total"):
        assert quick[name] == careful[name] > 0
    assert [quick[name] for name in ("steps_total", "errors_total", "epoch")] == [14, 0, 1]
    assert quick["prefetch_requests_total"] == pytest.approx(careful["prefetch_requests_total"], nan_ok=True)


@pytest.mark.torch
@pytest.mark.parametrize("kind", [list, tuple, dict])
@pytest.mark.parametrize("number", [0, 99, 100])
def test_the_quick_way_to_a_batchs_bytes_comes_to_what_the_careful_one_does(kind, number):
    import torch
    from torch.utils.data import DataLoader

    class Odd(torch.Tensor):
        pass

    lengths = BatchLengths(DataLoader(range(1000), batch_size=10))
    tensors = [torch.zeros(10, 3), torch.zeros(10), torch.zeros(10).as_subclass(Odd), torch.zeros(4, dtype=torch.int8)]
    for batch in (tensors[:2], tensors, tensors[3:], [*tensors, "text", 5], [tensors], ["text"], [], tensors * 100):
        made = dict(enumerate(batch)) if kind is dict else kind(batch)
        assert lengths.of(number, made)[1] == measure(made)[1]
