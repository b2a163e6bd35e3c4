"""A silenced alert is not answered, by whichever Alertmanager it is silenced."""

from __future__ import annotations

import pytest

from sidecar.responses.silences import Silences, silence


def one(*conditions, starts=0, ends=10_000, identifier="s1"):
    return silence(identifier, starts, ends, conditions)


LABELS = {"alertname": "Starved", "rank": "3", "cluster": "eu"}


@pytest.mark.parametrize(
    ("conditions", "holds"),
    [
        ([("alertname", "Starved", False, True)], True),
        ([("alertname", "Star", False, True)], False),
        ([("alertname", "Star.*", True, True)], True),
        ([("alertname", "tarved", True, True)], False),  # anchored
        ([("rank", "4", False, False)], True),
        ([("rank", "3|4", True, False)], False),
        ([("gpu", "", False, True)], True),  # a label that is not there is the empty text
        ([("alertname", "Starved", False, True), ("cluster", "us", False, True)], False),
        ([("alertname", "Starved", False, True), ("cluster", "eu", False, True)], True),
    ],
)
def test_every_condition_must_hold_as_in_alertmanager(conditions, holds):
    silences = Silences()
    silences.learn("am", [one(*conditions)])
    assert silences.by(LABELS, 5000) == ("s1" if holds else "")


def test_a_silence_holds_from_its_start_to_its_end():
    silences = Silences()
    silences.learn("am", [one(("rank", "3", False, True), starts=1000, ends=2000)])
    assert [silences.by(LABELS, t) for t in (999, 1000, 1999, 2000)] == ["", "s1", "s1", ""]


def test_each_alertmanagers_list_is_replaced_whole_and_any_of_them_is_enough():
    silences = Silences()
    silences.learn("a", [one(("rank", "3", False, True), identifier="a1")])
    silences.learn("b", [])
    assert silences.by(LABELS, 1) == "a1"
    silences.learn("a", [])
    assert silences.by(LABELS, 1) == ""
    silences.learn("b", [one(("rank", "3", False, True), identifier="b1")])
    silences.forget_all_but(["a"])
    assert silences.by(LABELS, 1) == ""


def test_only_silences_that_may_concern_an_alert_are_looked_at():
    silences = Silences()
    others = [one(("alertname", f"Other{i}", False, True), identifier=f"o{i}") for i in range(1000)]
    silences.learn("am", [*others, one(("alertname", "Starved", False, True)), one(("rank", "9", False, True))])
    looked = []

    class Labels(dict):
        def get(self, name, default=None):
            looked.append(name)
            return super().get(name, default)

    assert silences.by(Labels(LABELS), 5000) == "s1"
    assert silences.by(Labels({"alertname": "Calm", "rank": "3"}), 5000) == ""
    assert len(looked) < 10


def test_a_silence_with_a_bad_expression_is_refused():
    with pytest.raises(ValueError, match="RE2"):
        one(("rank", "(", True, True))


def test_a_silenced_alert_waits_and_is_answered_when_the_silence_ends(world, kit):
    world.silences = {"a": "s1"}
    world.start()
    world.fire(kit.alert(active_at_ms=world.now, fired_at_ms=world.now, pod="a"))
    world.run(60)
    assert world.trainer.sent == []
    assert world.kinds("waiting") == [{"reason": "silenced", "detail": "s1"}]
    world.silences.clear()
    world.run(60)
    assert world.decisions() == [("feed", "acted")]


def test_a_silenced_alert_that_resolves_is_one_decision_that_says_so(world, kit):
    world.silences = {"a": "s1"}
    world.start()
    subject = world.fire(kit.alert(active_at_ms=world.now, fired_at_ms=world.now, pod="a"))
    world.run(5)
    world.responder.on_events([kit.resolved(subject, world.now)], world.now)
    assert world.decisions() == [("feed", "resolved")]
    assert world.kinds("decision")[0]["waited"] == ["silenced"]


def test_another_alert_is_answered_meanwhile(world, kit):
    world.silences = {"a": "s1"}
    world.start()
    for pod in "ab":
        world.fire(kit.alert(active_at_ms=world.now, fired_at_ms=world.now, pod=pod))
    world.run(60)
    assert [d["labels"]["pod"] for d in world.kinds("edge")] == ["a", "b"]
    assert world.decisions() == [("feed", "acted")]


def test_a_silence_that_begins_during_a_trial_does_not_end_it(world, kit):
    world.start()
    world.fire(kit.alert(active_at_ms=world.now, fired_at_ms=world.now, pod="a"))
    world.until_phase("measuring")
    world.silences = {"a": "s1"}
    world.run(60)
    assert world.verdicts() == [("helped", "gain_is_real")]
