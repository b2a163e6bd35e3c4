"""What remediations see, what their responses may not do, and what is remembered of the money over a restart."""

from __future__ import annotations

import json

import pytest

from remediations.batch_size import BatchSize
from remediations.precision_bf16 import PrecisionBf16
from sidecar.app import money, views
from sidecar.app.rulebook import load_rulebook
from sidecar.errors import ConfigError
from sidecar.hooks import Reading, Remediation, View
from sidecar.model import Alert, AlertState, Knob, Skip, TrainerIdentity
from sidecar.plugins import details
from sidecar.responses.journal import Entry, Journal
from sidecar.responses.measure import Increments
from sidecar.responses.response import Mode
from sidecar.responses.savings import HOUR_MS, Savings
from sidecar.statedb import StateDB

READING = Reading("avg(x)", back_ms=60_000)


class Measured:
    """A sample a second, its own time as value; notes what it is asked for."""

    def __init__(self):
        self.asked = []
        self.missing = set()  # times whose samples have not arrived yet

    def increments(self, expr, after_ms, until_ms):
        self.asked.append((expr, after_ms, until_ms))
        times = range(after_ms // 1000 * 1000 + 1000, until_ms + 1, 1000)
        return Increments([(t, float(t)) for t in times if t not in self.missing], 1)


@pytest.fixture
def world():
    """(sights, measure, a function that sets the time)."""
    now, measure = [100_000], Measured()
    return views.Sights(measure, lambda: now[0]), measure, lambda t: now.__setitem__(0, t)


def test_a_series_is_read_back_as_far_as_it_is_asked_for(world):
    sights, _, _ = world
    points = sights.points(READING)
    assert (points[0], points[-1], len(points)) == ((41_000, 41_000.0), (100_000, 100_000.0), 60)


def test_afterwards_only_what_is_new_or_may_have_come_late_is_read(world):
    sights, measure, at = world
    sights.points(READING)
    at(103_000)
    points = sights.points(READING)
    assert [t for t, _ in points] == list(range(44_000, 103_001, 1000))
    assert measure.asked == [("avg(x)", 40_000, 100_000), ("avg(x)", 100_000 - views.LATE_MS, 103_000)]


def test_a_sample_that_comes_late_is_seen(world):
    sights, measure, at = world
    measure.missing = {99_000}
    assert (99_000, 99_000.0) not in sights.points(READING)
    measure.missing = set()
    at(101_000)
    assert (99_000, 99_000.0) in sights.points(READING)


def test_within_one_tick_nothing_is_read_twice(world):
    sights, measure, _ = world
    assert sights.points(READING) == sights.points(READING)
    assert len(measure.asked) == 1


def test_after_a_long_pause_nothing_older_than_asked_for_is_left(world):
    sights, _, at = world
    sights.points(READING)
    at(1_000_000)
    assert sights.points(READING)[0][0] == 941_000


def test_a_remediation_gets_its_series_with_the_view_and_is_else_itself(world):
    sights, _, _ = world

    class Asking(BatchSize):
        details = type(details(BatchSize()))(reads={"loss": READING})

        def plan(self, alert, view, params):
            return Skip("seen", str(len(view.series["loss"])))

    plain = PrecisionBf16()
    seen = views.seeing({"asking": Asking(), "precision_bf16": plain}, sights)
    assert seen["precision_bf16"] is plain
    asking = seen["asking"]
    assert isinstance(asking, Remediation)
    assert (asking.name, asking.knobs) == ("batch_size", BatchSize.knobs)
    assert details(asking).reads == {"loss": READING}
    who = TrainerIdentity("job", "1", ("a",), (0,), 1)
    view = View({"x": Knob("x", 1)}, who, {"cpu_quota": 1.0})
    assert asking.plan(Alert("A", (), (), AlertState.FIRING, 1, 0), view, None) == Skip("seen", "60")
    assert view.series == {}


def test_what_is_read_is_known_for_the_remediations_that_are_used():
    plugins = {"batch_size": BatchSize(), "precision_bf16": PrecisionBf16()}
    assert views.reads(plugins, ["precision_bf16", "unknown"]) == {}
    found = views.reads(plugins, ["batch_size", "batch_size"])
    assert found["avg(spikewatch_gpu_sm_active_ratio)"] == 900_000
    assert len(found) == len(details(BatchSize()).reads)


# --- what a response may not do ---------------------------------------------------------------------------------------


def response(remediation, params, mode="act"):
    return {
        "name": "answer",
        "match": ['alertname="Late"'],
        "remediation": remediation,
        "with": params,
        "mode": mode,
        "verify": {"expr": "sum(rate(x[10s]))", "goal": "increase"},
    }


def loaded(folder, registry, *responses, **settings):
    folder.write("responses.yaml", {"responses": list(responses)})
    return load_rulebook(folder.loaded(**settings), registry)


@pytest.mark.parametrize(
    ("params", "mode", "result", "warned"),
    [
        ({"strategy": "utilisation"}, "act", Mode.SUGGEST, True),
        ({"strategy": "utilisation"}, "suggest", Mode.SUGGEST, False),
        ({"strategy": "utilisation"}, "observe", Mode.OBSERVE, False),
        ({"strategy": "stability"}, "act", Mode.ACT, False),
        ({"strategy": "{{ $labels.how }}"}, "act", Mode.SUGGEST, True),
    ],
)
def test_what_was_seen_on_recordings_only_suggests_at_most(folder, registry, params, mode, result, warned):
    book = loaded(folder, registry, response("batch_size", params, mode))
    assert book.responses[0].mode is result
    assert any("`suggest` at most" in p.message and p.line for p in book.warnings) == warned


def test_an_address_off_the_egress_list_is_refused_with_its_place(folder, registry):
    ask = response("webhook", {"url": "https://ops.example.com/x", "undo_url": "https://ops.example.com/y"})
    with pytest.raises(ConfigError, match=r"responses\.yaml:1:\d+: .*ops\.example\.com/x is not on egress\.allow") as e:
        loaded(folder, registry, ask)
    assert len(e.value.problems) == 2
    book = loaded(folder, registry, ask, egress={"allow": ["https://ops.example.com/"]})
    assert [r.name for r in book.responses] == ["answer"]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"egress": {"allow": ["ops.example.com"]}}, "not a URL prefix"),
        ({"egress": {"allow": ["https://u:p@ops.example.com/"]}}, "not a URL prefix"),
        ({"egress": {"allow": ["https://ops.example.com/?x=1"]}}, "has no query and no blanks"),
        ({"egress": {"timeout": "2m"}}, "egress.timeout"),
        ({"plugins": {"allow": "all"}}, "plugins.allow"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(folder, settings, complaint):
    with pytest.raises(ConfigError, match=complaint):
        folder.loaded(**settings)


# --- money over a restart ---------------------------------------------------------------------------------------------


def test_after_a_restart_the_journal_tells_what_is_still_earning(tmp_path):
    db = StateDB(tmp_path / "state.db")
    journal = Journal(db)
    for kind, at, data in (
        ("experiment", 0, {"phase": "settling"}),
        ("verdict", HOUR_MS, {"verdict": "helped", "usd_per_hour": 3.0}),
        ("experiment", HOUR_MS, {"phase": "closed", "result": "kept"}),
        ("edge", HOUR_MS, {"edge": "resolved"}),
    ):
        journal.note(Entry(at, kind, "e", "feed", "c", data))
    row = ("c", "e", "feed", "job/1", "closed", HOUR_MS, json.dumps({"run_ids": ["run-1"]}))
    journal.put("INSERT INTO experiments VALUES (?,?,?,?,?,?,?)", row)
    journal.commit()
    savings = Savings()
    money.recover(savings, journal)
    savings.advance(4 * HOUR_MS, ("run-1",))
    (total,) = savings.totals()
    assert (total.response, total.run, total.saved_usd, total.usd_per_hour) == ("feed", ("run-1",), 12.0, 3.0)
    db.close()
