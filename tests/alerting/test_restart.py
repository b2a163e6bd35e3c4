"""Alert state over a restart: nothing forgotten, nothing announced twice, down time by Prometheus's formulas."""

import math

import pytest

from sidecar.alerting.manager import TOUCH_EVERY_MS, Manager
from sidecar.alerting.persistence import Change, SqliteAlertStore
from sidecar.alerting.restore import RestoreSettings, restored_active_at
from sidecar.alerting.state import NEVER, Instance, Reading
from sidecar.errors import StateError
from sidecar.model import AlertState
from sidecar.statedb import StateDB

MINUTE, HOUR = 60_000, 3_600_000
RULES = """
groups:
- name: g
  interval: 1s
  rules:
  - alert: Quick
    expr: quick
    for: 2s
    annotations: {summary: "{{ $value }} on {{ $labels.rank }}"}
  - alert: Slow
    expr: slow[20m:1s] > 0
    for: 30m
  - alert: Kept
    expr: kept
    keep_firing_for: 10m
""".replace("slow[20m:1s] > 0", "avg_over_time(slow[2m]) > 0")
SLOW = "avg_over_time(slow[2m]) > 0"


class Sidecar:
    """A manager that can be killed and started again over the same database file."""

    def __init__(self, bench, groups_of, path):
        self.bench, self.groups_of, self.path, self.now = bench, groups_of, path, 1_000_000_000
        self.db = None

    def start(self, rules=RULES, **options):
        if self.db is not None:
            self.db.close()
        self.db = StateDB(self.path)
        self.manager = Manager(
            self.groups_of(rules),
            self.bench.query,
            self.bench.written,
            persistence=SqliteAlertStore(self.db),
            **options,
        )
        return self.run(0)

    def run(self, seconds):
        """Ticks now and then once a second; returns (edge, alert, restored)."""
        out = []
        for n in range(seconds + 1):
            self.now += 1000 if n else 0
            events = self.manager.tick(self.now)
            out += [(e.edge.value, e.alert.name, e.restored) for e in events]
        return out

    def states(self):
        return {alert.name: alert.state.value for alert in self.manager.alerts()}


@pytest.fixture
def sidecar(bench, groups_of, tmp_path):
    made = Sidecar(bench, groups_of, tmp_path / "state.db")
    yield made
    if made.db is not None:
        made.db.close()


def test_a_firing_alert_is_taken_over_and_told_as_restored_only(sidecar, bench, sample):
    sidecar.start()
    bench.query.set("quick", sample(0.5, rank="0"))
    assert sidecar.run(4) == [("pending", "Quick", False), ("firing", "Quick", False)]
    before = sidecar.manager.alerts()
    assert sidecar.start() == [("firing", "Quick", True)]
    assert sidecar.run(5) == []
    (after,) = sidecar.manager.alerts()
    assert (after.active_at_ms, after.fired_at_ms) == (before[0].active_at_ms, before[0].fired_at_ms)
    assert after.labels == before[0].labels


def test_a_restored_alert_is_not_resolved_by_a_store_that_is_still_empty(sidecar, bench, sample):
    sidecar.start()
    bench.query.set("quick", sample(0.5, rank="0"))
    sidecar.run(4)
    bench.query.set("quick")
    sidecar.start(restore=RestoreSettings(settle_ms=10_000))
    assert sidecar.run(9) == []
    bench.query.set("quick", sample(0.5, rank="0"))
    assert sidecar.run(5) == []
    bench.query.set("quick")
    assert sidecar.run(1) == [("resolved", "Quick", False)]


def test_a_restored_alert_that_does_not_come_back_resolves_when_sources_have_settled(sidecar, bench, sample):
    sidecar.start()
    bench.query.set("quick", sample(0.5, rank="0"))
    sidecar.run(4)
    bench.query.set("quick")
    sidecar.start(restore=RestoreSettings(settle_ms=10_000))
    assert sidecar.run(12) == [("resolved", "Quick", False)]


def test_the_hold_lasts_at_least_the_longest_window_of_the_expression(sidecar, bench, sample):
    sidecar.start()
    bench.query.set(SLOW, sample(1.0))
    sidecar.run(31 * 60)
    assert sidecar.states() == {"Slow": "firing"}
    bench.query.set(SLOW)
    sidecar.start(restore=RestoreSettings(settle_ms=10_000))
    assert sidecar.run(118) == []
    assert sidecar.run(4) == [("resolved", "Slow", False)]


