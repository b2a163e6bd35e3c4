"""What is counted in the training thread, and what another thread may see of it meanwhile."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spikewatch import layout
from spikewatch.meter import Meter

SECOND = 1_000_000_000


class Time:
    """A clock in nanoseconds that tells `watcher` just before and just after every reading."""

    def __init__(self, watcher=lambda: None):
        self.ns, self.watcher = 5 * SECOND, watcher

    def __call__(self):
        self.watcher()
        self.ns += 1
        now = self.ns
        self.ns += 3  # the thread may be put aside right here, before it does anything with `now`
        self.watcher()
        return now


def fields(meter, now):
    return dict(zip(layout.FIELDS, meter.record(now), strict=True))


@pytest.fixture
def time():
    return Time()


@pytest.fixture
def meter(time):
    return Meter(time)


def test_a_wait_in_progress_shows_in_wait_and_step_time_as_it_grows(meter, time):
    meter.wait_begins()
    seen = []
    for _ in range(40):
        time.ns += SECOND
        now = fields(meter, time.ns)
        seen.append((round(now["data_wait_seconds_total"]), round(now["step_seconds_total"])))
    assert seen == [(n, n) for n in range(1, 41)]


def test_a_slow_step_grows_each_second_without_any_wait(meter, time):
    began = meter.wait_begins()
    meter.wait_ends(began)
    time.ns += 40 * SECOND
    now = fields(meter, time.ns)
    assert round(now["step_seconds_total"]) == 40
    assert now["data_wait_seconds_total"] < 1e-6


def test_evaluation_and_checkpoints_are_no_step_time(meter, time):
    meter.stepped()
    meter.enter(layout.EVAL)
    began = meter.wait_begins()
    time.ns += 100 * SECOND
    meter.wait_ends(began)
    meter.enter(layout.TRAIN)
    time.ns += 2 * SECOND
    meter.stepped()
    now = fields(meter, time.ns)
    assert round(now["step_seconds_total"]) == 2
    assert now["data_wait_seconds_total"] == 0


def test_the_first_batch_asked_for_begins_the_training_phase(meter):
    assert fields(meter, 0)["phase"] == layout.STARTUP
    meter.wait_begins()
    assert fields(meter, 0)["phase"] == layout.TRAIN


def test_what_was_never_seen_is_missing_and_not_zero(meter):
    now = fields(meter, 0)
    missing = {name for name, value in now.items() if layout.is_missing(value)}
    assert missing == {
        "prefetch_requests_total",
        "prefetch_hits_total",
        "samples_total",
        "input_bytes_total",
        "loss",
        "grad_norm",
        "loss_scale",
        "overflows_total",
        "consecutive_overflows",
        "nonfinite_losses_total",
        "batch_size",
        "num_workers",
        "prefetch_factor",
        "last_step_timestamp",
        "epoch",
    }


def test_a_loss_that_is_nan_is_told_from_a_missing_one(meter):
    meter.loss = math.nan
    assert not layout.is_missing(fields(meter, 0)["loss"])


def test_samples_count_when_their_step_ends(meter):
    meter.received(8, 32)
    meter.received(8, 32)
    assert layout.is_missing(fields(meter, 0)["samples_total"])
    meter.stepped()
    assert fields(meter, 0)["samples_total"] == 16
    assert fields(meter, 0)["input_bytes_total"] == 64


def test_a_total_with_a_hole_is_missing_rather_than_wrong(meter):
    meter.received(8, 32)
    meter.stepped()
    meter.received(None, None)
    meter.stepped()
    now = fields(meter, 0)
    assert layout.is_missing(now["samples_total"])
    assert layout.is_missing(now["input_bytes_total"])


def test_samples_given_to_step_replace_what_the_batches_told(meter):
    for _ in range(3):
        meter.received(None, 10)
        meter.stepped(5)
    assert fields(meter, 0)["samples_total"] == 15


def test_the_wall_time_of_the_last_step_is_looked_up_once_and_is_that_of_its_end(time):
    walls = iter([1000.0, 2000.0])
    meter = Meter(time, lambda: next(walls))
    assert layout.is_missing(fields(meter, time.ns)["last_step_timestamp"])
    for wall in (1000.0, 2000.0):
        meter.stepped()
        time.ns += 3 * SECOND
        seen = {fields(meter, time.ns)["last_step_timestamp"] for _ in range(4)}
        assert list(seen) == [pytest.approx(wall - 3)]


def test_samples_that_steps_tell_stay_known_while_a_batch_that_tells_none_is_worked_on(meter, time):
    meter.received(None, None)
    assert math.isnan(fields(meter, time())["samples_total"])
    for step in range(1, 4):
        meter.stepped(8)
        assert fields(meter, time())["samples_total"] == 8 * step
        meter.received(None, None)
        assert fields(meter, time())["samples_total"] == 8 * step


def test_a_step_that_tells_nothing_after_others_did_makes_the_total_unknown_until_one_tells_again(meter, time):
    meter.stepped(8)
    meter.received(None, None)
    meter.stepped()
    assert math.isnan(fields(meter, time())["samples_total"])
    meter.stepped(8)
    assert fields(meter, time())["samples_total"] == 16


def test_samples_of_a_step_that_is_under_way_are_not_counted_yet_but_are_not_lost(meter):
    meter.received(8, 32)
    meter.stepped()
    meter.received(8, 32)
    assert fields(meter, 0)["samples_total"] == 8
    meter.stepped(samples=3)  # which replaces them
    meter.received(8, 32)
    meter.stepped()
    assert fields(meter, 0)["samples_total"] == 8 + 3 + 8


@settings(max_examples=60)
@given(st.lists(st.sampled_from(["wait", "step", "eval", "train", "pass"]), max_size=40), st.data())
def test_what_another_thread_sees_at_any_moment_never_exceeds_what_is_recorded_later(actions, data):
    """The watcher reads at every moment the writer looks at its clock; all it saw must be at most the next record."""
    seen = []

    def watch():
        now = time.ns  # read first, as the client's thread does
        record = fields(meter, now)
        seen.append((record["step_seconds_total"], record["data_wait_seconds_total"]))

    time = Time()
    meter = Meter(time)
    time.watcher = watch
    for action in actions:
        if action == "wait":
            began = meter.wait_begins()
            time.ns += data.draw(st.integers(0, 5 * SECOND))
            watch()
            meter.wait_ends(began)
        elif action == "step":
            meter.stepped(1)
        elif action == "pass":
            time.ns += data.draw(st.integers(0, 5 * SECOND))
            watch()
        else:
            meter.enter(layout.EVAL if action == "eval" else layout.TRAIN)
        final = fields(meter, time.ns)
        for step, wait in seen:
            assert step <= final["step_seconds_total"]
            assert wait <= final["data_wait_seconds_total"]
        assert final["data_wait_seconds_total"] <= final["step_seconds_total"] + 1e-6
