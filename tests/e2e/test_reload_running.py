"""Reloads of a sidecar at work: a wrong one changes nothing, a good one changes what it says and disturbs nothing."""

from __future__ import annotations

import os
import signal

import pytest
from e2e_world import ALL, FEED, SLOW, response

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]

OK, HASH = "spikewatch_config_last_reload_successful", "spikewatch_config_hash"


def hup(world):
    os.kill(world.sidecars[-1].pid, signal.SIGHUP)


def refused_then_taken(world):
    world.configure(collectors=ALL)
    world.slow(0)
    world.trainer()
    world.sidecar()
    world.until_ready()
    world.until_trains()
    before = world.metric(OK), world.metric(HASH)
    rules = world.folder / "a.rules.yaml"
    good = rules.read_text()
    rules.write_text(good.replace("rate(", "rat(", 1))
    world.respond(response(remediation="prayer"))
    answer = world.http.post("/-/reload")
    wrong = world.metric(OK), world.metric(HASH)
    hup(world)
    world.until(lambda: world.sidecars[-1].said().count("reload refused") == 2, "the second refusal")
    still = world.metric(OK), world.metric(HASH)
    world.slow(SLOW)
    episode = world.until_entry("edge", edge="firing")
    world.until(lambda: world.results(), "the experiment is closed")
    rules.write_text(good + "  - alert: Another\n    expr: vector(1)\n")
    world.respond(response(), response(name="second", match=['alertname="Another"'], mode="observe"))
    hup(world)
    world.until(lambda: world.metric(OK) == 1, "the good reload")
    world.until_entry("edge", edge="firing", alert="Another")
    world.until_entry("decision", reason="observe")
    return {
        "before": before,
        "status": answer.status_code,
        "answer": answer.text,
        "wrong": wrong,
        "still": still,
        "after": (world.metric(OK), world.metric(HASH)),
        "answered": episode["data"]["responses"],
        "results": world.results(),
        "errors": world.metric("spikewatch_tick_errors_total"),
    }


@pytest.mark.story(play=refused_then_taken)
def test_a_wrong_reload_by_post_or_signal_leaves_what_runs_at_work_and_a_good_one_follows(told):
    assert told["before"][0] == 1
    assert told["status"] == 400
    assert "a.rules.yaml:" in told["answer"]
    assert "responses.yaml:" in told["answer"]
    assert told["wrong"] == told["still"] == (0, told["before"][1])
    assert told["answered"] == ["feed"]
    assert told["results"] == ["kept"]
    assert told["after"][0] == 1
    assert told["after"][1] != told["before"][1]
    assert told["errors"] is None


def amid(world, changed):
    """Reloads while the alert is pending, while a change settles and while it is measured."""
    world.configure(collectors=ALL)
    world.trainer()
    world.sidecar()
    statuses = []

    def reload():
        world.respond(*changed)
        statuses.append(world.http.post("/-/reload").status_code)

    pending = world.until_entry("edge", edge="pending")
    statuses.append(world.http.post("/-/reload").status_code)
    firing = world.until_entry("edge", edge="firing")
    world.until_entry("experiment", phase="settling")
    reload()
    world.until_entry("experiment", phase="measuring")
    hup(world)
    world.until(lambda: world.sidecars[-1].said().count("configuration reloaded"), "the reload by signal")
    world.until(lambda: world.results(), "the experiment is closed")
    world.until_knobs(4)
    return {
        "statuses": statuses,
        "active": (pending["data"]["active_at_ms"], firing["data"]["active_at_ms"]),
        "decisions": world.decisions(),
        "end": (world.verdicts(), world.results()),
        "errors": world.metric("spikewatch_tick_errors_total"),
    }


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(changed, id=name, marks=pytest.mark.story(play=amid, args=(changed,)))
        for name, changed in {
            "with another window and factor": [response(FEED | {"factor": 2}) | {"mode": "suggest"}],
            "without the response": [response(name="other", match=['alertname="Other"'])],
        }.items()
    ],
)
def test_an_experiment_ends_as_it_began_whatever_is_reloaded_meanwhile(changed, told):
    assert told["statuses"] == [200, 200]
    assert told["active"][0] == told["active"][1]
    assert told["decisions"] == ["acted"]
    assert told["end"] == ([("helped", "gain_is_real")], ["kept"])
    assert told["errors"] is None


def other_pace(world):
    world.configure(evaluation_interval="10m")
    world.sidecar()
    world.until_ready()
    slow = world.metric("spikewatch_ticks_total"), world.metric("spikewatch_rule_evaluations_total")
    world.configure(evaluation_interval="100ms", external_labels={"cluster": "eu"}, resend_delay="1s")
    status = world.http.post("/-/reload").status_code
    world.until(lambda: world.metric("spikewatch_ticks_total") > slow[0] + 5, "ticks")
    world.until(lambda: world.metric("spikewatch_rule_evaluations_total") > slow[1] + 5, "evaluations")
    return slow, status


@pytest.mark.story(play=other_pace)
def test_a_reload_changes_the_pace_of_ticks_and_rules(told):
    assert told == ((1, 0), 200)
