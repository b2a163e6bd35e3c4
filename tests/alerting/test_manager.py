"""The manager at work: what a tick evaluates, writes, tells and remembers."""

import pytest

from sidecar.alerting.history import KEPT, Health
from sidecar.alerting.schedule import Slots, slot_offset
from sidecar.model import AlertState, Edge

ALERT = """
groups:
- name: g
  interval: 1s
  rules:
  - alert: Starved
    expr: share > 0.3
    for: 2s
    labels: {severity: warning, rank: "{{ $labels.rank }}", gone: "{{ $labels.nope }}"}
    annotations: {summary: '{{ $value }} on {{ $labels.__name__ }}'}
"""
RECORD = """
groups:
- name: g
  interval: 1s
  rules:
  - record: a:b
    expr: source
    labels: {team: x, drop: ""}
  - alert: B
    expr: a:b > 1
"""


class TestTime:
    def test_nothing_is_evaluated_before_the_first_slot_after_the_start(self, bench):
        manager = bench.manager(ALERT)
        assert manager.tick(10_000) == []
        assert bench.query.asked == []
        due = manager.next_due_ms()
        assert 10_000 < due <= 11_000
        manager.tick(due - 1)
        assert bench.query.asked == []
        manager.tick(due)
        assert bench.query.asked == [("share > 0.3", due)]

    def test_an_evaluation_is_dated_by_its_slot_and_not_by_when_it_ran(self, bench):
        manager = bench.manager(ALERT)
        manager.tick(0)
        due = manager.next_due_ms()
        manager.tick(due + 900)
        assert bench.query.asked == [("share > 0.3", due)]

    def test_missed_slots_are_counted_and_never_made_up_for(self, bench):
        manager = bench.manager(ALERT)
        manager.tick(0)
        due = manager.next_due_ms()
        manager.tick(due + 5_500)
        assert bench.query.asked == [("share > 0.3", due + 5_000)]
        assert manager.rules()[0].missed == 5
        assert manager.stats().missed == 5

    def test_a_second_tick_in_the_same_slot_does_nothing(self, bench):
        manager = bench.manager(ALERT)
        manager.tick(0)
        due = manager.next_due_ms()
        manager.tick(due)
        manager.tick(due + 999)
        assert len(bench.query.asked) == 1

    def test_slots_lie_at_a_place_given_by_name_and_file(self):
        assert slot_offset("g", "f", 1000) == slot_offset("g", "f", 1000)
        assert len({slot_offset(f"g{n}", "f", 60_000) for n in range(50)}) > 40
        slots = Slots(1000, 250, 10_100)
        assert slots.next_ms == 10_250
        assert Slots(1000, 250, 10_250).next_ms == 11_250

    def test_groups_with_a_longer_interval_are_left_alone_in_between(self, bench):
        manager = bench.manager(ALERT.replace("interval: 1s", "interval: 5s"))
        for now in range(0, 20_001, 1000):
            manager.tick(now)
        assert len(bench.query.asked) == 4

    def test_a_group_with_a_query_offset_reads_and_writes_that_far_back(self, bench, sample):
        manager = bench.manager(ALERT.replace("interval: 1s", "interval: 1s\n  query_offset: 30s"))
        bench.query.set("share > 0.3", sample(0.5, rank="0"))
        manager.tick(100_000)
        due = manager.next_due_ms()
        manager.tick(due)
        assert bench.query.asked == [("share > 0.3", due - 30_000)]
        assert {row[3] for row in bench.written.rows} == {due - 30_000}
        assert manager.alerts()[0].active_at_ms == due


