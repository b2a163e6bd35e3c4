"""Responses and caps files: what is accepted, and that every mistake is shown with its place."""

from __future__ import annotations

import pytest

from remediations.annotate_only import AnnotateOnly
from remediations.dataloader_prefetch import DataloaderPrefetch, Params
from sidecar.errors import ConfigError
from sidecar.responses.loader import load_caps, load_responses
from sidecar.responses.response import Limits, Mode
from sidecar.responses.statistics import Goal
from sidecar.yamlfile import Document

PLUGINS = {"dataloader_prefetch": DataloaderPrefetch()}

GOOD = """\
responses:
- name: feed-the-trainer
  match: ['alertname="TrainerStarvedOfData"', 'severity=~"warning|critical"']
  remediation: dataloader_prefetch
  with: {factor: 2, max_prefetch: 16, max_workers: 8}
  mode: suggest
  verify:
    expr: sum(rate(spikewatch_trainer_samples_total[10s]))
    goal: increase
    by: 5%
    baseline: 3m
    window: 90s
    abort_if: ['increase(spikewatch_trainer_nonfinite_losses_total[1m]) > 0']
  limits: {scope: pod, cooldown: 10m, per_hour: 2, max_ineffective: 1}
"""


def load(text, alerts=None):
    return load_responses(Document("responses.yaml", text), PLUGINS, alerts)


def problems(text, alerts=None):
    with pytest.raises(ConfigError) as caught:
        load(text, alerts)
    return [str(p) for p in caught.value.problems]


def test_a_response_is_read_as_written():
    (one,) = load(GOOD).responses
    assert (one.name, one.remediation, one.mode) == ("feed-the-trainer", "dataloader_prefetch", Mode.SUGGEST)
    assert one.params == Params(factor=2, max_prefetch=16, max_workers=8)
    assert (one.verify.goal, one.verify.by) == (Goal.INCREASE, 0.05)
    assert (one.verify.baseline_ms, one.verify.window_ms) == (180_000, 90_000)
    assert one.limits == Limits("pod", 600_000, 2, 1)
    assert one.answers({"alertname": "TrainerStarvedOfData", "severity": "critical"})
    assert not one.answers({"alertname": "TrainerStarvedOfData", "severity": "info"})


def test_what_is_left_out_is_the_careful_choice():
    (one,) = load(
        """\
responses:
- name: a
  match: [alertname=X]
  remediation: dataloader_prefetch
  verify: {expr: up, goal: decrease}
"""
    ).responses
    assert one.mode is Mode.OBSERVE
    assert (one.verify.by, one.verify.baseline_ms, one.verify.window_ms) == (0.05, 180_000, 180_000)
    assert one.limits == Limits()
    assert one.params == Params()


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("  mode: suggest", "  mode: sugest", "6:9: error: responses.0.mode: must be 'observe', 'suggest'"),
        ("  mode: suggest", "  modes: suggest", "6:3: error: unknown key 'modes' (did you mean mode?)"),
        ("name: feed-the-trainer", "name: 7", "2:9: error: responses.0.name: must be text"),
        ("name: feed-the-trainer", "name: feed me", "2:9: error: responses.0.name"),
        ("goal: increase", "goal: up", "9:11: error: responses.0.verify.goal: must be 'increase'"),
        ("    goal: increase\n", "", "8:5: error: responses.0.verify.goal: is missing"),
        ("by: 5%", "by: 0.05", "10:9: error: responses.0.verify.by: write a percentage like 5%"),
        ("by: 5%", "by: x%", "10:9: error: responses.0.verify.by: write a percentage like 5%"),
        ("by: 5%", "by: 0%", "10:9: error: responses.0.verify.by: must be at least 1%"),
        ("baseline: 3m", "baseline: 3 minutes", "11:15: error: responses.0.verify.baseline: not a valid duration"),
        ("window: 90s", "window: 90", "12:13: error: responses.0.verify.window: write a duration like 180s or 5m"),
        ("window: 90s", "window: '0'", "12:13: error: responses.0.verify.window: must be longer than 0s"),
        ("cooldown: 10m", "cooldown: -1m", "14:34: error: responses.0.limits.cooldown: not a valid duration"),
        ("per_hour: 2", "per_hour: 0", "14:49: error: responses.0.limits.per_hour"),
        ("scope: pod", "scope: planet",
         "14:19: error: responses.0.limits.scope: must be 'pod', 'job' or 'fleet'"),
        ("rate(spikewatch", "rat(spikewatch", "8:11: error: "),
        ("[1m]) > 0", "[1m] > 0", "13:16: error: "),
        ("remediation: dataloader_prefetch", "remediation: prefetch",
         "4:16: error: unknown remediation 'prefetch'; there are: dataloader_prefetch"),
        ("factor: 2", "factor: 100", "5:18: error: responses.0.with.factor: must be at most 8"),
        ("factor: 2", "factor: 1", "5:18: error: responses.0.with.factor: a factor of 1 changes nothing"),
        ("factor: 2", "speed: 2", "5:10: error: unknown key 'speed'"),
        ("max_workers: 8", "max_workers: 65", "5:52: error: responses.0.with.max_workers"),
        ("severity=~\"warning|critical\"", "severity=~\"(\"", "3:47: error: not a valid RE2 regular expression"),
        ("  match: ['alertname=\"TrainerStarvedOfData\"', 'severity=~\"warning|critical\"']", "  match: []",
         "3:10: error: responses.0.match"),
    ],
)  # fmt: skip
def test_a_mistake_is_refused_with_its_place(old, new, expected):
    assert old in GOOD
    found = problems(GOOD.replace(old, new))
    assert len(found) == 1
    assert found[0].startswith(f"responses.yaml:{expected}")


