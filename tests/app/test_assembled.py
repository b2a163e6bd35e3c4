"""The sidecar assembled: its own metrics, parts that fail, reloads that are taken whole or not at all."""

import asyncio
import gc
import sqlite3
import threading

import pytest
from pydantic import model_validator

from sidecar import promql
from sidecar.app.rulebook import load_rulebook
from sidecar.app.selfmetrics import METRICS
from sidecar.app.sidecar import Sidecar
from sidecar.clock import FakeClock
from sidecar.errors import ConfigError, StateError
from sidecar.hooks import CollectorSettings
from sidecar.model import Availability, MetricInfo, Sample, Status
from sidecar.plugins import COLLECTORS, Registry
from sidecar.settings import load


class Thermometer:
    """A collector that reports how often it may be read, so that its settings can be seen on the page."""

    name = "thermometer"
    settings = CollectorSettings
    metrics = (MetricInfo("spikewatch_room_interval_seconds", "gauge", "seconds", "How often it is read."),)

    def __init__(self, settings):
        self.seconds = settings.interval / 1000

    def probe(self):
        return Status(Availability.AVAILABLE)

    def sample(self, now_ms):
        yield Sample("spikewatch_room_interval_seconds", (), self.seconds)

    def close(self):
        pass


@pytest.fixture
def sidecar(folder, request):
    """A whole sidecar without listeners, on a loop of its own: `sidecar.run(coroutine)`."""
    registry = Registry()
    registry.discover()
    registry.register(COLLECTORS, Thermometer)
    loaded = folder.loaded()
    lines = []
    made = Sidecar(
        folder.path / "spikewatch.yaml",
        loaded,
        load_rulebook(loaded, registry),
        registry,
        FakeClock(1_000_000),
        environ={},
        write_line=lines.append,
    )
    with asyncio.Runner() as runner:
        made.run = runner.run
        runner.run(made.start())
        yield made
        runner.run(made.stop())


def tick(sidecar, times=1):
    for _ in range(times):
        sidecar.clock.advance(1000)
        sidecar.tick()
        assert sidecar.collectors.settle(10)


def page(sidecar):
    """Name and labels → value."""
    lines = sidecar.exposition.page()[0].decode().splitlines()
    return {series: float(v) for series, _, v in (line.rpartition(" ") for line in lines if not line.startswith("#"))}


# --- own metrics ----------------------------------------------------------------------------------------------------


def test_every_metric_of_its_own_is_described_and_every_description_has_its_metric(sidecar):
    tick(sidecar)
    sidecar.vitals.failed("alerting")
    samples = list(sidecar.samples())
    described = {info.name: info for info in METRICS}
    assert {s.metric for s in samples} == set(described)
    for sample in samples:
        assert {name for name, _ in sample.labels} == set(described[sample.metric].labels)


def test_nothing_on_the_page_is_missing_in_the_catalogue(sidecar):
    tick(sidecar, 3)
    text = sidecar.exposition.page()[0].decode()
    assert " unknown\n" not in text
    assert " untyped\n" not in text
    names = {series.partition("{")[0] for series in page(sidecar)}
    known = {info.name for info in sidecar.catalogue()}
    assert {n.replace("spikewatch_alerts", "ALERTS") for n in names} - known <= {"ALERTS"}


def test_ticks_and_evaluations_are_counted(sidecar):
    tick(sidecar, 3)
    seen = page(sidecar)
    assert seen["spikewatch_ticks_total"] == 3
    assert seen["spikewatch_rule_evaluations_total"] == 4  # two rules, which the first tick only puts on their clock
    assert seen["spikewatch_config_last_reload_successful"] == 1


# --- parts that fail ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["channel", "collectors", "manager", "responder"])
def test_a_part_that_fails_is_counted_and_the_others_have_their_turn(sidecar, monkeypatch, part):
    names = {"channel": "trainer", "collectors": "collectors", "manager": "alerting", "responder": "responses"}

    def broken(now_ms):
        raise ZeroDivisionError

    turns = []
    for name in names:
        own = getattr(sidecar, name)
        real = own.tick
        monkeypatch.setattr(
            own,
            "tick",
            broken if name == part else lambda now, *more, n=name, tick=real: (turns.append(n), tick(now, *more))[1],
        )
    tick(sidecar, 2)
    assert turns == [name for name in names if name != part] * 2
    assert page(sidecar)[f'spikewatch_tick_errors_total{{part="{names[part]}"}}'] == 2


