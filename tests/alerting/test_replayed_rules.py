"""What rules read of the past, and that it is read no sooner than it is needed."""

import pytest

from sidecar.alerting.backtest import backtest, reads, recorded
from sidecar.model import STALE
from sidecar.promql import compile


class Past:
    """A source that says how far it was read; samples every second."""

    def __init__(self, values, extent=None):
        self.values, self.read_ms, self.asked = values, -1, None
        self._extent = extent

    def extent(self):
        return self._extent

    def rows(self, start_ms, end_ms):
        self.asked = start_ms, end_ms
        for t_ms in range(max(start_ms, 0), end_ms + 1, 1000):
            self.read_ms = t_ms
            yield t_ms, (("__name__", "x"),), self.values(t_ms)


def test_rules_read_what_they_do_not_record_themselves(groups_of):
    found = reads(
        groups_of("""
groups:
- name: g
  rules:
  - record: own
    expr: rate(x{a="1",b=~"q\\"|\\\\d"}[5m]) + other
  - alert: A
    expr: own offset 1h > 1 and ALERTS
    annotations: {text: '{{ query "asked" | first | value }}'}
""")
    )
    assert found.metrics == {"x", "other", "asked"}
    assert found.span_ms == 3_900_000
    x, *_ = found.selectors
    assert compile([x]).node(x) == compile(['x{a="1",b=~"q\\"|\\\\d"}']).node('x{a="1",b=~"q\\"|\\\\d"}')


def test_a_selector_without_a_name_reads_everything(groups_of):
    groups = groups_of("""groups: [{name: g, rules: [{alert: A, expr: '{job="a"}'}]}]""")
    assert reads(groups).metrics is None
    assert recorded(groups) == {"ALERTS", "ALERTS_FOR_STATE"}


def test_the_past_is_read_as_the_clock_goes_and_from_early_enough(groups_of):
    groups = groups_of(
        "groups: [{name: g, rules: [{alert: A, expr: 'max_over_time(x[10m]) > 0', for: 2m}, {alert: B, expr: x > 0}]}]"
    )
    past = Past(lambda t_ms: 1.0)
    ahead = []
    replay = backtest(groups, past, 3_600_000, 3_700_000, 5000, progress=lambda t_ms: ahead.append(past.read_ms - t_ms))
    # a window, the `for`, and a window before the first evaluation; B never fires anew within the time
    assert past.asked == (3_600_000 - 600_000 - 120_000 - 600_000, 3_700_000)
    assert set(ahead) <= {0, 1000}
    assert [(t.alert, t.fired, t.firing_ms) for t in replay.totals] == [("A", 1, 100_000), ("B", 1, 100_000)]


def test_the_same_rule_name_in_two_places_is_one_total(groups_of):
    groups = groups_of("""
groups:
- name: first
  rules:
  - {alert: A, expr: x == 1, labels: {severity: info}}
- name: second
  interval: 5s
  rules:
  - {alert: A, expr: x >= 1, labels: {severity: warning}}
""")
    past = Past(lambda t_ms: 1.0 if t_ms < 20_000 else STALE if t_ms == 20_000 else 0.0, extent=(0, 60_000))
    replay = backtest(groups, past, 0, 60_000, 5000)
    (total,) = replay.totals
    assert (total.group, total.severity, total.fired, total.firing_ms) == ("first", "info", 2, 20_000)
    assert [f.resolved_at_ms for f in replay.firings] == [20_000, 20_000]


def test_dense_and_sparse_evaluation_agree_where_both_look(groups_of):
    """Below five seconds windows are moved, from there on they are read anew."""
    groups = groups_of("groups: [{name: g, rules: [{alert: A, expr: 'rate(x[20s]) > 0.5'}]}]")
    past = Past(lambda t_ms: float(t_ms // 1000 * (t_ms % 100_000 > 50_000)), extent=(0, 600_000))
    dense, sparse = ([f.alert.fired_at_ms for f in backtest(groups, past, 0, 600_000, s).firings] for s in (1000, 5000))
    assert len(dense) == 6
    assert [-(-t // 5000) * 5000 for t in dense] == sparse


@pytest.mark.parametrize(("offset", "fired"), [("0s", 30_000), ("10s", 40_000), ("4m", 270_000)])
def test_a_query_offset_moves_what_is_seen(groups_of, offset, fired):
    groups = groups_of(
        f"groups: [{{name: g, query_offset: {offset}, rules: [{{alert: A, expr: 'max_over_time(x[5s]) > 0'}}]}}]"
    )
    past = Past(lambda t_ms: float(t_ms >= 30_000), extent=(0, 300_000))
    (firing,) = backtest(groups, past, 0, 300_000, 1000).firings
    assert firing.alert.fired_at_ms == fired
