"""Money: what was kept earns while its run lives, what was undone is booked for the time it was in effect."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.responses.journal import Entry
from sidecar.responses.savings import HOUR_MS, METRICS, Savings

RUN = ("run-1",)
H = HOUR_MS


def story(change="c", response="feed", usd=3.0, applied=0, closed=H, result="kept"):
    """The entries of one experiment."""
    about = ("episode", response, change)
    worth = {} if usd is None else {"usd_per_hour": usd}
    return [
        Entry(applied, "experiment", *about, {"phase": "intended"}),
        Entry(applied, "experiment", *about, {"phase": "settling"}),
        Entry(closed, "verdict", *about, {"verdict": "helped", **worth}),
        Entry(closed, "experiment", *about, {"phase": "closed", "result": result}),
    ]


def told(*stories, until=2 * H, run=RUN):
    savings = Savings()
    savings.advance(0, RUN)
    for entries in stories:
        for entry in entries:
            savings.take(entry)
    savings.advance(until, run)
    return savings


def sums(savings):
    return {(t.response, t.run): (t.saved_usd, t.cost_usd, t.usd_per_hour) for t in savings.totals()}


def test_a_kept_change_earns_from_the_moment_it_was_applied():
    assert sums(told(story(usd=3.0), until=2 * H)) == {("feed", RUN): (6.0, 0.0, 3.0)}


def test_a_change_that_was_undone_cost_what_it_lost_while_it_was_in_effect():
    made = told(story(usd=-4.0, applied=H, closed=H + H // 2, result="rolled_back"), until=9 * H)
    assert sums(made) == {("feed", RUN): (0.0, 2.0, 0.0)}


def test_one_that_helped_too_little_to_be_kept_has_still_saved_a_little():
    assert sums(told(story(usd=0.5, closed=H, result="rolled_back"))) == {("feed", RUN): (0.5, 0.0, 0.0)}


def test_the_lease_that_took_it_back_ends_the_bill_as_well():
    made = told(story(usd=-1.0, closed=2 * H, result="reverted_by_lease"), until=9 * H)
    assert sums(made) == {("feed", RUN): (0.0, 2.0, 0.0)}


def test_the_changes_of_a_run_add_up_and_responses_are_kept_apart():
    made = told(story("a", usd=1.0), story("b", usd=2.0), story("c", "shrink", usd=5.0), until=H)
    assert sums(made) == {("feed", RUN): (3.0, 0.0, 3.0), ("shrink", RUN): (5.0, 0.0, 5.0)}


@pytest.mark.parametrize("usd", [None])
def test_without_a_price_there_is_no_money(usd):
    assert sums(told(story(usd=usd))) == {}


def test_a_change_that_was_never_applied_is_worth_nothing():
    entries = [e for e in story(usd=-3.0, result="not_applied") if e.data.get("phase") != "settling"]
    assert sums(told(entries)) == {}


def test_a_new_run_ends_what_the_old_one_earned():
    savings = told(story(usd=3.0), until=2 * H)
    savings.advance(5 * H, ("run-2",))
    savings.advance(9 * H, ("run-2",))
    assert sums(savings) == {("feed", RUN): (6.0, 0.0, 0.0)}


def test_a_trainer_out_of_sight_earns_once_it_is_seen_to_have_lived_on():
    savings = told(story(usd=3.0), until=2 * H)
    savings.advance(5 * H, None)
    assert sums(savings)["feed", RUN][0] == 6.0
    savings.advance(6 * H, RUN)
    assert sums(savings)["feed", RUN][0] == 18.0


def test_after_a_restart_a_kept_change_of_a_run_that_lives_counts_from_its_beginning():
    savings = Savings()
    savings.replay(story(usd=3.0), {"c": RUN})
    savings.advance(4 * H, RUN)
    assert sums(savings) == {("feed", RUN): (12.0, 0.0, 3.0)}


def test_after_a_restart_what_other_runs_earned_and_lost_is_history():
    savings = Savings()
    savings.replay([*story("a", usd=3.0), *story("b", usd=-3.0, result="rolled_back")], {"a": RUN, "b": RUN})
    savings.advance(4 * H, ("run-2",))
    assert sums(savings) == {}


def test_the_metrics_sum_over_runs_and_begin_at_zero():
    savings = told(story(usd=3.0), until=2 * H)
    savings.advance(2 * H, ("run-2",))
    savings.expect(["feed", "shrink"])
    found = {(s.metric, dict(s.labels)["response"]): s.value for s in savings.samples()}
    assert found["spikewatch_saved_usd_total", "feed"] == 6.0
    assert found["spikewatch_saved_usd_total", "shrink"] == 0.0
    assert found["spikewatch_experiment_cost_usd_total", "shrink"] == 0.0
    assert found["spikewatch_saving_usd_per_hour", "feed"] == 0.0
    assert {metric for metric, _ in found} == {info.name for info in METRICS}


@given(
    st.lists(
        st.tuples(
            st.floats(-100, 100),
            st.integers(0, H),
            st.integers(0, H),
            st.sampled_from(["kept", "rolled_back", "reverted_by_lease", "trainer_gone"]),
        ),
        max_size=6,
    ),
    st.lists(st.tuples(st.integers(-H, H), st.sampled_from([RUN, ("other",), None])), max_size=8),
)
def test_counters_never_fall_whatever_comes_and_whatever_the_clock_does(experiments, steps):
    savings = Savings()
    savings.advance(0, RUN)
    now, before = 0, {}
    for number, (usd, applied, length, result) in enumerate(experiments):
        for entry in story(f"c{number}", usd=usd, applied=applied, closed=applied + length, result=result):
            savings.take(entry)
    for step, run in [(0, RUN), *steps]:
        now += step
        savings.advance(now, run)
        after = {(s.metric, s.labels): s.value for s in savings.samples() if s.metric.endswith("_total")}
        assert all(after[key] >= value for key, value in before.items())
        before = after


def test_booking_often_and_booking_once_come_to_the_same():
    often, once = told(story(usd=3.0), until=0), told(story(usd=3.0), until=7 * H)
    for now in range(0, 7 * H + 1, H // 100):
        often.advance(now, RUN)
    assert sums(often)["feed", RUN] == pytest.approx(sums(once)["feed", RUN])
