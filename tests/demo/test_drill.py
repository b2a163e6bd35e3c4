"""The drill: somebody's own rules and responses on the demo's trainer, followed to the end."""

from __future__ import annotations

import io
import json
import re
import time

import pytest
from click.testing import CliRunner
from rich.console import Console

from sidecar.cli.demo.command import play_drill
from sidecar.cli.demo.drilling import IDLE_S, Drill
from sidecar.cli.demo.launch import Options
from sidecar.cli.demo.scenarios import ALERT, SCENARIOS, Pace, shipped_rules, waits
from sidecar.cli.demo.story import Story
from sidecar.cli.demo.timeline import PlainTimeline
from sidecar.cli.drill import drill
from sidecar.errors import ConfigError

SCENARIO = SCENARIOS["data-starvation"]


def entry(kind, response="feed", episode="e1", **data):
    return {"id": 1, "at_ms": 1000, "kind": kind, "episode": episode, "response": response, "data": data}


class Telling:
    """Stands for the sidecar: hands out journal entries, and notes who approved what."""

    def __init__(self, *entries):
        self.entries, self.approved = list(entries), []

    def journal(self):
        found, self.entries = self.entries, []
        return found

    def knobs(self):
        return []

    def approve(self, episode, response, by):
        self.approved.append((episode, response, by))


@pytest.fixture
def drilled(tmp_path):
    """A drill that has not begun, watching what it is told; and what it shows."""

    def make(*entries, **options):
        shown = Console(file=io.StringIO(), width=200)
        made = Drill(SCENARIO, Options(**options), Pace(), PlainTimeline(shown), tmp_path)
        made._watch = Telling(*entries)
        made._look()
        return made, shown.file

    return make


WAITS = entry("waiting", reason="awaiting_approval", detail="")


def test_a_plan_that_waits_for_an_approval_gets_it_once(drilled):
    made, shown = drilled(WAITS, approve_as="the drill")
    made._look()
    assert made._watch.approved == [("e1", "feed", "the drill")]
    assert not made._over()
    assert shown.getvalue().count("approved by the drill") == 1


def test_without_approvals_a_waiting_plan_is_the_end(drilled):
    made, shown = drilled(WAITS)
    assert made._watch.approved == []
    assert made._over()
    assert "nobody approves" in shown.getvalue()


def test_an_alert_that_no_response_answers_is_the_end_after_a_while(drilled):
    made, _ = drilled(approve_as="x")
    made._story.fired_at = time.time()
    assert not made._over()
    made._story.fired_at -= IDLE_S + 1
    assert made._over()
    made._story.episodes = 1
    assert not made._over()


def test_the_story_knows_who_asks():
    story = Story()
    line = story.take(WAITS)
    assert story.asks == ("e1", "feed")
    assert "waits for an approval" in line.text


def test_a_drill_waits_as_long_as_rules_and_responses_say(drilled, tmp_path):
    responses = tmp_path / "mine.yaml"
    responses.write_text("responses: [{verify: {window: 5m}}, {verify: {baseline: 4m}}]")
    made, _ = drilled(responses=responses)
    assert made._pace.decide_within == Pace().decide_within + 240 + 300
    assert (waits(shipped_rules(), responses).baseline_s, waits(shipped_rules(), responses).window_s) == (240, 300)


def test_a_drill_does_not_wait_for_responses_to_other_alerts():
    responses = shipped_rules().with_name("responses.yaml")
    assert "window: 600s" in responses.read_text(), "of a response to another alert"
    assert (waits(shipped_rules(), responses).baseline_s, waits(shipped_rules(), responses).window_s) == (180, 180)


@pytest.mark.parametrize(
    ("rules", "responses", "complaint"),
    [
        ("groups: [{name: g, rules: [{alert: Other, expr: up}]}]", "", f"the scenario is about {ALERT}"),
        ("groups: 3", "", f"the scenario is about {ALERT}"),
        ("", "responses: [{name: x}]", "no response with a `verify`"),
        ("", "caps: {}", "no response with a `verify`"),
        ("", "responses: [{verify: {window: soon}}]", "no response with a `verify`"),
    ],
)
def test_files_that_cannot_be_drilled_are_told_before_anything_starts(tmp_path, rules, responses, complaint):
    options = {}
    for name, text in (("rules", rules), ("responses", responses)):
        if text:
            options[name] = tmp_path / f"{name}.yaml"
            options[name].write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        Drill(SCENARIO, Options(**options), Pace(), PlainTimeline(Console(file=io.StringIO())), tmp_path)
    result = CliRunner().invoke(
        drill, ["data-starvation", *(a for n, p in options.items() for a in (f"--{n}", str(p)))]
    )
    assert result.exit_code == 1
    assert complaint in result.output


def test_an_unknown_scenario_is_wrong_usage():
    result = CliRunner().invoke(drill, ["meteor"])
    assert result.exit_code == 2
    assert "data-starvation" in result.output


@pytest.mark.torch
@pytest.mark.proof
@pytest.mark.timeout(300)
def test_the_whole_path_is_shown_and_the_trainer_is_left_as_it_says(tmp_path):
    rules, responses = tmp_path / "rules.yaml", tmp_path / "responses.yaml"
    rules.write_text(re.sub(r"for: 30s", "for: 2s", shipped_rules().read_text()))
    text = SCENARIO.responses_path.read_text().replace("mode: act", "mode: suggest")
    responses.write_text(re.sub(r": 60s", ": 9s", text.replace("[10s]", "[3s]")))
    console = Console(file=io.StringIO(), width=200)
    pace = Pace(warm_up=3, moment=(0, 1), after=1)
    options = Options(seed=1, rules=rules, responses=responses, approve_as="the drill")
    code = play_drill("data-starvation", options, keep=tmp_path / "kept", pace=pace, console=console)
    shown = console.file.getvalue()
    assert code == 0, shown
    for text in (f"{ALERT} fires", "waits for an approval", "approved by the drill", "applied at step", "verdict: "):
        assert text in shown
    assert re.search(r"Samples: \d+ used, 0 lost, 0 repeated", shown)
    (kept,) = (tmp_path / "kept").iterdir()
    assert json.loads((kept / "training" / "rank0.jsonl").read_text().splitlines()[-1])["event"] == "end"
