"""What the API may ask of the responses, and what each refusal's status is."""

from __future__ import annotations

import json

import pytest

from sidecar.app.control import Control, SilencedAlerts
from sidecar.errors import RequestError, StateError
from sidecar.outputs.silences import HeardSilence
from sidecar.responses.inbox import LAPSE_MS
from sidecar.responses.journal import Wanted
from sidecar.responses.killswitch import KillSwitch
from sidecar.responses.response import Approval, Limits, Mode


@pytest.fixture
def control(world, kit, tmp_path):
    """A control over a responder whose only response suggests; `world.own` are alerts of our own rules that fire."""
    world.responses = [kit.response(mode=Mode.SUGGEST, approval=Approval("ml-platform"), limits=Limits("job", 0, 9, 1))]
    switch = KillSwitch(tmp_path / "kill-switch", tmp_path / "platform")
    world.switch = switch.on
    world.start()
    world.own = []
    return Control(
        world.responder,
        switch,
        world.clock,
        log=world.journal,
        external=lambda: {"pod": "llm-0"},
        firing=lambda: world.own,
    )


def status(work, *args):
    with pytest.raises(RequestError) as caught:
        work(*args)
    return caught.value.status


def message(labels, status="firing", ends="0001-01-01T00:00:00Z"):
    alert = {"status": status, "labels": labels, "startsAt": "1970-01-01T00:16:40Z", "endsAt": ends}
    return json.dumps({"version": "4", "alerts": [alert]}).encode()


def test_a_plan_that_waits_is_listed_with_everything_needed_to_decide(control, world):
    world.fire()
    world.run(2)
    (one,) = control.approvals()
    assert one["response"] == "feed"
    assert (one["alert"], one["owner"], one["remediation"]) == ("Starved", "ml-platform", "set_workers")
    assert (one["values"], one["found"], one["why"]) == ({"workers": 4}, {"workers": 2}, "more workers")
    assert one["expires_at_ms"] - one["planned_at_ms"] == 3_600_000
    assert json.loads(json.dumps(one)) == one


def test_yes_acts_and_no_is_final(control, world):
    world.fire()
    world.run(2)
    (one,) = control.approvals()
    control.approve(one["episode"], "feed", "ada", None)
    assert control.approvals() == []
    world.run(60)
    assert world.decisions() == [("feed", "acted")]
    assert status(control.reject, one["episode"], "feed", "bob") == 409
    assert status(control.approve, one["episode"], "feed", "bob", None) == 409
    assert status(control.approve, "nothing", "feed", "bob", None) == 404


def test_experiments_under_way_are_told_as_plain_json(control, world):
    world.fire()
    world.run(2)
    control.approve(control.approvals()[0]["episode"], "feed", "ada", None)
    world.until_phase("measuring")
    (one,) = control.experiments()
    assert (one["phase"], one["approved_by"], one["values"]) == ("measuring", "ada", {"workers": 4})
    assert json.loads(json.dumps(one)) == one


def test_a_breaker_is_seen_and_closed(control, world):
    world.speed = lambda workers: 100.0
    world.fire()
    world.run(2)
    control.approve(control.approvals()[0]["episode"], "feed", "ada", None)
    world.run(100)
    (one,) = control.responses()
    assert (one["name"], one["mode"], one["breaker_open"]) == ("feed", "suggest", ["job:job"])
    control.reset("feed", "ada")
    assert control.responses()[0]["breaker_open"] == []
    assert status(control.reset, "feed", "ada") == 404
    assert {"event": "breaker_reset", "response": "feed", "by": "ada"} in world.kinds("sidecar")


def test_the_journal_is_read_by_kind_and_from_where_one_left_off(control, world):
    world.fire()
    world.run(2)
    everything = control.journal(Wanted())
    assert [e["kind"] for e in everything] == ["edge", "experiment", "waiting"]
    assert [e["kind"] for e in control.journal(Wanted(after_id=everything[0]["id"]))] == ["experiment", "waiting"]
    assert [e["kind"] for e in control.journal(Wanted(kind="edge"))] == ["edge"]
    assert [e["kind"] for e in control.journal(Wanted(limit=1, newest=True))] == ["waiting"]