def test_a_pending_alert_with_a_long_for_keeps_the_time_it_served(sidecar, bench, sample):
    sidecar.start()
    bench.query.set(SLOW, sample(1.0))
    sidecar.run(15 * 60)
    active = sidecar.manager.alerts()[0].active_at_ms
    sidecar.manager.close(sidecar.now)
    sidecar.now += 5 * MINUTE
    assert sidecar.start() == [("pending", "Slow", True)]
    assert sidecar.manager.alerts()[0].active_at_ms == active + 5 * MINUTE


def test_a_pending_alert_with_a_short_for_starts_anew_as_in_prometheus(sidecar, bench, sample):
    sidecar.start()
    bench.query.set("quick", sample(0.5, rank="0"))
    sidecar.run(1)
    assert sidecar.start() == []
    assert sidecar.run(1) == [("pending", "Quick", False)]


@pytest.mark.parametrize(
    ("served", "down", "expected"),
    [
        (30 * MINUTE, HOUR, "kept"),  # it had fired: as it was
        (31 * MINUTE, 1, "kept"),
        (25 * MINUTE, 3 * MINUTE, "grace"),  # under ten minutes left: it waits ten
        (10 * MINUTE, 7 * MINUTE, "shifted"),  # else the down time does not count
        (20 * MINUTE, 7 * MINUTE, "shifted"),
    ],
)
def test_active_since_after_an_outage_follows_prometheus(served, down, expected):
    for_ms, grace, active = 30 * MINUTE, 10 * MINUTE, 1_000_000
    down_at = active + served
    now = down_at + down
    got = restored_active_at(active, down_at, now, for_ms, grace)
    assert got == {"kept": active, "grace": now + grace - for_ms, "shifted": active + down}[expected]
    if expected == "grace":
        assert got + for_ms == now + grace


def test_after_too_long_an_outage_saved_alerts_are_dropped(sidecar, bench, sample):
    sidecar.start()
    bench.query.set("quick", sample(0.5, rank="0"))
    sidecar.run(4)
    sidecar.manager.close(sidecar.now)
    sidecar.now += HOUR + 1
    assert sidecar.start() == []
    assert sidecar.run(3) == [("pending", "Quick", False), ("firing", "Quick", False)]


def test_a_long_firing_alert_survives_a_crash_because_being_alive_is_noted(sidecar, bench, sample):
    sidecar.start()
    bench.query.set("quick", sample(0.5, rank="0"))
    sidecar.run(4)
    for _ in range(90):
        sidecar.now += TOUCH_EVERY_MS - 1000
        sidecar.run(1)
    assert sidecar.start() == [("firing", "Quick", True)]


def test_a_resolved_alert_is_remembered_over_a_restart_and_not_told_again(sidecar, bench, sample):
    sidecar.start(resend_delay_ms=MINUTE)
    bench.query.set("quick", sample(0.5, rank="0"))
    sidecar.run(4)
    bench.query.set("quick")
    sidecar.run(1)
    assert sidecar.start(resend_delay_ms=MINUTE) == []
    due = 0
    for _ in range(70):
        sidecar.run(1)
        due += len(sidecar.manager.sendable())
    assert due == 1
    assert sidecar.manager.alerts() == ()


def test_keep_firing_for_goes_on_counting_over_a_restart(sidecar, bench, sample):
    sidecar.start()
    bench.query.set("kept", sample(1.0))
    sidecar.run(3)
    bench.query.set("kept")
    sidecar.run(9 * 60)
    assert sidecar.start(restore=RestoreSettings(settle_ms=1000)) == [("firing", "Kept", True)]
    assert sidecar.run(50) == []
    assert sidecar.run(20) == [("resolved", "Kept", False)]


def test_alerts_of_rules_that_are_gone_are_forgotten_on_disk_too(sidecar, bench, sample):
    sidecar.start()
    bench.query.set("quick", sample(0.5, rank="0"))
    sidecar.run(4)
    assert sidecar.start(RULES.replace("Quick", "Other")) == []
    assert sidecar.start() == []


def test_alerts_of_a_rule_removed_by_a_reload_are_forgotten_on_disk_too(sidecar, bench, sample, groups_of):
    sidecar.start()
    bench.query.set("quick", sample(0.5, rank="0"))
    sidecar.run(4)
    sidecar.manager.replace(groups_of(RULES.replace("Quick", "Other")), bench.query)
    sidecar.run(1)
    assert sidecar.start() == []


