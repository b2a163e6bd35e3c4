"""A response built on numbers that were never seen on the real thing suggests at most."""

import json

import pytest

from sidecar.alerting.loader import load_rules
from sidecar.app import records
from sidecar.app.checking import check_files
from sidecar.app.rulebook import load_rulebook
from sidecar.app.trust import unproven
from sidecar.model import Evidence, MetricInfo
from sidecar.responses.response import Mode
from sidecar.yamlfile import Document

PROVEN = MetricInfo("spikewatch_steps_total", "counter", "", "x", verified=Evidence("device", "2026-01-01", "H200"))
FAKED = MetricInfo("spikewatch_gpu_x", "gauge", "", "x", verified=Evidence("fake"))
UNSEEN = MetricInfo("spikewatch_gpu_y", "gauge", "", "x", verified=Evidence())
OWN = MetricInfo("spikewatch_ticks_total", "counter", "", "x")
CATALOGUE = (PROVEN, FAKED, UNSEEN, OWN)


def groups(*rules):
    text = json.dumps({"groups": [{"name": "g", "rules": list(rules)}]})
    return load_rules([Document("r.yaml", text)]).groups


@pytest.mark.parametrize(
    ("expr", "found"),
    [
        ("sum(rate(spikewatch_steps_total[1m]))", ()),
        ("spikewatch_gpu_x > 1", ("spikewatch_gpu_x",)),
        (
            "spikewatch_steps_total * on() (spikewatch_gpu_y + spikewatch_gpu_x)",
            ("spikewatch_gpu_x", "spikewatch_gpu_y"),
        ),
        ("spikewatch_ticks_total", ()),  # counted by the sidecar about itself
        ("somebody_elses", ()),  # its user answers for it
        ("avg_over_time(spikewatch_gpu_x[5m:1m])", ("spikewatch_gpu_x",)),
        ("1 +", ()),
    ],
)
def test_what_an_expression_reads_is_held_against_the_catalogue(expr, found):
    assert unproven([expr], (), CATALOGUE) == found


def test_recording_rules_are_looked_through_however_deep_and_even_in_circles():
    rules = groups(
        {"record": "a:b", "expr": "a:c + 1"},
        {"record": "a:c", "expr": "spikewatch_gpu_x or a:b"},
    )
    assert unproven(["a:b"], rules, CATALOGUE) == ("spikewatch_gpu_x",)


def response(**changes):
    return {
        "name": "feed",
        "match": ['alertname="Late"'],
        "remediation": "dataloader_prefetch",
        "with": {"factor": 2},
        "mode": "act",
        "verify": {"expr": "sum(rate(x[10s]))", "goal": "increase"},
        **changes,
    }


def loaded_with(folder, registry, one, late="x > 1", **early):
    rules = [{"alert": "Late", "expr": late}, {"alert": "Early", "expr": "spikewatch_gpu_sm_active_ratio", **early}]
    folder.write("one.rules.yaml", {"groups": [{"name": "g", "rules": rules}]})
    folder.write("responses.yaml", {"responses": [one]})
    book = load_rulebook(folder.loaded(), registry)
    return book.responses[0].mode, [str(w) for w in book.warnings if "real device" in str(w)]


def test_a_response_on_proven_numbers_acts(folder, registry):
    assert loaded_with(folder, registry, response()) == (Mode.ACT, [])


@pytest.mark.parametrize(
    ("one", "late"),
    [
        (response(verify={"expr": "sum(rate(spikewatch_gpu_energy_joules_total[10s]))", "goal": "decrease"}), "x > 1"),
        (
            response(verify={"expr": "sum(rate(x[10s]))", "goal": "increase", "abort_if": ["spikewatch_gpu_up == 0"]}),
            "x > 1",
        ),
        (response(), "spikewatch_gpu_sm_dram_lag_seconds > 0.2"),
        (response(match=['alertname=~"Early|Late"']), "x > 1"),
    ],
    ids=["verified by", "guarded by", "raised by", "one of several alerts raised by"],
)
def test_a_response_on_numbers_seen_with_a_stand_in_only_suggests_and_says_why_with_its_place(
    folder, registry, one, late
):
    mode, warnings = loaded_with(folder, registry, one, late)
    assert mode is Mode.SUGGEST
    (warning,) = warnings
    assert "responses.yaml:1:" in warning
    assert "`suggest` at most: built on spikewatch_gpu_" in warning


def test_check_names_the_metrics_too(folder, registry):
    verify = {"expr": "sum(rate(spikewatch_gpu_energy_joules_total[10s]))", "goal": "decrease"}
    files = [folder.path / "one.rules.yaml", folder.write("responses.yaml", {"responses": [response(verify=verify)]})]
    (found,) = [str(p) for p in check_files(files, registry).problems if "real device" in str(p)]
    assert "spikewatch_gpu_energy_joules_total" in found
    assert found.startswith(f"{files[1]}:1:")


def test_a_response_that_only_suggests_needs_no_warning(folder, registry):
    one = response(mode="suggest", match=['alertname="Early"'])
    assert loaded_with(folder, registry, one) == (Mode.SUGGEST, [])


def test_an_alert_that_another_label_rules_out_does_not_count(folder, registry):
    one = response(match=['severity="warning"'])
    assert loaded_with(folder, registry, one, labels={"severity": "info"})[0] is Mode.ACT
    assert loaded_with(folder, registry, one, labels={"severity": "warning"})[0] is Mode.SUGGEST
    assert loaded_with(folder, registry, one, labels={"severity": "{{ $value }}"})[0] is Mode.SUGGEST


def test_every_metric_of_every_collector_says_what_it_was_checked_against(registry):
    for info in records.catalogue(registry):
        if info.name in {i.name for i in registry.catalogue()}:
            assert info.verified is not None, info.name
            assert info.verified.against == "none" or info.verified.date, info.name
