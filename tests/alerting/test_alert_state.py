"""The alert state machine: each rule of Prometheus by itself, and all of them against a slow model."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.alerting.rules import Rule
from sidecar.alerting.state import (
    NEVER,
    RESOLVED_RETENTION_MS,
    needs_sending,
    sent,
    step,
)
from sidecar.model import AlertState, Edge

A = (("alertname", "A"), ("rank", "0"))
B = (("alertname", "A"), ("rank", "1"))
MINUTE = 60_000


def rule(for_ms=0, keep_ms=0):
    return Rule("A", "up == 0", True, for_ms=for_ms, keep_firing_for_ms=keep_ms)


def run(rule_, steps, limit=0, start=None):
    """Steps are (time, labels found); gives each step's result."""
    state = start or {}
    results = []
    for now, found in steps:
        result = step(rule_, state, {labels: (labels, float(now)) for labels in found}, now, limit)
        state = result.state
        results.append(result)
    return results


def edges(results):
    return [[(t.edge, t.instance.labels) for t in r.transitions] for r in results]


def states(results, labels=A):
    return [r.state[labels].state.value if labels in r.state else "-" for r in results]


def test_without_for_an_alert_fires_in_the_evaluation_that_finds_it():
    (result,) = run(rule(), [(5, [A])])
    assert edges([result]) == [[(Edge.FIRING, A)]]
    assert (result.state[A].active_at_ms, result.state[A].fired_at_ms) == (5, 5)


def test_with_for_it_is_pending_until_the_time_has_passed_exactly():
    results = run(rule(for_ms=10), [(0, [A]), (9, [A]), (10, [A])])
    assert states(results) == ["pending", "pending", "firing"]
    assert edges(results) == [[(Edge.PENDING, A)], [], [(Edge.FIRING, A)]]
    assert results[2].state[A].active_at_ms == 0
    assert results[2].state[A].fired_at_ms == 10


def test_a_pending_alert_that_clears_is_forgotten_and_starts_anew():
    results = run(rule(for_ms=10), [(0, [A]), (5, []), (6, [A]), (15, [A]), (16, [A])])
    assert states(results) == ["pending", "-", "pending", "pending", "firing"]
    assert edges(results)[1] == [(Edge.CLEARED, A)]


def test_a_firing_alert_that_clears_is_resolved_and_remembered_for_fifteen_minutes():
    end = 10 + RESOLVED_RETENTION_MS
    results = run(rule(), [(0, [A]), (10, []), (end, []), (end + 1, [])])
    assert states(results) == ["firing", "inactive", "inactive", "-"]
    assert edges(results) == [[(Edge.FIRING, A)], [(Edge.RESOLVED, A)], [], []]
    assert results[2].state[A].resolved_at_ms == 10
    assert results[3].changed == (A,)


def test_a_resolved_alert_that_comes_back_is_a_new_alert():
    results = run(rule(for_ms=5), [(0, [A]), (5, [A]), (6, []), (7, [A])])
    again = results[-1].state[A]
    assert (again.state, again.active_at_ms, again.fired_at_ms) == (AlertState.PENDING, 7, NEVER)
    assert (again.resolved_at_ms, again.last_sent_at_ms) == (NEVER, NEVER)


def test_keep_firing_for_bridges_gaps_and_counts_from_the_first_absence():
    results = run(rule(keep_ms=10), [(0, [A]), (1, []), (10, []), (11, [])])
    assert states(results) == ["firing", "firing", "firing", "inactive"]
    assert results[-1].state[A].resolved_at_ms == 11


def test_being_found_again_resets_keep_firing_for():
    results = run(rule(keep_ms=10), [(0, [A]), (1, []), (9, [A]), (12, []), (21, []), (22, [])])
    assert states(results) == ["firing"] * 5 + ["inactive"]
    assert edges(results)[1:5] == [[]] * 4


def test_keep_firing_for_does_not_hold_a_pending_alert():
    assert states(run(rule(for_ms=5, keep_ms=100), [(0, [A]), (1, [])])) == ["pending", "-"]


def test_the_value_and_sample_are_those_of_the_last_evaluation_that_found_it():
    results = run(rule(keep_ms=100), [(0, [A]), (7, [A]), (9, [])])
    assert results[-1].state[A].reading.value == 7
    assert results[-1].state[A].reading.at_ms == 7


def test_a_longer_for_leaves_a_firing_alert_firing_as_in_prometheus_3_5():
    before = run(rule(for_ms=1), [(0, [A]), (1, [A])])[-1].state
    assert states(run(rule(for_ms=100), [(2, [A])], start=before)) == ["firing"]


def test_over_the_limit_the_rule_loses_all_its_alerts():
    first, second = run(rule(), [(0, [A]), (1, [A, B])], limit=1)
    assert not first.error
    assert second.error == "exceeded limit of 1 with 2 alerts"
    assert second.state == {}
    assert edges([second]) == [[(Edge.RESOLVED, A)]]


def test_resolved_alerts_do_not_count_towards_the_limit():
    assert [r.error for r in run(rule(), [(0, [A]), (1, [B])], limit=1)] == ["", ""]


def test_a_held_alert_outlives_its_absence_until_it_was_seen_or_the_time_is_over():
    (fired,) = run(rule(), [(0, [A])])
    held = {A: replace(fired.state[A], held_until_ms=100)}
    assert states(run(rule(), [(50, []), (99, []), (100, [])], start=held)) == ["firing", "firing", "inactive"]
    assert states(run(rule(), [(50, [A]), (51, [])], start=held)) == ["firing", "inactive"]