def test_a_journal_that_cannot_be_written_does_not_stop_the_alerts(sidecar, monkeypatch):
    def refuse(now_ms):
        raise StateError("the disk is full")

    monkeypatch.setattr(sidecar.responder, "tick", refuse)
    tick(sidecar, 2)
    seen = page(sidecar)
    assert seen["spikewatch_rule_evaluations_total"] == 2
    assert seen['spikewatch_tick_errors_total{part="responses"}'] == 2


# --- reload ---------------------------------------------------------------------------------------------------------


def test_a_reload_with_a_problem_anywhere_keeps_all_that_runs(sidecar, folder):
    tick(sidecar)
    before = (sidecar.rulebook, sidecar.notifier, sidecar.collectors, sidecar.responder.exprs())
    for spoil in (
        lambda: folder.write("one.rules.yaml", {"groups": [{"name": "g", "rules": [{"alert": "A", "expr": "("}]}]}),
        lambda: folder.write("responses.yaml", {"responses": [{"name": "x"}]}),
        lambda: folder.config(collectors={"thermometer": {"interval": "soon"}}),
        lambda: folder.config(alertmanagers=[{"url": "https://a", "tls": {"ca_file": "missing.pem"}}]),
    ):
        spoil()
        with pytest.raises(ConfigError):
            sidecar.run(sidecar.reload())
        assert (sidecar.rulebook, sidecar.notifier, sidecar.collectors, sidecar.responder.exprs()) == before
        assert page(sidecar)["spikewatch_config_last_reload_successful"] == 0
    tick(sidecar)
    assert page(sidecar)["spikewatch_rule_evaluations_total"] == 2


