"""Expressions over the real store: increments that do not overlap, steps of the slowest rank, visible guards."""

from __future__ import annotations

import pytest

from sidecar.errors import QueryError
from sidecar.responses.statistics import Goal, Verdict, Window, judge
from sidecar.responses.store_measure import StoreMeasure
from sidecar.store import Store

EXPR = "sum(rate(spikewatch_trainer_samples_total[10s]))"
GUARD = "increase(spikewatch_trainer_nonfinite_losses_total[1m]) > 0"
T = 1_700_000_000_000


class Feed:
    """Pushes what two ranks of a trainer would, once a second."""

    def __init__(self, store):
        self.store, self.t = store, T
        self.samples, self.steps = [0.0, 0.0], [0.0, 0.0]

    def second(self, samples=(32.0, 32.0), steps=(1.0, 2.0), bad=None):
        self.t += 1000
        for rank in (0, 1):
            self.samples[rank] += samples[rank]
            self.steps[rank] += steps[rank]
            self._push("spikewatch_trainer_samples_total", rank, self.samples[rank])
            self._push("spikewatch_trainer_steps_total", rank, self.steps[rank])
            if bad is not None:
                self._push("spikewatch_trainer_nonfinite_losses_total", rank, bad)

    def _push(self, metric, rank, value):
        handle = self.store.series(metric, {"rank": str(rank)}, f"rank{rank}")
        self.store.push(handle.block, self.t, {handle.column: value})


@pytest.fixture
def feed():
    return Feed(Store())


@pytest.fixture
def measure(feed):
    return StoreMeasure(feed.store)


def test_increments_are_one_a_sample_and_do_not_overlap(feed, measure):
    for i in range(60):
        feed.second(samples=(float(i), 0.0))
    found = measure.increments(EXPR, feed.t - 10_000, feed.t)
    assert found.elements == 1
    assert found.samples == [(feed.t - 1000 * (9 - i), float(50 + i)) for i in range(10)]


def test_the_same_expression_sliding_would_have_smeared_the_change(feed, measure):
    for i in range(60):
        feed.second(samples=(100.0 if i >= 50 else 10.0, 0.0))
    values = [v for _, v in measure.increments(EXPR, feed.t - 15_000, feed.t).samples]
    assert values == [10.0] * 5 + [100.0] * 10
    ((_, smeared),) = measure.evaluate(EXPR, feed.t - 5000)
    assert 10 < smeared < 100


def test_an_expression_that_keeps_its_ranks_has_two_elements_and_no_samples(feed, measure):
    for _ in range(20):
        feed.second()
    found = measure.increments("rate(spikewatch_trainer_samples_total[10s])", T, feed.t)
    assert (found.samples, found.elements) == ([], 2)


def test_without_data_there_is_nothing_and_not_zero(feed, measure):
    assert measure.increments(EXPR, T, T + 60_000).samples == []
    assert measure.steps(T, T + 60_000) is None
    feed.second()
    assert measure.increments("sum(rate(other_total[10s]))", T, feed.t).elements == 0


def test_steps_are_those_of_the_slowest_rank(feed, measure):
    for _ in range(60):
        feed.second()
    assert measure.steps(feed.t - 30_000, feed.t) == pytest.approx(30, abs=1)


def test_a_guard_is_seen_only_while_its_series_exists(feed, measure):
    for _ in range(5):
        feed.second()
    assert not measure.seen(GUARD, feed.t)
    for _ in range(5):
        feed.second(bad=0.0)
    assert measure.seen(GUARD, feed.t)
    assert measure.evaluate(GUARD, feed.t) == []
    for _ in range(3):
        feed.second(bad=1.0)
    assert len(measure.evaluate(GUARD, feed.t)) == 2


def test_the_longest_range_is_that_of_the_expression(measure):
    assert measure.longest_range_ms("sum(rate(a[10s])) / sum(rate(b[5m]))") == 300_000
    assert measure.longest_range_ms("a") == 0


def test_what_does_not_compile_is_refused(measure):
    with pytest.raises(QueryError):
        measure.increments("sum(rate(a[10s])", 0, 1)


def test_a_verdict_over_the_store_finds_a_real_gain(feed, measure):
    spans = []
    for pace in (32.0, 48.0):
        after = feed.t
        for i in range(60):
            feed.second(samples=(pace + i % 3, pace - i % 3))
        found = measure.increments(EXPR, after, feed.t)
        spans.append(Window(after, feed.t, found.samples, measure.steps(after, feed.t)))
    judgement = judge(*spans, goal=Goal.INCREASE, by=0.05, min_steps=20, min_samples=8)
    assert judgement.verdict is Verdict.HELPED
    assert judgement.estimate.gain == pytest.approx(0.5, abs=0.02)
