"""The demo's verdict about itself."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sidecar.cli.demo.report import Report, differences
from sidecar.cli.demo.scenarios import SCENARIOS, Waits, shipped_rules, waits
from sidecar.cli.demo.traininglog import Accounting

HELPED = Report(
    scenario="data-starvation",
    samples_per_s_before=50.0,
    samples_per_s_after=95.0,
    samples_per_s_best=100.0,
    detection_s=4.0,
    verdict="helped",
    rolled_back=False,
    knobs_before={"num_workers": 2, "prefetch_factor": 2},
    knobs_after={"num_workers": 4, "prefetch_factor": 4},
    samples_lost=0,
    samples_repeated=0,
)
UNDONE = replace(
    HELPED,
    verdict="did not help",
    rolled_back=True,
    samples_per_s_after=25.0,
    samples_per_s_best=50.0,
    knobs_after=HELPED.knobs_before,
)
CLEAN = Accounting(consumed=100)
STARVATION = SCENARIOS["data-starvation"]


def test_a_scenario_that_ended_as_promised_differs_in_nothing():
    """The first two reports are the ends that the scenarios promise."""
    assert differences(HELPED, STARVATION, CLEAN) == []
    assert differences(replace(UNDONE, scenario="bad-fix"), SCENARIOS["bad-fix"], CLEAN) == []
    assert differences(replace(UNDONE, scenario="cpu-bound"), SCENARIOS["cpu-bound"], CLEAN) == []


@pytest.mark.parametrize(
    ("change", "reordered", "told"),
    [
        ({"verdict": "inconclusive"}, 0, "verdict 'inconclusive', expected 'helped'"),
        ({"verdict": ""}, 0, "verdict 'none', expected 'helped'"),
        ({"rolled_back": True}, 0, "the change was rolled back"),
        ({"samples_per_s_after": 74.0, "samples_per_s_best": 75.0}, 0, "less than 1.5 × the 50.0 before"),
        ({"samples_per_s_after": 89.0}, 0, "less than 0.9 × the best 100.0"),
        ({"detection_s": 5.1}, 0, "detected after 5.1 s, allowed are 5 s"),
        ({"detection_s": None}, 0, "not measured: detection_s"),
        ({"samples_per_s_best": None}, 0, "not measured: samples_per_s_best"),
        ({"samples_lost": 1}, 0, "1 samples lost"),
        ({"samples_repeated": 2}, 0, "2 samples repeated"),
        ({}, 3, "3 samples out of order"),
    ],
)
def test_every_broken_promise_is_told(change, reordered, told):
    """One line each, and only that one."""
    (line,) = differences(replace(HELPED, **change), STARVATION, Accounting(consumed=100, reordered=reordered))
    assert told in line


def test_values_that_did_not_come_back_exactly_are_told_where_a_roll_back_was_due():
    """A roll-back that left one worker too many is no roll-back."""
    left = replace(UNDONE, scenario="bad-fix", knobs_after={"num_workers": 3, "prefetch_factor": 2})
    (line,) = differences(left, SCENARIOS["bad-fix"], CLEAN)
    assert "'num_workers': 3" in line


def test_the_json_holds_exactly_the_promised_keys(tmp_path):
    """Other programs read them."""
    HELPED.write(tmp_path / "demo.json")
    written = json.loads((tmp_path / "demo.json").read_text())
    assert list(written) == [
        "scenario", "samples_per_s_before", "samples_per_s_after", "samples_per_s_best", "detection_s", "verdict",
        "rolled_back", "knobs_before", "knobs_after", "samples_lost", "samples_repeated",
    ]  # fmt: skip
    assert written["knobs_after"] == {"num_workers": 4, "prefetch_factor": 4}


def test_doubling_the_rate_saves_half_of_what_the_gpus_cost():
    """Four GPUs at 2.50 $/h: of 10 $/h, 5 $/h bought nothing; a halved rate would waste as much."""
    doubled = replace(HELPED, samples_per_s_before=50.0, samples_per_s_after=100.0)
    assert doubled.usd_per_hour(4, 2.5) == pytest.approx(5.0)
    halved = replace(HELPED, samples_per_s_before=50.0, samples_per_s_after=25.0)
    assert halved.usd_per_hour(4, 2.5) == pytest.approx(-5.0)
    assert replace(HELPED, samples_per_s_after=None).usd_per_hour(4, 2.5) is None


def test_the_latency_makes_the_loader_deliver_a_batch_every_so_many_healthy_steps():
    """Two workers fetching eight images each take eight latencies for two batches."""
    latency_ms = STARVATION.latency_ms(healthy_step_s=0.05, workers=2, batch_size=8)
    seconds_per_batch = 8 * latency_ms / 1000 / 2
    assert seconds_per_batch == pytest.approx(STARVATION.starve * 0.05)
    assert STARVATION.starve > STARVATION.gain_min / STARVATION.of_best_min  # the promise is within reach


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=list(SCENARIOS))
def test_a_scenario_keeps_its_own_name_and_its_responses_file_is_there(scenario):
    """The file is package data beside the module."""
    assert SCENARIOS[scenario.name] is scenario
    assert scenario.responses_path.is_file()


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=list(SCENARIOS))
def test_the_waits_are_read_from_the_shipped_rule_and_the_scenario_s_own_responses(scenario):
    """Thirty seconds pending, then a minute of baseline and a minute of window: under four minutes in all."""
    assert waits(shipped_rules(), scenario.responses_path) == Waits(pending_s=30, baseline_s=60, window_s=60)