def test_only_what_changed_on_disk_is_named_changed():
    results = run(rule(for_ms=2, keep_ms=5), [(0, [A]), (1, [A]), (2, [A]), (3, [A]), (4, []), (5, []), (6, [A])])
    assert [r.changed for r in results] == [(A,), (), (A,), (), (A,), (), (A,)]


class TestSending:
    def firing(self, now=0):
        return run(rule(), [(now, [A])])[0].state[A]

    def test_a_pending_alert_is_never_sent(self):
        pending = run(rule(for_ms=10), [(0, [A])])[0].state[A]
        assert not needs_sending(pending, 10**9, MINUTE)

    def test_a_firing_alert_is_sent_at_once_and_then_only_after_more_than_the_delay(self):
        alert = self.firing()
        assert needs_sending(alert, 0, MINUTE)
        alert = sent(alert, 0, 1000, MINUTE)
        assert not needs_sending(alert, MINUTE, MINUTE)
        assert needs_sending(alert, MINUTE + 1, MINUTE)

    def test_a_message_is_valid_for_four_of_the_longer_of_interval_and_delay(self):
        assert sent(self.firing(), 7, 1000, MINUTE).valid_until_ms == 7 + 4 * MINUTE
        assert sent(self.firing(), 7, 5 * MINUTE, MINUTE).valid_until_ms == 7 + 20 * MINUTE

    def test_a_resolved_alert_is_sent_at_once_and_repeated(self):
        state = {A: sent(self.firing(), 0, 1000, MINUTE)}
        resolved = run(rule(), [(10, [])], start=state)[0].state[A]
        assert needs_sending(resolved, 10, MINUTE)
        told = sent(resolved, 10, 1000, MINUTE)
        assert not needs_sending(told, 11, MINUTE)
        assert needs_sending(told, 10 + MINUTE + 1, MINUTE)


# --- the slow model -----------------------------------------------------------------------------------------------
# It keeps no state: whatever an alert is at a moment, it works out from the whole history of when it was found.


def phases(history, for_ms, keep_ms):
    """The life of one alert: (start, fired or None, end or None), from the times of all evaluations."""
    lives, start, fired, absent_since = [], None, None, None
    for now, found in history:
        if found:
            start = now if start is None else start
            absent_since = None
            if fired is None and now - start >= for_ms:
                fired = now
        elif start is not None:
            absent_since = now if absent_since is None else absent_since
            if fired is None or keep_ms == 0 or now - absent_since >= keep_ms:
                lives.append((start, fired, now))
                start = fired = absent_since = None
    if start is not None:
        lives.append((start, fired, None))
    return lives


def model(history, for_ms, keep_ms):
    """(state, active at, fired at, resolved at) after the last evaluation, or None for nothing known."""
    now = history[-1][0]
    lives = phases(history, for_ms, keep_ms)
    if not lives:
        return None
    start, fired, end = lives[-1]
    if end is None:
        return ("pending" if fired is None else "firing", start, NEVER if fired is None else fired, NEVER)
    ended = [(s, f, e) for s, f, e in lives if f is not None and e is not None]
    # a pending life in between takes the place of the resolved one before it
    if not ended or lives[-1] != ended[-1]:
        return None
    start, fired, end = ended[-1]
    return ("inactive", start, fired, end) if now - end <= RESOLVED_RETENTION_MS else None


gaps = st.integers(1, 4) | st.sampled_from(
    [RESOLVED_RETENTION_MS - 1, RESOLVED_RETENTION_MS, RESOLVED_RETENTION_MS + 1]
)
histories = st.lists(st.tuples(gaps, st.booleans(), st.booleans()), min_size=1, max_size=40)


@settings(max_examples=300, deadline=None)
@given(histories, st.integers(0, 8), st.integers(0, 8))
def test_step_by_step_gives_what_the_whole_history_says(history, for_ms, keep_ms):
    state, now, seen = {}, 0, {A: [], B: []}
    machine = rule(for_ms, keep_ms)
    for gap, *found in history:
        now += gap
        present = [labels for labels, there in zip((A, B), found, strict=True) if there]
        before = state
        result = step(machine, state, {labels: (labels, 1.0) for labels in present}, now)
        state = result.state
        for labels, there in zip((A, B), found, strict=True):
            seen[labels].append((now, there))
            i = state.get(labels)
            got = None if i is None else (i.state.value, i.active_at_ms, i.fired_at_ms, i.resolved_at_ms)
            assert got == model(seen[labels], for_ms, keep_ms)
            assert (labels in result.changed) or _persisted(before.get(labels)) == _persisted(i)


def _persisted(instance):
    return instance and replace(instance, reading=None)


@settings(max_examples=100, deadline=None)
@given(histories, st.integers(0, 8), st.integers(0, 8))
def test_every_edge_has_its_counterpart(history, for_ms, keep_ms):
    """Per alert the edges read pending? firing? then resolved or cleared, over and over, and nothing else."""
    state, now, open_edge = {}, 0, None
    for gap, found, _ in history:
        now += gap
        result = step(rule(for_ms, keep_ms), state, {A: (A, 1.0)} if found else {}, now)
        state = result.state
        for transition in result.transitions:
            allowed = {
                None: {Edge.PENDING, Edge.FIRING},
                Edge.PENDING: {Edge.FIRING, Edge.CLEARED},
                Edge.FIRING: {Edge.RESOLVED},
            }[open_edge]
            assert transition.edge in allowed
            open_edge = transition.edge if transition.edge in (Edge.PENDING, Edge.FIRING) else None


@pytest.mark.parametrize("limit", [0, -1, 2])
def test_a_limit_that_is_not_reached_or_not_set_changes_nothing(limit):
    assert run(rule(), [(0, [A, B])], limit=limit)[0].error == ""