def test_two_equal_rules_get_their_own_alerts_back(sidecar, bench, sample):
    twice = RULES + RULES.split("rules:\n")[1].split("  - alert: Slow")[0].replace("expr: quick", "expr: second")
    sidecar.start(twice)
    bench.query.set("second", sample(0.5, rank="0"))
    sidecar.run(4)
    sidecar.start(twice)
    states = [rule.state.value for rule in sidecar.manager.rules()[0].rules]
    assert states == ["inactive", "inactive", "inactive", "firing"]


def test_annotations_of_an_alert_not_seen_since_the_restart_use_its_own_labels(sidecar, bench, sample):
    sidecar.start()
    bench.query.set("quick", sample(0.5, rank="0"))
    sidecar.run(4)
    sidecar.start()
    bench.query.set("quick")
    assert sidecar.manager.alerts()[0].annotations == (("summary", "0.5 on 0"),)


def test_a_database_that_cannot_be_written_does_not_stop_alerting_and_is_tried_again(bench, sample, groups_of):
    class Broken:
        def __init__(self):
            self.saved, self.broken = [], True

        def load(self):
            raise StateError("disk gone")

        def save(self, changes, now_ms):
            if self.broken:
                raise StateError("disk full")
            self.saved += changes

        def touch(self, now_ms):
            return None

    broken = Broken()
    bench.manager(RULES, persistence=broken)
    bench.query.set("quick", sample(0.5, rank="0"))
    assert [edge for edge, _, _ in bench.ticks(0, 5)] == ["pending", "firing"]
    assert bench.live.persistence_error == "disk full"
    assert bench.live.stats().persistence_failures >= 2
    broken.broken = False
    bench.ticks(5000, 1)
    assert [(c.instance.state, dict(c.labels)["rank"]) for c in broken.saved] == [(AlertState.FIRING, "0")]


class TestTable:
    def instance(self, value=1.0, **times):
        labels = (("alertname", "A"), ("text", 'ü "quoted"'))
        return Instance(labels, AlertState.FIRING, Reading(labels, value, 5), active_at_ms=1, **times)

    def saved(self, tmp_path, instance):
        db = StateDB(tmp_path / "state.db")
        store = SqliteAlertStore(db)
        store.save([Change("key", instance.labels, instance)], 77)
        (row,) = store.load()
        db.close()
        return row

    @pytest.mark.parametrize("value", [0.1, math.inf, -math.inf, -0.0])
    def test_what_is_saved_is_what_is_loaded(self, tmp_path, value):
        row = self.saved(tmp_path, self.instance(value, fired_at_ms=2, keep_firing_since_ms=4, last_sent_at_ms=3))
        assert (row.key, row.seen_at_ms) == ("key", 77)
        got = row.instance
        assert got.labels == self.instance().labels
        assert got.reading.value == value
        assert (got.fired_at_ms, got.keep_firing_since_ms, got.last_sent_at_ms) == (2, 4, 3)
        assert got.resolved_at_ms == NEVER

    def test_nan_comes_back_as_nan(self, tmp_path):
        assert math.isnan(self.saved(tmp_path, self.instance(math.nan)).instance.reading.value)

    def test_a_row_that_makes_no_sense_is_reported_with_the_file(self, tmp_path):
        db = StateDB(tmp_path / "state.db")
        SqliteAlertStore(db).save([Change("key", (), self.instance())], 77)
        db.connection.execute("UPDATE alerts SET state='burning'")
        with pytest.raises(StateError, match=r"state\.db: alert state cannot be read"):
            SqliteAlertStore(db).load()
        db.close()

    def test_all_changes_of_a_tick_are_one_transaction(self, tmp_path):
        db = StateDB(tmp_path / "state.db")
        store = SqliteAlertStore(db)
        good = Change("a", (("n", "1"),), self.instance())
        bad = Change("b", (("n", "2"),), self.instance(fired_at_ms=1 << 70))
        with pytest.raises(StateError):
            store.save([good, bad], 1)
        assert store.load() == []
        db.close()

    def test_a_closed_database_is_a_state_error(self, tmp_path):
        db = StateDB(tmp_path / "state.db")
        db.close()
        store = SqliteAlertStore(db)
        for call in (store.load, lambda: store.save([Change("k", (), None)], 1), lambda: store.touch(1)):
            with pytest.raises(StateError):
                call()
