"""The kill switch: a file that stops every message at once, whoever made it."""

from __future__ import annotations

import json
import os

import pytest

from sidecar.errors import ResponseError, StateError
from sidecar.responses.killswitch import Halt, KillSwitch
from sidecar.responses.response import Mode


@pytest.fixture
def switch(tmp_path):
    return KillSwitch(tmp_path / "kill-switch", tmp_path / "platform" / "stop")


def test_it_is_off_until_somebody_turns_it_on_and_says_who_when_and_why(switch, tmp_path):
    assert switch.on() is None
    switch.engage("ada", "losses look odd", 1000)
    assert switch.on() == Halt(str(tmp_path / "kill-switch"), "ada", "losses look odd", 1000)


def test_it_lasts_over_a_restart(switch, tmp_path):
    switch.engage("ada", "", 1000)
    assert KillSwitch(tmp_path / "kill-switch").on().by == "ada"


def test_the_first_word_stays(switch):
    switch.engage("ada", "one", 1000)
    switch.engage("bob", "two", 2000)
    assert (switch.on().by, switch.on().since_ms) == ("ada", 1000)


@pytest.mark.parametrize("content", [b"", b"stop!", b"[]", b'{"by": 7}', b"\xff\xfe", b'{"since_ms": "soon"}'])
def test_any_file_will_do_whatever_is_in_it(switch, tmp_path, content):
    (tmp_path / "kill-switch").write_bytes(content)
    halt = switch.on()
    assert halt.own
    assert halt.since_ms > 0


def test_a_folder_is_one_too(switch, tmp_path):
    (tmp_path / "kill-switch").mkdir()
    assert switch.on() is not None


def test_the_platforms_switch_cannot_be_turned_off_here(switch, tmp_path):
    (tmp_path / "platform").mkdir()
    (tmp_path / "platform" / "stop").write_text("")
    switch.engage("ada", "", 1000)
    assert not switch.on().own
    with pytest.raises(ResponseError, match="platform's kill switch is on: .*stop has to be removed"):
        switch.release()
    (tmp_path / "platform" / "stop").unlink()
    assert switch.on().own


def test_turned_off_it_is_off_and_then_cannot_be_turned_off_again(switch):
    switch.engage("ada", "", 1000)
    switch.release()
    assert switch.on() is None
    with pytest.raises(ResponseError, match="not on"):
        switch.release()


def test_a_file_that_cannot_be_looked_at_counts_as_on(tmp_path):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)  # ELOOP: also root cannot follow it
    halt = KillSwitch(loop / "kill-switch").on()
    assert "cannot be looked at" in halt.reason


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="kill switch cannot be written"):
        KillSwitch(tmp_path / "file" / "kill-switch").engage("ada", "", 1)


def test_a_full_disk_takes_the_words_and_not_the_switch(switch, tmp_path, monkeypatch):
    def full(fd, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    switch.engage("ada", "odd", 1000)
    assert switch.on() is not None


def test_what_it_wrote_is_plain_json(switch, tmp_path):
    switch.engage("ada", "odd", 1000)
    assert json.loads((tmp_path / "kill-switch").read_text()) == {"by": "ada", "reason": "odd", "since_ms": 1000}


# --- what the responder does about it ---------------------------------------------------------------------------------

ON = Halt("kill-switch", "ada", "odd")


def test_while_it_is_on_nothing_begins_and_afterwards_it_does(world):
    world.halt = ON
    world.start()
    world.fire()
    world.run(60)
    assert world.trainer.sent == []
    assert world.kinds("waiting")[0] == {"reason": "kill_switch", "detail": "kill-switch ada odd"}
    world.halt = None
    world.run(60)
    assert world.decisions() == [("feed", "acted")]


@pytest.mark.parametrize("phase", ["intended", "settling", "measuring"])
def test_a_change_on_trial_gets_no_further_message_and_the_lease_takes_it_back(world, phase):
    world.trainer.delay_ms = 1500 if phase == "intended" else 0
    world.start()
    world.fire()
    world.until_phase(phase)
    world.halt = ON
    sent = list(world.trainer.sent)
    world.run(60)
    assert world.trainer.sent == sent
    assert world.trainer.values()["workers"] == 2
    assert world.verdicts() == [("inconclusive", "kill_switch")]
    assert world.results() == ["reverted_by_lease"]


def test_a_change_that_has_proved_itself_and_is_not_confirmed_yet_is_left_to_the_lease(world):
    world.trainer.lose = {"keep"}
    world.start()
    world.fire()
    world.until_phase("keeping")
    world.halt = ON
    sent = list(world.trainer.sent)
    world.run(60)
    assert world.trainer.sent == sent
    assert world.results() == ["reverted_by_lease"]


def test_a_rollback_under_way_waits_for_the_lease_or_for_the_switch(world):
    world.speed = lambda workers: 100.0
    world.trainer.lose = {"revert"}
    world.start()
    world.fire()
    world.until_phase("reverting")
    world.halt, world.trainer.lose = ON, set()
    sent = list(world.trainer.sent)
    world.run(4)
    assert world.trainer.sent == sent
    world.halt = None
    world.run(10)
    assert world.results() == ["rolled_back"]


def test_a_switch_that_comes_between_decision_and_message_holds_the_message_back(world):
    world.start()
    world.fire()
    # The tick finds nothing; the message, which looks again before it leaves, does.
    world.responder._trials._halted = lambda: ON
    world.run(60)
    assert world.trainer.sent == []
    failed = [c["failed"] for c in world.kinds("command") if "failed" in c]
    assert failed
    assert set(failed) == {"the kill switch is on: kill-switch"}
    assert world.trainer.values()["workers"] == 2


def test_turning_it_is_in_the_journal_and_on_the_metrics_page(world):
    world.start()
    world.run(2)
    assert world.samples()["spikewatch_kill_switch_on",] == 0
    world.halt = ON
    world.run(2)
    assert world.samples()["spikewatch_kill_switch_on",] == 1
    world.halt = None
    world.run(2)
    turned = [d for d in world.kinds("sidecar") if d["event"] == "kill_switch"]
    assert turned == [
        {"event": "kill_switch", "on": True, "file": "kill-switch", "by": "ada", "reason": "odd"},
        {"event": "kill_switch", "on": False},
    ]


def test_observing_goes_on_while_it_is_on(world, kit):
    world.responses = [kit.response(mode=Mode.OBSERVE)]
    world.halt = ON
    world.start()
    world.fire()
    world.run(2)
    assert world.decisions() == [("feed", "observe")]