def test_a_bug_while_loading_counts_as_a_refused_reload(sidecar, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError

    monkeypatch.setattr("sidecar.app.sidecar.load_rulebook", broken)
    with pytest.raises(ZeroDivisionError):
        sidecar.run(sidecar.reload())
    assert page(sidecar)["spikewatch_config_last_reload_successful"] == 0


def test_a_good_reload_after_a_bad_one_counts_as_good_and_changes_the_hash(sidecar, folder):
    before = page(sidecar)["spikewatch_config_hash"]
    good = (folder.path / "one.rules.yaml").read_text()
    folder.write("one.rules.yaml", "groups: [")
    with pytest.raises(ConfigError):
        sidecar.run(sidecar.reload())
    folder.write("one.rules.yaml", good + "\n\n")
    sidecar.run(sidecar.reload())
    after = page(sidecar)
    assert after["spikewatch_config_last_reload_successful"] == 1
    assert after["spikewatch_config_hash"] != before


def test_a_reload_that_the_journal_cannot_note_is_taken_whole_all_the_same(sidecar, folder, monkeypatch):
    def refuse(responses, caps, now_ms):
        raise StateError("the disk is full")

    monkeypatch.setattr(sidecar.responder, "replace", refuse)
    folder.write("one.rules.yaml", {"groups": []})
    sidecar.run(sidecar.reload())
    tick(sidecar)
    assert page(sidecar)["spikewatch_rule_evaluations_total"] == 0
    assert page(sidecar)['spikewatch_tick_errors_total{part="responses"}'] == 1


def test_collectors_follow_a_reload(sidecar, folder):
    tick(sidecar, 2)
    assert page(sidecar)["spikewatch_room_interval_seconds"] == 1
    folder.config(collectors={"process": {"enabled": False}, "thermometer": {"interval": "2s"}})
    sidecar.run(sidecar.reload())
    tick(sidecar, 4)
    assert page(sidecar)["spikewatch_room_interval_seconds"] == 2
    folder.config(collectors={"process": {"enabled": False}, "thermometer": {"enabled": False}})
    sidecar.run(sidecar.reload())
    tick(sidecar)
    left = page(sidecar)
    assert "spikewatch_room_interval_seconds" not in left
    assert not [series for series in left if 'collector="thermometer"' in series]


def test_a_reload_without_a_change_leaves_the_collectors_alone(sidecar):
    before = sidecar.collectors
    sidecar.run(sidecar.reload())
    assert sidecar.collectors is before


@pytest.fixture
def slow(sidecar):
    """A collector whose settings are read only when the test says so: `entered` and `go` are events."""

    class Slow(Thermometer):
        name = "slow"
        metrics = ()
        entered, go = threading.Event(), threading.Event()

    class SlowSettings(CollectorSettings):
        @model_validator(mode="after")
        def wait(self):
            Slow.entered.set()
            assert Slow.go.wait(60)
            return self

    Slow.settings = SlowSettings
    sidecar._registry.register(COLLECTORS, Slow)
    yield Slow
    Slow.go.set()


async def until(event):
    assert await asyncio.to_thread(event.wait, 60)


def test_rules_are_evaluated_while_others_are_loaded(sidecar, folder, slow):
    folder.write("one.rules.yaml", {"groups": [{"name": "g", "rules": [{"alert": "New", "expr": "vector(1)"}]}]})
    tick(sidecar)

    async def story():
        reloading = asyncio.create_task(sidecar.reload())
        await until(slow.entered)
        before = sidecar.manager.stats().evaluations
        for _ in range(3):
            tick(sidecar)
            await asyncio.sleep(0)  # whoever waits for the loop has his turn
        assert sidecar.manager.stats().evaluations > before
        assert not reloading.done()
        assert "New" not in {rule.name for group in sidecar.rulebook.groups for rule in group.rules}
        slow.go.set()
        await reloading
        assert gc.isenabled()

    sidecar.run(story())
    tick(sidecar, 2)
    assert [alert.name for alert in sidecar.manager.alerts()] == ["New"]


def test_of_two_reloads_at_once_the_second_waits_and_sees_the_newest_files(sidecar, folder, slow):
    async def story():
        first = asyncio.create_task(sidecar.reload())
        await until(slow.entered)
        slow.entered.clear()
        folder.write("one.rules.yaml", {"groups": [{"name": "g", "rules": [{"alert": "Newest", "expr": "vector(1)"}]}]})
        second = asyncio.create_task(sidecar.reload())
        await asyncio.sleep(0)
        assert not slow.entered.is_set()
        slow.go.set()
        await asyncio.gather(first, second)

    sidecar.run(story())
    assert [rule.name for group in sidecar.rulebook.groups for rule in group.rules] == ["Newest"]


def test_a_reload_that_is_loaded_when_the_sidecar_has_stopped_starts_nothing(sidecar, folder, slow):
    async def story():
        before = sidecar.rulebook, sidecar.notifier, sidecar.collectors
        reloading = asyncio.create_task(sidecar.reload())
        await until(slow.entered)
        await sidecar.stop()
        slow.go.set()
        assert await reloading == ()
        assert (sidecar.rulebook, sidecar.notifier, sidecar.collectors) == before

    sidecar.run(story())


def test_making_an_evaluator_reads_nothing_of_the_store(sidecar):
    """It is made in another thread than the one that writes."""
    for group in load_rulebook(load(None, {}), sidecar._registry).groups:
        for rule in group.rules:
            promql.compile([rule.expr]).bind(object())


def test_external_labels_and_resend_delay_follow_a_reload(sidecar, folder):
    folder.write("one.rules.yaml", {"groups": [{"name": "g", "rules": [{"alert": "On", "expr": "vector(1)"}]}]})
    folder.config(external_labels={"cluster": "eu"}, resend_delay="2s")
    sidecar.run(sidecar.reload())
    sent = []
    for _ in range(6):
        tick(sidecar)
        sent.append([dict(n.labels).get("cluster") for n in sidecar.manager.sendable()])
    assert [cluster for notes in sent for cluster in notes] == ["eu"] * 2  # at once, and after the delay


# --- alone ----------------------------------------------------------------------------------------------------------


def another(folder, sidecar):
    return Sidecar(
        None, folder.loaded(), sidecar.rulebook, sidecar._registry, FakeClock(), environ={}, write_line=print
    )


def test_a_state_folder_has_one_sidecar_at_a_time(sidecar, folder):
    with pytest.raises(StateError, match="in use by another sidecar"):
        another(folder, sidecar)
    sidecar.run(sidecar.stop())
    sidecar.run(another(folder, sidecar).stop())


def test_one_that_never_began_leaves_no_word_in_the_journal(sidecar, folder):
    path = sidecar.db.path
    sidecar.run(sidecar.stop())
    count = "SELECT count(*) FROM journal"
    connection = sqlite3.connect(path)
    before = connection.execute(count).fetchone()
    sidecar.run(another(folder, sidecar).stop())
    assert connection.execute(count).fetchone() == before
    connection.close()


def test_a_state_folder_that_cannot_be_made_is_named(sidecar, folder):
    folder.write("file", "")
    loaded = folder.loaded(state_dir="file/state")
    with pytest.raises(StateError, match="state_dir .*file/state cannot be used"):
        Sidecar(None, loaded, sidecar.rulebook, sidecar._registry, FakeClock(), environ={}, write_line=print)


# --- the end --------------------------------------------------------------------------------------------------------


def test_after_stop_the_journal_says_so_and_the_database_is_closed(sidecar):
    tick(sidecar)
    path = sidecar.db.path
    sidecar.run(sidecar.stop())
    with pytest.raises(sqlite3.ProgrammingError):
        sidecar.db.connection.execute("SELECT 1")
    connection = sqlite3.connect(path)
    assert (
        connection.execute("SELECT data FROM journal ORDER BY id DESC LIMIT 1")
        .fetchone()[0]
        .startswith('{"event":"interrupted"')
    )
    connection.close()


def test_a_group_that_is_evaluated_in_the_past_finds_its_whole_window_there():
    from sidecar.app.sidecar import _spans

    rules, judged = promql.compile(["rate(x[10m])"]), promql.compile(["rate(y[1m])"])
    spans = _spans(rules.needs(), judged, {"rate(y[1m])": 180_000}, behind_ms=1_200_000)
    assert spans["x"] == 600_000 + 1_200_000
    assert spans["y"] == 60_000 + 180_000


def test_what_responses_stopped_doing_is_a_series_that_a_rule_can_be_about(sidecar, folder):
    rule = {"alert": "Stopped", "expr": "spikewatch_kill_switch_on == 1"}
    folder.write("one.rules.yaml", {"groups": [{"name": "g", "rules": [rule]}]})
    sidecar.run(sidecar.reload())
    tick(sidecar, 3)
    assert page(sidecar)["spikewatch_kill_switch_on"] == 0
    sidecar.switch.engage("ada", "", sidecar.clock.now_ms())
    tick(sidecar, 3)
    assert page(sidecar)["spikewatch_kill_switch_on"] == 1
    assert [a.name for a in sidecar.manager.alerts()] == ["Stopped"]


def test_the_price_of_a_gpu_is_a_series_that_a_rule_can_reckon_with_and_no_price_is_no_series(sidecar, folder):
    rule = {"record": "waste", "expr": "0.3 * spikewatch_usd_per_gpu_hour * spikewatch_priced_gpus"}
    folder.write("one.rules.yaml", {"groups": [{"name": "g", "rules": [rule]}]})
    sidecar.run(sidecar.reload())
    tick(sidecar, 3)
    assert not {"waste", "spikewatch_usd_per_gpu_hour", "spikewatch_priced_gpus"} & page(sidecar).keys()
    folder.config(usd_per_gpu_hour=2.5, gpus=8)
    sidecar.run(sidecar.reload())
    tick(sidecar, 3)
    assert page(sidecar)["spikewatch_usd_per_gpu_hour"] == 2.5
    assert page(sidecar)["waste"] == pytest.approx(6)
    folder.config(usd_per_gpu_hour=2.5)
    sidecar.run(sidecar.reload())
    tick(sidecar, 2)
    assert not {"waste", "spikewatch_priced_gpus"} & page(sidecar).keys()