class TestAlerts:
    def test_an_alert_goes_pending_then_fires_then_resolves(self, bench, sample):
        bench.manager(ALERT)
        bench.query.set("share > 0.3", sample(0.5, name="share", rank="3"))
        labels = {"rank": "3", "severity": "warning"}
        assert bench.ticks(0, 4) == [("pending", "Starved", labels), ("firing", "Starved", labels)]
        bench.query.set("share > 0.3")
        assert bench.ticks(4000, 2) == [("resolved", "Starved", labels)]

    def test_an_alert_shows_its_values_and_expanded_annotations(self, bench, sample):
        manager = bench.manager(ALERT)
        bench.query.set("share > 0.3", sample(0.5, name="share", rank="3"))
        bench.ticks(0, 4)
        (alert,) = manager.alerts()
        assert alert.labels == (("alertname", "Starved"), ("rank", "3"), ("severity", "warning"))
        assert alert.annotations == (("summary", "0.5 on share"),)
        assert (alert.state, alert.value, alert.expr) == (AlertState.FIRING, 0.5, "share > 0.3")
        assert alert.fired_at_ms - alert.active_at_ms == 2000
        assert alert.resolved_at_ms == 0

    def test_annotations_follow_the_newest_value_and_stay_with_the_last_when_it_is_over(self, bench, sample):
        manager = bench.manager(ALERT)
        for now, value in enumerate([0.5, 0.6, 0.7, 0.8]):
            bench.query.set("share > 0.3", sample(value, name="share", rank="3"))
            manager.tick(now * 1000)
        assert manager.alerts()[0].annotations == (("summary", "0.8 on share"),)
        bench.query.set("share > 0.3")
        (event,) = manager.tick(4000)
        assert event.alert.annotations == (("summary", "0.8 on share"),)

    def test_annotations_are_expanded_only_for_who_looks(self, bench, sample):
        text = ALERT.replace("{{ $value }} on", '{{ query "up" | first | value }} on')
        manager = bench.manager(text)
        bench.query.set("share > 0.3", sample(0.5, rank="3"))
        bench.query.set("up", sample(7.0))
        bench.ticks(0, 4)
        before = len([1 for expr, _ in bench.query.asked if expr == "up"])
        bench.ticks(4000, 5)
        assert len([1 for expr, _ in bench.query.asked if expr == "up"]) == before
        assert manager.alerts()[0].annotations == (("summary", "7 on "),)
        assert bench.query.asked[-1] == ("up", manager.rules()[0].last_slot_ms)
        count = len(bench.query.asked)
        manager.alerts()
        assert len(bench.query.asked) == count

    def test_two_samples_that_become_one_alert_fail_the_rule_and_leave_its_alerts(self, bench, sample):
        text = ALERT.replace('rank: "{{ $labels.rank }}"', "rank: all")
        manager = bench.manager(text)
        bench.query.set("share > 0.3", sample(0.5, rank="0"))
        bench.ticks(0, 4)
        bench.query.set("share > 0.3", sample(0.5, rank="0"), sample(0.6, rank="1"))
        assert bench.ticks(4000, 2) == []
        status = manager.rules()[0].rules[0]
        assert "same labelset" in status.last_error
        assert [a.state for a in manager.alerts()] == [AlertState.FIRING]

    def test_a_scalar_result_is_an_alert_without_labels(self, bench):
        manager = bench.manager(ALERT)
        bench.query.results["share > 0.3"] = 1.0
        assert bench.ticks(0, 2) == [("pending", "Starved", {"severity": "warning"})]
        assert manager.alerts()[0].value == 1.0

    def test_a_string_result_fails_the_rule(self, bench):
        manager = bench.manager(ALERT)
        bench.query.results["share > 0.3"] = "text"
        bench.ticks(0, 2)
        assert manager.rules()[0].rules[0].last_error == "rule result is not a vector or scalar"

    def test_labels_that_depend_on_the_value_make_a_new_alert_of_each_value(self, bench, sample):
        bench.manager(ALERT.replace("severity: warning", 'severity: "{{ $value }}"'))
        edges = []
        for now, value in enumerate([0.5, 0.5, 0.6]):
            bench.query.set("share > 0.3", sample(value, rank="3"))
            edges += bench.ticks(now * 1000, 1)
        assert [(edge, labels["severity"]) for edge, _, labels in edges] == [
            ("pending", "0.5"),
            ("pending", "0.6"),
            ("cleared", "0.5"),
        ]


