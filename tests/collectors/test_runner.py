"""The runner, with real threads and a clock that moves when told."""

import logging
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.clock import FakeClock
from sidecar.collectors.runner import METRICS, Runner
from sidecar.errors import CollectError
from sidecar.hooks import CollectorSettings, Section
from sidecar.model import Availability, Sample, Status

OK = Status(Availability.AVAILABLE)


class Scripted:
    """A collector that answers what it is told to, and notes when it was asked."""

    settings = CollectorSettings
    metrics = ()

    def __init__(self, name="gauge", answer=lambda now: [Sample("m", (), float(now))], status=OK):
        self.name = name
        self.answer, self.status = answer, status
        self.asked, self.probed, self.closed = [], 0, threading.Event()

    def probe(self):
        self.probed += 1
        return self.status

    def sample(self, now_ms):
        self.asked.append(now_ms)
        return self.answer(now_ms)

    def close(self):
        self.closed.set()


class Bench:
    """A runner over scripted collectors and a memory sink."""

    def __init__(self, sink, *collectors, on_done=None, cpu_budget=None, cpu=time.thread_time, **config):
        self.sink, self.clock, self.collectors = sink, FakeClock(10_000), collectors
        given = {"interval": "1s", "deadline": "3s", **config}
        self.runner = Runner(
            [(c, CollectorSettings(**{**given, "worth": getattr(c, "worth", 50)})) for c in collectors],
            sink,
            self.clock,
            on_done=on_done,
            cpu_budget=cpu_budget,
            cpu=cpu,
        )

    def tick(self, times=1, *, settle=True):
        for _ in range(times):
            self.runner.tick(self.clock.now_ms())
            if settle:
                assert self.runner.settle(10)
            self.clock.advance(1000)

    def state(self, name="gauge"):
        """(up, state, reason) as exported by the newest tick."""
        (status,) = [dict(lab) for lab in self.sink.now("spikewatch_collector_status") if ("collector", name) in lab]
        return self.sink.last("spikewatch_collector_up", collector=name), status["state"], status.get("reason", "")


@pytest.fixture
def bench(sink_of):
    made = []

    def make(*collectors, **config):
        made.append(Bench(sink_of(), *collectors, **config))
        return made[-1]

    yield make
    for one in made:
        for collector in one.collectors:
            if isinstance(collector, Hanging):
                collector.release.set()
        assert one.runner.close(10) == []


class Hanging(Scripted):
    """Hangs in `sample` until released."""

    def __init__(self, name="gauge"):
        super().__init__(name)
        self.release = threading.Event()
        self.entered = threading.Event()

    def sample(self, now_ms):
        self.asked.append(now_ms)
        self.entered.set()
        assert self.release.wait(30)
        return [Sample("m", (), 1.0)]


def fail(reason):
    def answer(now):
        raise CollectError("gauge", reason)

    return answer


def test_a_sample_is_stored_with_the_time_of_the_tick_that_asked(bench):
    b = bench(Scripted())
    b.tick()
    assert b.sink.at(10_000, "m") == 10_000


def test_a_collector_that_delivers_is_up(bench):
    b = bench(Scripted())
    b.tick(2)
    assert b.state() == (1, "available", "")
    assert b.sink.last("spikewatch_collector_errors_total", collector="gauge") == 0
    assert b.sink.last("spikewatch_collector_duration_seconds", collector="gauge") >= 0


def test_before_the_first_outcome_nothing_is_said_about_up(bench):
    hanging = Hanging()
    b = bench(hanging)
    b.tick(settle=False)
    assert b.sink.now("spikewatch_collector_up") == {}
    assert b.sink.last("spikewatch_collector_errors_total", collector="gauge") == 0


def test_what_the_runner_exports_is_in_its_catalogue(bench):
    b = bench(Scripted(), cpu_budget=0.01)
    b.tick(2)
    exported = {m: {name for name, _ in lab} for m, producer, lab in b.sink.handles if producer == "runner"}
    assert exported.keys() == {info.name for info in METRICS}
    assert all(exported[info.name] <= set(info.labels) for info in METRICS)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (fail("no_permission"), "no_permission"),
        (lambda now: 1 / 0, "exception"),
        (lambda now: exit(1), "exception"),
        (lambda now: (Sample("m", (), i) for i in range(10**9)), "too_many_samples"),
        (fail("Reset Required! (16)"), "reset_required_16"),
    ],
)
def test_a_collector_that_fails_is_down_with_a_reason_and_counted(bench, answer, reason):
    b = bench(Scripted(answer=answer))
    b.tick(2)
    assert b.state() == (0, "unavailable", reason)
    assert b.sink.last("spikewatch_collector_errors_total", collector="gauge") == 1


