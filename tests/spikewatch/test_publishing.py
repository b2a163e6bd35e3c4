"""How often a step leaves a record in the ring, and how large batches are said to be on the quick way there."""

import itertools
import os
import time

import pytest

import spikewatch
from sidecar.trainer.ringreader import RingReader
from spikewatch import layout
from spikewatch.livepass import LivePass
from spikewatch.run import PUBLISH_EVERY

PARTS = 7  # steps a record is spread over where they are short


@pytest.fixture
def clocked():
    """An attached run whose clock stands still until `pass_ns` moves it; says which record is the newest."""
    run = spikewatch.attach()
    time = [2 * PUBLISH_EVERY]
    run._parts.meter.now = lambda: time[0]

    def step(pass_ns):
        time[0] += pass_ns
        run.step()
        return run._parts.ring._words[layout.HEAD_OFFSET >> 3]

    step.run = run
    yield step
    run.close()


def test_every_step_of_usual_length_leaves_a_record(clocked):
    assert [clocked(PUBLISH_EVERY) for _ in range(1000)] == list(range(1, 1001))


def test_the_first_step_leaves_a_record_however_short_it_is(clocked):
    assert [clocked(1000) for _ in range(5)] == [1, 1, 1, 1, 1]


def test_short_steps_share_records(clocked):
    steps = 10_000
    records = [clocked(PUBLISH_EVERY // 10) for _ in range(steps)][-1]
    assert records == pytest.approx(steps / (10 + PARTS - 1), abs=2)


def test_no_short_step_pays_for_all_of_a_record_and_none_is_long_in_the_making(clocked, monkeypatch):
    run = clocked.run
    reader = RingReader(os.dup(run._parts.ring.fd))
    parts = []
    meter, ring = run._parts.meter, run._parts.ring
    for place, name in ((meter, "record"), *((ring, name) for name in ("packed", "checksum", "put", "publish"))):
        real = getattr(type(place), name)
        monkeypatch.setattr(
            type(place), name, lambda *given, _real=real, _name=name: (parts.append(_name), _real(*given))[1]
        )
    run._parts.agent.stop()  # it makes records, too
    before, most, late = clocked(1000), 0, 0
    for number in range(2, 2000):
        parts.clear()
        newest = clocked(PUBLISH_EVERY // 50)
        most = max(most, len(parts))
        if newest != before:
            before, late = newest, max(late, number - reader._newest()["steps_total"])
    reader.close()
    assert (most, late) == (1, 4)  # gathered in the third part, there after the seventh
    assert before > 30


def test_after_a_pause_the_next_step_leaves_a_record_at_once(clocked):
    for _ in range(300):
        before = clocked(1000)
    assert clocked(PUBLISH_EVERY) == before + 1


def test_a_record_that_fails_in_the_middle_is_begun_anew_and_counted(clocked, monkeypatch):
    clocked(1000)
    clocked(PUBLISH_EVERY // 10)
    ring = clocked.run._parts.ring
    with monkeypatch.context() as broken:
        broken.setattr(type(ring), "put", lambda *_: 1 / 0)
        for _ in range(10 + PARTS):
            clocked(PUBLISH_EVERY // 10)
    assert clocked.run._parts.meter.errors == 1
    assert max(clocked(PUBLISH_EVERY // 10) for _ in range(PARTS)) == 2


def test_steps_without_a_record_are_told_by_the_clients_thread():
    with spikewatch.attach() as run:
        reader = RingReader(os.dup(run._parts.ring.fd))
        for _ in range(600):
            run.step(1.0)
        until = time.monotonic() + 10
        while reader.read()["steps_total"] < 600 and time.monotonic() < until:
            time.sleep(0.01)
        assert reader.read()["steps_total"] == 600
        assert reader.lost == 0
        reader.close()


def test_runs_that_were_closed_hold_no_descriptor():
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with spikewatch.attach() as run:
            run.step()
    assert len(os.listdir("/proc/self/fd")) == before


class Rows:
    """25 rows of two tensors each."""

    def __len__(self):
        return 25

    def __getitem__(self, n):
        import torch

        return torch.zeros(n % 3 + 1), torch.zeros(())


def padded(rows):
    """Batches of different lengths, as those of sentences are."""
    import torch

    return torch.zeros(len(rows), max(len(row) for row, _ in rows)), torch.zeros(len(rows))


COLLATIONS = {
    "tuple": padded,
    "list": lambda rows: list(padded(rows)),
    "dict": lambda rows: dict(zip("xy", padded(rows), strict=True)),
    "tensor": lambda rows: padded(rows)[0],
    "nested": lambda rows: [padded(rows), "text"],
    "text in some": lambda rows: [*padded(rows), *(["text"] if len(rows[0][0]) == 1 else [])],
    "no tensors": lambda rows: ["text"] * len(rows),
    "empty": lambda rows: [],
    "broken": lambda rows: 1 / 0 if len(rows[0][0]) == 2 else padded(rows),
}


@pytest.mark.torch
@pytest.mark.parametrize(
    ("kind", "workers"), [(kind, 0) for kind in COLLATIONS] + [("tuple", 1), ("dict", 1), ("broken", 1)]
)
def test_a_request_made_the_quick_way_counts_as_one_made_the_careful_way(kind, workers, monkeypatch):
    from torch.utils.data import DataLoader

    def totals():
        loader = DataLoader(Rows(), 4, collate_fn=COLLATIONS[kind], num_workers=workers)
        with spikewatch.attach(loader=loader) as run:
            meter, ticks = run._parts.meter, itertools.count(1)
            run._parts.agent.stop()  # it reads the clock, too
            meter.now = lambda: next(ticks)
            run._parts.tuner.probe.draws = False
            for _ in range(2):
                batches = iter(run.loader)
                while True:
                    try:
                        next(batches)
                    except StopIteration:
                        break
                    except ZeroDivisionError:
                        continue
                    run.step(1.0)
            seen = (batches.position(), meter.batch_bytes, meter.wait_from)
            return dict(zip(layout.FIELDS, meter.record(next(ticks)), strict=True)), seen

    quick, quickly = totals()
    monkeypatch.setattr(LivePass, "__next__", LivePass._carefully)
    careful, carefully = totals()
    assert quickly == carefully
    left_out = {"last_step_timestamp", "prefetch_hits_total"}
    assert {k: v for k, v in quick.items() if k not in left_out} == pytest.approx(
        {k: v for k, v in careful.items() if k not in left_out}, nan_ok=True
    )
    assert quick["steps_total"] == (10 if kind == "broken" else 14)
    assert quick["data_wait_seconds_total"] > 0
    assert quick["errors_total"] == 0


@pytest.mark.torch
def test_the_usual_requests_are_made_the_quick_way_and_others_are_not(monkeypatch):
    from torch.utils.data import DataLoader

    calls = []
    real = LivePass._received
    monkeypatch.setattr(LivePass, "_received", lambda self, *given: (calls.append(self.given), real(self, *given))[1])
    loader = DataLoader(Rows(), 4, collate_fn=padded)
    with spikewatch.attach(loader=loader) as run:
        run._parts.tuner.probe.draws = False
        for _ in run.loader:
            run.step(1.0)
        assert calls == [0, 6], "the first batch of a pass, and one that is not full"
        calls.clear()
        with run.phase("eval"):
            assert len(list(run.loader)) == 7
        assert calls == list(range(7))