def test_the_kill_switch_is_turned_and_what_cannot_be_turned_off_here_is_a_conflict(control, tmp_path):
    assert control.kill_switch() == {"on": False}
    on = control.halt("ada", "odd")
    assert (on["on"], on["by"], on["reason"], on["own"]) == (True, "ada", "odd", True)
    assert control.resume("ada") == {"on": False}
    assert status(control.resume, "ada") == 409
    (tmp_path / "platform").write_text("")
    assert status(control.resume, "ada") == 409


def test_a_kill_switch_that_cannot_be_written_is_unavailable(control, monkeypatch):
    def refuse(by, reason, now_ms):
        raise StateError("the disk is full")

    monkeypatch.setattr(control._switch, "engage", refuse)
    assert status(control.halt, "ada", "") == 503


# --- Alertmanager's messages ------------------------------------------------------------------------------------------


def test_a_message_opens_an_episode_and_its_end_closes_it(control, world):
    labels = {"alertname": "Starved", "pod": "llm-0"}
    assert control.receive(message(labels)) == {"edges": 1, "ignored": {}}
    world.run(2)
    assert len(control.approvals()) == 1
    assert control.receive(message(labels)) == {"edges": 0, "ignored": {"repeated": 1}}
    assert control.receive(message(labels, "resolved", "1970-01-01T00:16:41Z"))["edges"] == 1
    assert world.decisions() == [("feed", "resolved")]


def test_what_is_not_for_this_pod_or_known_here_already_is_left_out(control, world):
    world.own = [(("alertname", "Starved"), ("rank", "3"))]
    ours = {"alertname": "Starved", "rank": "3", "pod": "llm-0"}
    assert control.receive(message(ours)) == {"edges": 0, "ignored": {"fires_here": 1}}
    assert control.receive(message({**ours, "pod": "llm-1"})) == {"edges": 0, "ignored": {"not_ours": 1}}
    assert world.responder.episodes() == ()


def test_no_message_is_a_400_and_a_journal_that_cannot_be_written_a_503_so_that_it_is_sent_again(control, world):
    assert status(control.receive, b"{}") == 400
    world.db.connection.execute("PRAGMA query_only=1")
    assert status(control.receive, message({"alertname": "Starved"})) == 503
    world.db.connection.execute("PRAGMA query_only=0")
    world.run(2)
    assert len(control.approvals()) == 1, "it was kept, too"


def test_an_alert_that_nobody_repeats_ends_with_a_tick(control, world):
    control.receive(message({"alertname": "Starved"}))
    control.tick(world.now + LAPSE_MS - 1)
    assert len(world.responder.episodes()) == 1
    control.tick(world.now + LAPSE_MS)
    assert world.decisions() == [("feed", "resolved")]


# --- silences ---------------------------------------------------------------------------------------------------------


def heard(value, *, regex=False, name="pod"):
    return HeardSilence(f"s-{value}", 0, 1 << 50, ((name, value, regex, True),))


def test_an_alert_is_silenced_as_its_alertmanager_sees_it_with_external_labels_and_name(world, kit, caplog):
    silenced = SilencedAlerts(world.clock, lambda: {"pod": "llm-0"})
    subject = kit.alert(rank="3")
    assert silenced(subject) == ""
    silenced.learn("am", [heard("(", regex=True), heard("llm-0")])
    assert silenced(subject) == "s-llm-0"
    assert "silence s-( of am is not respected" in caplog.text
    silenced.learn("am", [heard("Starved", name="alertname")])
    assert silenced(subject) == "s-Starved"
    silenced.only(["another"])
    assert silenced(subject) == ""