def test_the_series_of_a_collector_that_fails_end_at_once(bench):
    collector = Scripted()
    b = bench(collector)
    b.tick()
    collector.answer = fail("lost")
    b.tick()
    assert b.sink.at(11_000, "m") == "stale"


def test_a_failing_collector_is_asked_less_and_less_often_but_at_least_every_minute(bench):
    collector = Scripted(answer=fail("lost"))
    b = bench(collector)
    b.tick(300)
    pauses = [(later - earlier) // 1000 for earlier, later in zip(collector.asked, collector.asked[1:], strict=False)]
    assert pauses == [2, 4, 8, 16, 32, 60, 60, 60]


def test_a_collector_that_recovers_is_up_again_and_back_at_its_interval(bench):
    collector = Scripted(answer=fail("lost"))
    b = bench(collector)
    b.tick(3)
    collector.answer = lambda now: [Sample("m", (), 1.0)]
    b.tick(8)
    assert b.state() == (1, "available", "")
    assert collector.asked[-3:] == [18_000, 19_000, 20_000]


def test_a_hanging_collector_holds_up_nobody(bench):
    hanging, fine, delivered = Hanging("stuck"), Scripted("fine"), threading.Semaphore(0)
    b = bench(hanging, fine, on_done=delivered.release)
    for _ in range(6):
        b.tick(settle=False)
        assert delivered.acquire(timeout=10)
    assert hanging.entered.wait(10)
    assert fine.asked == [10_000, 11_000, 12_000, 13_000, 14_000, 15_000]
    assert b.state("fine") == (1, "available", "")


def test_a_collector_past_its_deadline_is_down_and_is_not_called_again_while_it_hangs(bench):
    hanging = Hanging()
    b = bench(hanging)
    b.tick(4, settle=False)
    assert hanging.entered.wait(10)
    assert b.sink.now("spikewatch_collector_up") == {}, "3 s are allowed"
    b.tick(100, settle=False)
    assert b.state() == (0, "unavailable", "deadline")
    assert hanging.asked == [10_000]
    assert b.sink.last("spikewatch_collector_errors_total", collector="gauge") == 1


def test_a_result_that_comes_after_the_deadline_does_not_count(bench):
    hanging = Hanging()
    b = bench(hanging)
    b.tick(6, settle=False)
    hanging.release.set()
    assert b.runner.settle(10)
    b.tick()
    assert b.sink.last("m") is None
    assert b.state() == (0, "unavailable", "deadline")


def test_a_collector_that_hung_is_tried_again_after_a_pause_and_can_come_back(bench):
    hanging = Hanging()
    b = bench(hanging)
    b.tick(60, settle=False)
    hanging.release.set()
    assert b.runner.settle(10)
    b.tick(5)
    assert hanging.asked == [10_000, 72_000, 73_000, 74_000], "the pause counts from its return at 70 s"
    assert b.state() == (1, "available", "")


@pytest.mark.parametrize("state", [Availability.UNAVAILABLE, Availability.DENIED])
def test_a_collector_that_cannot_see_anything_is_down_without_being_sampled_or_counted_as_an_error(bench, state):
    collector = Scripted(status=Status(state, "no_library"))
    b = bench(collector)
    b.tick(3)
    assert b.state() == (0, state.value, "no_library")
    assert collector.asked == []
    assert b.sink.last("spikewatch_collector_errors_total", collector="gauge") == 0


def test_a_degraded_collector_is_up_and_says_why(bench):
    b = bench(Scripted(status=Status(Availability.DEGRADED, "fd_denied")))
    b.tick(2)
    assert b.state() == (1, "degraded", "fd_denied")
    assert b.sink.last("m") is not None


def test_what_a_collector_can_see_is_asked_again_every_minute(bench):
    collector = Scripted(status=Status(Availability.DEGRADED, "fd_denied"))
    b = bench(collector)
    b.tick(60)
    assert collector.probed == 1
    collector.status = OK
    b.tick(2)
    assert collector.probed == 2
    assert b.state() == (1, "available", "")


def test_a_collector_is_asked_on_the_grid_of_its_interval_and_missed_slots_are_skipped(bench):
    collector = Scripted()
    b = bench(collector, interval="5s")
    b.tick(7)
    assert collector.asked == [10_000, 15_000]
    b.clock.advance(10_300)  # 27.3 s: slots 20 and 25 have passed
    b.tick(4)
    assert collector.asked == [10_000, 15_000, 27_300, 30_300]


def test_due_names_what_the_next_tick_starts(bench):
    b = bench(Scripted("one"), Scripted("two"), interval="2s")
    assert list(b.runner.due(10_000)) == ["one", "two"]
    b.tick()
    assert list(b.runner.due(11_000)) == []
    assert list(b.runner.due(12_000)) == ["one", "two"]


def test_a_disabled_collector_is_left_out(bench):
    collector = Scripted()
    b = bench(collector, enabled=False)
    b.tick(2)
    assert collector.asked == []
    assert b.sink.now("spikewatch_collector_errors_total") == {}


def test_a_finished_sample_is_announced_so_that_nobody_waits_for_the_next_tick(bench):
    announced = threading.Event()
    b = bench(Scripted(), on_done=announced.set)
    b.tick(settle=False)
    assert announced.wait(10)
    b.runner.collect()
    assert b.sink.at(10_000, "m") == 10_000


def test_samples_the_store_has_no_room_for_are_counted(bench, sink_of):
    b = bench(Scripted(answer=lambda now: [Sample("m", (("n", str(i)),), 1.0) for i in range(3)]))
    b.sink.room = 5  # four of them are taken by the runner's own counters in the first tick
    b.tick(2)
    assert b.sink.last("spikewatch_collector_refused_samples_total", collector="gauge") == 2


def test_between_ticks_a_poll_lets_a_collector_be_faster_than_the_tick(bench):
    collector = Scripted()
    b = bench(collector, interval="200ms")
    assert b.runner.fastest_ms == 200
    for _ in range(5):
        b.runner.poll(b.clock.now_ms())
        assert b.runner.settle(10)
        b.clock.advance(200)
    assert collector.asked == [10_000, 10_200, 10_400, 10_600, 10_800]
    assert b.sink.at(10_400, "m") == 10_400
    assert b.sink.now("spikewatch_collector_up") == {}, "self-metrics belong to ticks"


class Busy(Scripted):
    """Uses `ms` of CPU a sample: in its own thread's account, or as a child's."""

    def __init__(self, name, ms, worth=50, *, in_child=False):
        super().__init__(name)
        self.ms, self.worth, self.in_child = ms, worth, in_child
        self.child = 0.0
        self.told = []
        self.local = threading.local()

    def sample(self, now_ms):
        if self.in_child:
            self.child += self.ms / 1000
        else:
            SPENT.seconds = getattr(SPENT, "seconds", 0.0) + self.ms / 1000
        return super().sample(now_ms)

    def cpu_seconds(self):
        return self.child

    def stretch(self, factor):
        self.told.append(factor)


SPENT = threading.local()


def spent():
    """Stands for the thread's CPU clock: what `Busy` says it used."""
    return getattr(SPENT, "seconds", 0.0)


@pytest.mark.parametrize("in_child", [False, True])
def test_over_the_cpu_budget_the_collector_worth_least_is_slowed_first_and_the_page_says_so(bench, in_child):
    cheap_to_lose, precious = Busy("cheap", 19, worth=10, in_child=in_child), Busy("precious", 3, worth=90)
    b = bench(cheap_to_lose, precious, cpu_budget=0.01, cpu=spent)
    b.tick(62)
    assert b.sink.last("spikewatch_collector_stretch", collector="cheap") == 4
    assert b.sink.last("spikewatch_collector_stretch", collector="precious") == 1
    assert b.sink.last("spikewatch_collector_cpu_budget_ratio") == 0.01
    assert cheap_to_lose.told == [4]
    assert len(cheap_to_lose.asked) < len(precious.asked)
    spend = b.sink.last("spikewatch_collector_cpu_seconds_total", collector="precious")
    assert spend == pytest.approx(0.003 * 61)


def test_a_collector_gets_its_pace_back_step_by_step_once_there_is_room(bench):
    collector = Busy("busy", 30)
    b = bench(collector, cpu_budget=0.01, cpu=spent)
    b.tick(62)
    assert b.sink.last("spikewatch_collector_stretch", collector="busy") == 4
    collector.ms = 1
    seen = []
    for _ in range(5):
        b.tick(31)
        seen.append(b.sink.last("spikewatch_collector_stretch", collector="busy"))
    assert seen[-1] == 1
    assert seen == sorted(seen, reverse=True)
    assert collector.told[-1] == 1


def test_without_a_cpu_budget_nobody_is_slowed(bench):
    b = bench(Busy("busy", 900), cpu=spent)
    b.tick(62)
    assert b.sink.last("spikewatch_collector_stretch", collector="busy") == 1
    assert b.sink.now("spikewatch_collector_cpu_budget_ratio") == {}


def test_closing_closes_every_collector(sink_of):
    one, two = Scripted("one"), Scripted("two")
    b = Bench(sink_of(), one, two)
    assert b.runner.close(10) == []
    assert one.closed.is_set()
    assert two.closed.is_set()


def test_closing_names_the_collectors_that_hang_and_does_not_wait_for_them(sink_of):
    hanging = Hanging("stuck")
    b = Bench(sink_of(), hanging, Scripted("fine"))
    b.tick(settle=False)
    assert hanging.entered.wait(10)
    assert b.runner.close(0.05) == ["stuck"]
    hanging.release.set()
    assert hanging.closed.wait(10)


def test_a_change_of_state_is_logged_once(bench, caplog):
    collector = Scripted(answer=fail("lost"))
    b = bench(collector)
    with caplog.at_level(logging.INFO):
        b.tick(40)
        collector.answer = lambda now: []
        b.tick(60)
    assert [r.getMessage() for r in caplog.records] == [
        "collector gauge is unavailable: gauge: lost",
        "collector gauge is available",
    ]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(["ok", "fail", "denied", "degraded"]), min_size=1, max_size=40))
