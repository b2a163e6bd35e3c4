"""Rules over the real store and engine: what a rule writes, the next rule and the next tick can read."""

import pytest

from sidecar import promql
from sidecar.alerting.manager import Manager
from sidecar.alerting.writing import StoreWriter
from sidecar.model import STALE
from sidecar.store import Store

RULES = """
groups:
- name: g
  interval: 1s
  rules:
  - record: rank:load:sum
    expr: sum without (core) (load)
  - alert: Busy
    expr: rank:load:sum > 1
    for: 2s
    annotations: {seen: '{{ with query "count(load)" }}{{ . | first | value }}{{ end }}'}
  - alert: AnyBusy
    expr: count without (rank) (ALERTS{alertname="Busy", alertstate="firing"})
"""


class Sidecar:
    def __init__(self, groups):
        self.store = Store()
        self.handles = {}
        self.writer = StoreWriter(self.store)
        self.manager = Manager(groups, self.query, self.writer, look=self.look, default_interval_ms=1000)
        program = promql.compile(self.manager.exprs())
        self.store.reserve(program.needs())
        self.evaluator = program.bind(self.store)

    def query(self, expr, t_ms):
        return self.evaluator.at(expr, t_ms)

    def look(self, expr, t_ms):
        return promql.evaluate(self.store, expr, t_ms)

    def second(self, now_ms, **loads):
        """One second of life: a sample of each rank's two cores, then a tick."""
        for rank, load in loads.items():
            for core in "01":
                handle = self.store.series("load", {"rank": rank, "core": core}, rank + core)
                self.store.push(handle.block, now_ms, {handle.column: load})
        return [(e.edge.value, e.alert.name) for e in self.manager.tick(now_ms)]

    def value(self, expr, now_ms):
        return {labels: value for labels, value in promql.evaluate(self.store, expr, now_ms)}


@pytest.fixture
def sidecar(groups_of):
    return Sidecar(groups_of(RULES))


def test_recorded_series_and_alerts_are_seen_by_later_rules_of_the_same_tick(sidecar):
    edges = [sidecar.second(now, r0=1.0, r1=0.1) for now in range(0, 6000, 1000)]
    assert edges == [[], [("pending", "Busy")], [], [("firing", "Busy"), ("firing", "AnyBusy")], [], []]


def test_what_is_over_is_gone_from_the_store_at_once(sidecar):
    for now in range(0, 6000, 1000):
        sidecar.second(now, r0=1.0)
    assert len(sidecar.value("ALERTS", 6000)) == 2
    edges = [edge for now in (6000, 7000) for edge in sidecar.second(now, r0=0.1)]
    assert edges == [("resolved", "Busy"), ("resolved", "AnyBusy")]
    assert sidecar.value("ALERTS", 7000) == {}
    assert sidecar.value("ALERTS_FOR_STATE", 7000) == {}


def test_a_template_asks_the_store_as_it_was_at_its_evaluation(sidecar):
    for now in range(0, 5000, 1000):
        sidecar.second(now, r0=1.0)
    (alert,) = [a for a in sidecar.manager.alerts() if a.name == "Busy"]
    assert alert.annotations == (("seen", "2"),)


def test_a_rule_set_can_be_replaced_while_alerts_are_firing(sidecar, groups_of):
    for now in range(0, 6000, 1000):
        sidecar.second(now, r0=1.0)
    groups = groups_of(RULES.replace("> 1", "> 0.5"))
    program = promql.compile([rule.expr for group in groups for rule in group.rules])
    evaluator = program.bind(sidecar.store)
    sidecar.manager.replace(groups, evaluator.at, sidecar.look)
    edges = [edge for now in (6000, 7000, 8000) for edge in sidecar.second(now, r0=0.4)]
    assert edges == []
    assert {a.state.value for a in sidecar.manager.alerts()} == {"firing"}


class TestWriter:
    def rows(self, store, metric, t_ms):
        return dict(promql.evaluate(store, metric, t_ms))

    def test_rows_of_one_instant_may_come_in_several_calls(self):
        store = Store()
        write = StoreWriter(store)
        write("rule", 1000, [("a", (("n", "1"),), 1.0)])
        write("rule", 1000, [("a", (("n", "2"),), 2.0), ("b", (), 3.0)])
        assert sorted(self.rows(store, "a", 1000).values()) == [1.0, 2.0]
        assert list(self.rows(store, "b", 1000).values()) == [3.0]

    def test_an_ended_series_can_come_back(self):
        store = Store()
        write = StoreWriter(store)
        for t_ms, value in [(1000, 1.0), (2000, STALE), (3000, 3.0)]:
            write("rule", t_ms, [("a", (), value)])
        values = [list(self.rows(store, "a", t).values()) for t in (1500, 2500, 3500)]
        assert values == [[1.0], [], [3.0]]

    def test_rows_over_a_limit_on_series_are_counted_and_the_others_written(self):
        store = Store(max_series_per_metric=10)
        write = StoreWriter(store)
        write("rule", 1000, [("a", (("n", str(n)),), 1.0) for n in range(12)])
        assert write.refused == 2
        assert len(self.rows(store, "a", 1000)) == 10

    def test_rules_with_different_offsets_do_not_get_in_each_others_way(self):
        store = Store()
        write = StoreWriter(store)
        write("one", 60_000, [("ALERTS", (("alertname", "A"),), 1.0)])
        write("two", 30_000, [("ALERTS", (("alertname", "B"),), 1.0)])
        assert len(self.rows(store, "ALERTS", 60_000)) == 2
        assert store.stats().rejected_out_of_order == 0
