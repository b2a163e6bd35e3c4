"""A real Prometheus and our engine watch the same world with the same forty rules, and do the same."""

import dataclasses
import itertools
import json
import os
import subprocess
import time
from pathlib import Path

import pytest
import rival_compare
import rival_rules
from rival_ours import Replayed
from rival_run import play

ROOT = Path(__file__).parent.parent.parent
FACES = ("incremental", "naive")
SHORT_S, LONG_S = 8, 120

pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif("SPIKEWATCH_PEERS" not in os.environ, reason="SPIKEWATCH_PEERS is not set"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A short run that all tests of this file look at; it is the first that takes the time."""
    return decided(tmp_path_factory, SHORT_S)


def decided(folders, seconds):
    """A run in which it is known what Prometheus saw: where a scrape came in while rules were evaluated, and this
    made a difference, there is another.
    """
    for attempt in itertools.count():
        found = play(folders.mktemp("rival"), seconds, seed=time.time_ns() % 1_000_000)
        if not all(found.ours[face].ambiguous and differs(found, face) for face in FACES):
            return found
        if attempt == 2:
            pytest.skip("the machine is too busy: scrapes keep coming in during evaluations")


def differs(run, face):
    wrong = [m.wrong for m in rival_compare.samples(run, face).values() if m.wrong]
    return bool(wrong or rival_compare.visible(run, face) or rival_compare.messages(run, face)[1])


def test_forty_rules_are_compared():
    groups = rival_rules.document()["groups"]
    names = [rule.get("alert") or rule["record"] for group in groups for rule in group["rules"]]
    assert len([name for name in names if name not in rival_rules.SEEN]) == 40


@pytest.mark.timeout(180)
@pytest.mark.parametrize("face", FACES)
def test_every_sample_that_rules_write_is_the_same(run, face):
    found = rival_compare.samples(run, face)
    assert {name: metric.wrong[:3] for name, metric in found.items() if metric.wrong} == {}
    # the only sums whose terms come in another order, or windows that are moved instead of being read again
    moved = {"load:slope", "load:soon"} if face == "incremental" else set()
    assert {name for name, metric in found.items() if metric.equal < metric.samples} <= {"load:spread", *moved}
    assert found["ALERTS"].samples > 100
    assert found["ALERTS_FOR_STATE"].samples > 100


@pytest.mark.parametrize("face", FACES)
def test_every_series_ends_at_the_same_evaluation(run, face):
    assert rival_compare.visible(run, face) == []


@pytest.mark.parametrize("face", FACES)
def test_alertmanager_hears_the_same_from_both(run, face):
    equal, differences = rival_compare.messages(run, face)
    assert differences == []
    assert equal > 50


def test_the_comparison_sees_rules_that_are_only_a_little_different(run, tmp_path):
    text = rival_rules.text()
    for written, instead in (
        ("load offset 2s", "load offset 1800ms"),
        ("late:load * 2", "late:load * 2.00001"),
        ("  for: 1s", "  for: 0s"),
    ):
        assert text.count(written) == 1
        text = text.replace(written, instead)
    (tmp_path / "other.yaml").write_text(text)
    made = Replayed(tmp_path / "other.yaml", run.recorded, run.served, Silent()).run()
    other = dataclasses.replace(run, ours={"other": made})
    wrong = {name for name, metric in rival_compare.samples(other, "other").items() if metric.wrong}
    assert wrong >= {"load:change", "late:twice", "ALERTS"}
    assert {"load:avg", "requests:irate", "late:load"}.isdisjoint(wrong)


class Silent:
    def send(self, notifications):
        """Tells nobody."""


def test_the_run_read_back_from_prometheus_has_every_sample_and_every_end(run):
    assert len(run.rows) > 1000
    assert rival_compare.ends(run) == []


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_two_minutes_are_the_same(tmp_path_factory):
    run = decided(tmp_path_factory, LONG_S)
    report = {
        "what": "Prometheus and spikewatch over the same scrapes: 40 rules, scrape and evaluation every 200 ms",
        "commit": _said("git", "-C", str(ROOT), "rev-parse", "HEAD"),
        "changes_on_top": bool(_said("git", "-C", str(ROOT), "status", "--porcelain", "--", "sidecar")),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "prometheus": _said(f"{os.environ['SPIKEWATCH_PEERS']}/bin/prometheus", "--version").splitlines()[0],
        "seconds": LONG_S,
        "seed": run.seed,
        "scrapes": len(run.recorded.scrapes),
        "group_evaluations": len(run.recorded.evaluations),
        "faces": {face: _report(run, face) for face in FACES},
    }
    target = ROOT / "docs" / "proof" / "differential.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(report, indent=2) + "\n")
    for face in FACES:
        found = report["faces"][face]
        assert found["different_samples"] == found["series_that_end_elsewhere"] == found["different_messages"] == 0
    assert len(run.recorded.evaluations) > LONG_S * 4 * 4  # of five a second in four groups: a busy machine misses some


def _report(run, face):
    metrics = rival_compare.samples(run, face)
    equal, differences = rival_compare.messages(run, face)
    return {
        "samples": sum(m.samples for m in metrics.values()),
        "bit_equal_samples": sum(m.equal for m in metrics.values()),
        "different_samples": sum(len(m.wrong) for m in metrics.values()),
        "series": len(run.ours[face].written),
        "series_that_end_elsewhere": len(rival_compare.visible(run, face)),
        "alertmanager_messages_equal": equal,
        "different_messages": len(differences),
        "alerts": len(run.messages[face]),
        "evaluations_a_scrape_fell_into": run.ours[face].ambiguous,
        "metrics": {name: metrics[name].summary() for name in sorted(metrics)},
    }


def _said(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