def test_what_changes_something_says_how_it_is_judged_and_a_note_need_not():
    entry = "responses: [{name: a, match: [alertname=X], remediation: %s}]"
    (problem,) = problems(entry % "dataloader_prefetch")
    assert problem == "responses.yaml:1:13: error: responses.0.verify: is missing"
    document = Document("responses.yaml", entry % "annotate_only, with: {note: ask ada}")
    (note,) = load_responses(document, {"annotate_only": AnnotateOnly()}).responses
    assert (note.params.note, note.verify.abort_if, note.verify.guards) == ("ask ada", (), ())


def test_all_mistakes_of_all_responses_are_listed_at_once():
    bad = GOOD.replace("mode: suggest", "mode: x").replace("rate(", "rat(").replace("factor: 2", "factor: 9")
    second = GOOD.removeprefix("responses:\n").replace("prefetch\n", "prefetc\n").replace('data"', "data")
    found = problems(bad + second)
    assert [f.split(": ")[0] for f in found] == [
        "responses.yaml:6:9",
        "responses.yaml:5:18",
        "responses.yaml:8:11",
        "responses.yaml:17:16",
    ]


def test_two_responses_cannot_share_a_name():
    (problem,) = problems(GOOD + GOOD.removeprefix("responses:\n"))
    assert problem == "responses.yaml:15:9: error: the name 'feed-the-trainer' is given twice"


def test_a_response_that_no_rule_can_wake_is_a_warning_and_not_an_error():
    loaded = load(GOOD, alerts=["TrainerStarved"])
    assert len(loaded.responses) == 1
    assert [(w.line, w.level) for w in loaded.warnings] == [(3, "warning")]
    assert "this response will never act" in loaded.warnings[0].message
    assert load(GOOD, alerts=["TrainerStarvedOfData"]).warnings == ()
    assert load(GOOD).warnings == ()


def test_a_window_shorter_than_the_range_it_verifies_is_a_warning():
    loaded = load(GOOD.replace("[10s]", "[5m]"))
    assert [w.line for w in loaded.warnings] == [12]


@pytest.mark.parametrize("text", ["", "responses: 7", "- a", "responses:\n- 7"])
def test_a_file_of_another_shape_is_refused(text):
    assert problems(text)


def test_no_responses_are_fine():
    assert load("responses: []").responses == ()


def test_caps_are_read_and_unknown_names_refused():
    text = "caps:\n  dataloader_prefetch: observe\n"
    assert load_caps(Document("caps.yaml", text), PLUGINS) == {"dataloader_prefetch": Mode.OBSERVE}
    with pytest.raises(ConfigError, match=r"caps.yaml:2:3: error: unknown remediation 'prefetch'"):
        load_caps(Document("caps.yaml", "caps:\n  prefetch: observe\n"), PLUGINS)
    with pytest.raises(ConfigError, match=r"caps.yaml:2:24: error: .*'observe', 'suggest' or 'act'"):
        load_caps(Document("caps.yaml", "caps:\n  dataloader_prefetch: always\n"), PLUGINS)