def test_whatever_happens_up_status_and_series_agree(sink_of, story):
    collector = Scripted()
    b = Bench(sink_of(), collector)
    try:
        for chapter in story:
            collector.answer = fail("x") if chapter == "fail" else lambda now: [Sample("m", (), float(now))]
            state = {"denied": Availability.DENIED, "degraded": Availability.DEGRADED}.get(chapter)
            collector.status = Status(state, "y") if state else OK
            b.tick()
        b.runner.tick(b.clock.now_ms())
        up, state, _ = b.state()
        assert up == (state in ("available", "degraded"))
        assert bool(b.sink.now("m")) == bool(up)
    finally:
        assert b.runner.close(10) == []


class Parted(Scripted):
    """Answers in sections."""

    def __init__(self, *answers):
        super().__init__()
        self.answers = list(answers)

    def sections(self, now_ms):
        self.asked.append(now_ms)
        for name, value in self.answers.pop(0).items():
            yield Section(name, None if value is None else [Sample(f"m_{name}", (), value)])


def test_a_section_that_did_not_change_is_kept_without_being_written_and_its_series_go_on(bench):
    b = bench(Parted({"a": 1.0, "b": 2.0}, {"a": 3.0, "b": None}, {"a": 4.0, "b": 5.0}))
    b.tick(3)
    assert [b.sink.at(t, "m_a") for t in (10_000, 11_000, 12_000)] == [1, 3, 4]
    assert [b.sink.at(t, "m_b") for t in (10_000, 11_000, 12_000)] == [2, None, 5]


def test_a_section_that_is_left_out_ends_and_may_come_back(bench):
    b = bench(Parted({"a": 1.0, "b": 2.0}, {"a": 3.0}, {"a": 4.0, "b": None}, {"a": 4.0, "b": 6.0}))
    b.tick(4)
    assert [b.sink.at(t, "m_b") for t in (10_000, 11_000, 12_000, 13_000)] == [2, "stale", None, 6]


def test_where_a_collector_in_sections_fails_all_of_them_end(bench):
    b = bench(Parted({"a": 1.0, "b": 2.0}))
    b.tick(3)
    assert b.sink.at(11_000, "m_a") == b.sink.at(11_000, "m_b") == "stale"
    assert b.state() == (0, "unavailable", "exception")