class TestWriting:
    def test_pending_and_firing_are_written_as_alerts_series_with_end_markers(self, bench, sample):
        bench.manager(ALERT)
        bench.query.set("share > 0.3", sample(0.5, rank="3"))
        bench.ticks(0, 4)
        rows = [(labels["alertstate"], value) for _, labels, value, _ in bench.written.take("ALERTS")]
        assert rows == [("pending", 1.0), ("pending", 1.0), ("firing", 1.0), ("pending", "stale")]
        bench.query.set("share > 0.3")
        bench.ticks(4000, 2)
        rows = [(labels["alertstate"], value) for _, labels, value, _ in bench.written.take("ALERTS")]
        assert rows == [("firing", "stale")]

    def test_alerts_for_state_holds_since_when_the_alert_is_active_in_whole_seconds(self, bench, sample):
        manager = bench.manager(ALERT)
        bench.query.set("share > 0.3", sample(0.5, rank="3"))
        bench.ticks(0, 3)
        active = manager.alerts()[0].active_at_ms
        assert [row[2] for row in bench.written.take("ALERTS_FOR_STATE")] == [active // 1000] * 2

    def test_a_label_the_template_emptied_is_written_unexpanded_as_in_prometheus(self, bench, sample):
        bench.manager(ALERT)
        bench.query.set("share > 0.3", sample(0.5, rank="3"))
        bench.ticks(0, 2)
        (row,) = bench.written.take("ALERTS")
        assert row[1]["gone"] == "{{ $labels.nope }}"

    def test_a_recorded_series_gets_the_rules_name_and_labels(self, bench, sample):
        bench.manager(RECORD)
        bench.query.set("source", sample(2.0, name="source", rank="0", team="y", drop="z"))
        bench.ticks(0, 2)
        (row,) = bench.written.take("a:b")
        assert row[:3] == ("a:b", {"rank": "0", "team": "x"}, 2.0)

    def test_a_recorded_series_that_is_no_more_is_ended(self, bench, sample):
        bench.manager(RECORD)
        bench.query.set("source", sample(2.0, rank="0"), sample(3.0, rank="1"))
        bench.ticks(0, 2)
        bench.written.take()
        bench.query.set("source", sample(2.0, rank="1"))
        bench.ticks(2000, 2)
        rows = [(labels["rank"], value) for _, labels, value, _ in bench.written.take("a:b")]
        assert rows == [("1", 2.0), ("0", "stale"), ("1", 2.0)]

    def test_rules_run_in_order_so_that_later_ones_see_what_earlier_ones_wrote(self, bench, sample):
        seen = []

        def query(expr, t_ms):
            if expr == "source":
                return [sample(2.0, rank="0")]
            seen.extend(row[0] for row in bench.written.rows if row[3] == t_ms)
            return []

        manager = bench.manager(RECORD)
        manager.replace([group.group for group in manager.rules()], query)
        bench.ticks(0, 2)
        assert seen == ["a:b"]

    def test_samples_that_become_the_same_recorded_series_fail_the_rule(self, bench, sample):
        manager = bench.manager(RECORD)
        bench.query.set("source", sample(2.0, name="x", rank="0"), sample(3.0, name="y", rank="0"))
        bench.ticks(0, 2)
        assert "same labelset" in manager.rules()[0].rules[0].last_error
        assert bench.written.take("a:b") == []

    def test_more_series_than_the_limit_fail_the_rule(self, bench, sample):
        manager = bench.manager(RECORD.replace("interval: 1s", "interval: 1s\n  limit: 1"))
        bench.query.set("source", sample(2.0, rank="0"), sample(3.0, rank="1"))
        bench.ticks(0, 2)
        assert manager.rules()[0].rules[0].last_error == "exceeded limit of 1 with 2 series"

    def test_a_rule_that_fails_writes_no_end_markers(self, bench, sample):
        bench.manager(RECORD)
        bench.query.set("source", sample(2.0, rank="0"))
        bench.ticks(0, 2)
        bench.written.take()
        bench.query.fail("source")
        bench.ticks(2000, 2)
        assert bench.written.take("a:b") == []
        bench.query.set("source")
        bench.ticks(4000, 1)
        assert [row[2] for row in bench.written.take("a:b")] == ["stale"]


class TestHealth:
    def test_a_rule_that_fails_is_bad_and_the_others_go_on(self, bench, sample):
        manager = bench.manager(RECORD)
        assert manager.rules()[0].rules[0].health is Health.UNKNOWN
        bench.query.fail("source")
        bench.query.set("a:b > 1", sample(2.0))
        assert bench.ticks(0, 2) == [("firing", "B", {})]
        first, second = manager.rules()[0].rules
        assert (first.health, first.last_error, first.failures) == (Health.BAD, "no such function", 1)
        assert (second.health, second.last_error, second.state) == (Health.OK, "", AlertState.FIRING)

    def test_a_bug_in_an_evaluation_costs_only_its_own_rule(self, bench, sample):
        manager = bench.manager(RECORD)
        bench.query.fail("source", ZeroDivisionError("boom"))
        bench.query.set("a:b > 1", sample(2.0))
        assert bench.ticks(0, 2) == [("firing", "B", {})]
        assert manager.rules()[0].rules[0].last_error == "internal error: ZeroDivisionError: boom"
        assert manager.stats().failures == 1

    def test_a_failing_rule_keeps_its_alerts_as_they_were(self, bench, sample):
        manager = bench.manager(ALERT)
        bench.query.set("share > 0.3", sample(0.5, rank="0"))
        bench.ticks(0, 4)
        bench.query.fail("share > 0.3")
        assert bench.ticks(4000, 20) == []
        assert [a.state for a in manager.alerts()] == [AlertState.FIRING]

    def test_the_last_evaluations_are_kept_with_time_duration_and_size(self, bench, sample):
        manager = bench.manager(ALERT)
        bench.query.set("share > 0.3", sample(0.5, rank="0"))
        bench.ticks(0, 31)
        status = manager.rules()[0].rules[0]
        assert len(status.history) == KEPT
        assert status.evaluations == 30
        times = [e.at_ms for e in status.history]
        assert times == list(range(times[0], times[0] + KEPT * 1000, 1000))
        assert all(e.duration_ns == 1 and e.series == 1 and e.error == "" for e in status.history)
        assert manager.rules()[0].last_duration_ns == 3

    def test_the_expressions_to_compile_include_what_templates_query(self, bench):
        text = ALERT.replace(
            "{{ $value }}", '{{ query "sum(up) > 1" | first | value }} {{ query `a` }} {{ query "(" }}'
        )
        assert bench.manager(text).exprs() == ["share > 0.3", "sum(up) > 1", "a"]


class TestNotifications:
    def test_a_firing_alert_is_due_once_then_after_the_resend_delay_then_once_it_resolved(self, bench, sample):
        manager = bench.manager(ALERT, resend_delay_ms=3000)
        bench.query.set("share > 0.3", sample(0.5, rank="0"))
        due = []
        for now in range(0, 9000, 1000):
            manager.tick(now)
            due.append(len(manager.sendable()))
        assert due == [0, 0, 0, 1, 0, 0, 0, 1, 0]
        bench.query.set("share > 0.3")
        manager.tick(9000)
        assert len(manager.sendable()) == 1

    def test_a_notification_says_when_it_fired_and_until_when_it_is_valid(self, bench, sample):
        external = (("cluster", "c1"), ("severity", "external"))
        manager = bench.manager(ALERT, resend_delay_ms=3000, external_labels=external, external_url="http://here/")
        bench.query.set("share > 0.3", sample(0.5, name="share", rank="0"))
        bench.ticks(0, 4)
        (told,) = manager.sendable()
        alert = manager.alerts()[0]
        assert dict(told.labels) == {"alertname": "Starved", "rank": "0", "severity": "warning", "cluster": "c1"}
        assert told.annotations == (("summary", "0.5 on share"),)
        assert told.starts_at_ms == alert.fired_at_ms
        assert told.ends_at_ms == alert.fired_at_ms + 4 * 3000
        assert told.generator_url == "http://here/graph?g0.expr=share+%3E+0.3&g0.tab=1"

    def test_a_resolved_notification_ends_when_it_resolved(self, bench, sample):
        manager = bench.manager(ALERT)
        bench.query.set("share > 0.3", sample(0.5, rank="0"))
        bench.ticks(0, 4)
        bench.query.set("share > 0.3")
        (event,) = manager.tick(4000)
        (told,) = manager.sendable()
        assert event.edge is Edge.RESOLVED
        assert told.ends_at_ms == event.alert.resolved_at_ms == event.at_ms
        assert told.starts_at_ms == event.alert.fired_at_ms

    def test_asking_twice_gives_the_same_and_a_tick_without_evaluation_nothing(self, bench, sample):
        manager = bench.manager(ALERT)
        bench.query.set("share > 0.3", sample(0.5, rank="0"))
        bench.ticks(0, 4)
        assert manager.sendable() == manager.sendable() != ()
        manager.tick(3001)
        assert manager.sendable() == ()

    def test_a_failing_rule_sends_nothing(self, bench, sample):
        manager = bench.manager(ALERT, resend_delay_ms=1000)
        bench.query.set("share > 0.3", sample(0.5, rank="0"))
        bench.ticks(0, 4)
        bench.query.fail("share > 0.3")
        bench.ticks(4000, 5)
        assert manager.sendable() == ()


class TestReload:
    def test_a_rule_with_the_same_name_and_labels_keeps_its_alerts_over_a_changed_expression(
        self, bench, sample, groups_of
    ):
        manager = bench.manager(ALERT)
        bench.query.set("share > 0.3", sample(0.5, rank="0"))
        bench.ticks(0, 3)
        bench.query.set("share > 0.4", sample(0.5, rank="0"))
        manager.replace(groups_of(ALERT.replace("0.3", "0.4")), bench.query)
        assert [edge for edge, _, _ in bench.ticks(3000, 1)] == ["firing"]
        assert manager.exprs() == ["share > 0.4"]

    def test_slots_history_and_missed_counts_go_on(self, bench, groups_of):
        manager = bench.manager(ALERT)
        bench.ticks(0, 3)
        due = manager.next_due_ms()
        manager.replace(groups_of(ALERT), bench.query)
        assert manager.next_due_ms() == due
        assert manager.rules()[0].rules[0].evaluations == 2

    def test_alerts_of_a_removed_rule_end_and_are_told_as_resolved_but_not_sent(self, bench, sample, groups_of):
        manager = bench.manager(ALERT)
        bench.query.set("share > 0.3", sample(0.5, rank="0"))
        bench.ticks(0, 4)
        bench.written.take()
        manager.replace(groups_of(RECORD), bench.query)
        assert manager.alerts() == ()
        assert bench.ticks(4000, 1) == [("resolved", "Starved", {"rank": "0", "severity": "warning"})]
        assert manager.sendable() == ()

    def test_series_of_a_removed_rule_are_ended_at_the_next_evaluation_of_its_group(self, bench, sample, groups_of):
        manager = bench.manager(RECORD)
        bench.query.set("source", sample(2.0, rank="0"))
        bench.ticks(0, 2)
        bench.written.take()
        manager.replace(groups_of(RECORD.replace("a:b\n", "c:d\n")), bench.query)
        bench.ticks(2000, 1)
        rows = {(metric, value) for metric, _, value, _ in bench.written.take()}
        assert rows == {("c:d", 2.0), ("a:b", "stale")}

    def test_series_of_a_removed_group_are_ended_two_intervals_later(self, bench, sample, groups_of):
        manager = bench.manager(RECORD)
        bench.query.set("source", sample(2.0, rank="0"))
        bench.ticks(0, 2)
        last = manager.rules()[0].last_slot_ms
        manager.replace(groups_of(ALERT.replace("name: g", "name: other")), bench.query)
        bench.written.take()
        bench.ticks(2000, 4)
        (row,) = bench.written.take("a:b")
        assert row[2] == "stale"
        assert row[3] >= last + 2000

    def test_a_rule_moved_to_another_group_goes_on_writing_its_series(self, bench, sample, groups_of):
        manager = bench.manager(RECORD)
        bench.query.set("source", sample(2.0, rank="0"))
        bench.ticks(0, 2)
        bench.written.take()
        manager.replace(groups_of(RECORD.replace("name: g", "name: other")), bench.query)
        bench.ticks(2000, 6)
        assert {row[2] for row in bench.written.take("a:b")} == {2.0}

    def test_equal_rules_are_matched_first_to_first_and_second_to_second(self, bench, sample, groups_of):
        twice = ALERT + ALERT.split("rules:\n")[1].replace("share > 0.3", "other > 0.3")
        manager = bench.manager(twice)
        bench.query.set("other > 0.3", sample(0.5, rank="0"))
        bench.ticks(0, 4)
        manager.replace(groups_of(twice), bench.query)
        first, second = manager.rules()[0].rules
        assert (first.state, second.state) == (AlertState.INACTIVE, AlertState.FIRING)


@pytest.mark.parametrize("offset", [0, 333])
def test_groups_due_in_one_tick_are_evaluated_in_the_order_of_their_slots(bench, offset):
    text = "groups:\n" + "".join(
        f"- {{name: g{n}, interval: 1s, rules: [{{record: r{n}, expr: x{n}}}]}}\n" for n in range(5)
    )
    manager = bench.manager(text)
    manager.tick(offset)
    manager.tick(offset + 1000)
    times = [t for _, t in bench.query.asked]
    assert len(times) == 5
    assert times == sorted(times)
