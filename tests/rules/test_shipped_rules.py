"""The shipped rules load, their unit tests pass, and they keep our conventions (promtool: tests/peers)."""

import re
from pathlib import Path

import pytest
import yaml

from sidecar import promql
from sidecar.alerting.check import check_rules
from sidecar.alerting.loader import load_rules
from sidecar.alerting.unittests import run_file
from sidecar.app import records
from sidecar.plugins import Registry
from sidecar.promql.plan import Aggregate, Binary, walk

ROOT = Path(__file__).resolve().parents[2] / "rules"
RULES = sorted(ROOT.glob("**/*.rules.yaml"))
TESTS = sorted(ROOT.glob("**/*.test.yaml"))

by_name = {"ids": lambda path: path.name}


def alerts():
    return [pytest.param(rule, id=rule.name) for g in load_rules(RULES).groups for rule in g.rules if rule.is_alert]


def rules():
    return [pytest.param(rule, id=rule.name) for g in load_rules(RULES).groups for rule in g.rules]


def test_there_are_rules_and_each_file_has_its_tests():
    assert RULES
    assert [p.name.replace(".rules.", ".test.") for p in RULES] == [p.name for p in TESTS]


@pytest.mark.parametrize("path", RULES, **by_name)
def test_a_rule_file_loads_without_a_warning(path):
    assert check_rules([path]) == []


def test_rules_read_only_metrics_and_labels_that_there_are():
    registry = Registry()
    registry.discover()
    assert check_rules(RULES, {info.name: info for info in records.catalogue(registry)}) == []


@pytest.mark.parametrize("path", TESTS, **by_name)
def test_the_unit_tests_of_the_rules_pass(path):
    report = run_file(path)
    assert list(report.lines())[1:] == []
    assert report.checks > 0


@pytest.mark.parametrize("path", TESTS, **by_name)
def test_every_alert_is_tested_to_fire_and_not_to_fire(path):
    tests = yaml.safe_load(path.read_text())["tests"]
    checks = [check for test in tests for check in test.get("alert_rule_test", [])]
    names = {rule["alert"] for g in yaml.safe_load(_rules_of(path))["groups"] for rule in g["rules"] if "alert" in rule}
    assert {c["alertname"] for c in checks if c["exp_alerts"]} >= names
    assert {c["alertname"] for c in checks if not c["exp_alerts"]} >= names


@pytest.mark.parametrize("path", TESTS, **by_name)
def test_the_tests_have_two_ranks_two_pods_and_steps_of_40_seconds_or_two_clusters(path):
    groups = {group["name"] for group in yaml.safe_load(_rules_of(path))["groups"]}
    series = [[s["series"] for s in t["input_series"]] for t in yaml.safe_load(path.read_text())["tests"]]

    def two(label, value=r"\w+"):
        return any(len({v for s in case for v in re.findall(f'\\b{label}="({value})"', s)}) >= 2 for case in series)

    if all(name.endswith("-cluster") for name in groups):  # bills know no ranks; a Prometheus may see several clusters
        assert two("cluster")
        return
    assert two("rank", r"\d+")
    assert two("pod")
    assert "steps of 40 s" in path.read_text()


def _rules_of(path):
    return path.with_name(path.name.replace(".test.", ".rules.")).read_text()


@pytest.mark.parametrize("rule", alerts())
def test_an_alert_carries_the_labels_and_annotations_that_others_rely_on(rule):
    assert re.fullmatch(r"([A-Z][a-z0-9]+)+", rule.name)
    labels = dict(rule.label_texts)
    assert {"signal", "layer", "severity"} <= set(labels)
    assert labels["severity"] in ("info", "warning", "critical")
    assert not any("{{" in value for value in labels.values())
    assert {"summary", "description", "runbook_url"} <= {name for name, _ in rule.annotations}


@pytest.mark.parametrize("rule", alerts())
def test_a_description_tells_the_value_and_the_limit(rule):
    description = dict(rule.annotation_texts)["description"]
    assert "$value" in description
    assert "limit" in description


@pytest.mark.parametrize("rule", rules())
def test_nothing_is_aggregated_without_saying_over_what(rule):
    nodes = walk(promql.compile([rule.expr]).node(rule.expr))
    assert [n for n in nodes if isinstance(n, Aggregate) and not (n.without and n.labels)] == []


def test_no_rule_of_a_pod_joins_by_named_labels_alone():
    """A central Prometheus has many pods, told apart by labels that no rule knows: every job there has a rank 0."""
    inside = [r for g in load_rules(RULES).groups if not g.name.endswith("-cluster") for r in g.rules]
    nodes = [(r.name, n) for r in inside for n in walk(promql.compile([r.expr]).node(r.expr))]
    assert [name for name, n in nodes if isinstance(n, Binary) and n.matching.on] == []


@pytest.mark.parametrize("rule", rules())
def test_no_rule_of_a_pod_looks_back_more_than_an_hour(rule):
    assert promql.compile([rule.expr]).longest_range_ms(rule.expr) <= 3_600_000


@pytest.mark.parametrize("path", RULES, **by_name)
def test_every_threshold_and_every_for_is_explained_above_its_alert(path):
    blocks = re.split(r"\n(?=  - (?:alert|record):)", path.read_text())
    for block in (b for b in blocks if b.lstrip().startswith("- alert:")):
        comment = "\n".join(line for line in block.splitlines() if line.lstrip().startswith("#"))
        code = "\n".join(line for line in block.splitlines() if not line.lstrip().startswith("#"))
        expr = code.partition("expr:")[2].partition("labels:")[0]
        numbers = set(re.findall(r"[<>]=? ([0-9.]+)", expr)) - {"0"}
        held = set(re.findall(r"\bfor: (\w+)", expr))
        for number in numbers | held:
            assert f"{number}:" in comment, (block.splitlines()[0], number)
        assert re.search(r"[Rr]equirement|[Oo]urs", comment)


def test_a_group_tells_by_its_name_where_it_is_evaluated():
    names = [group.name for group in load_rules(RULES).groups]
    assert [n for n in names if not re.fullmatch(r"spikewatch(-[a-z]+)+-(pod|job|cluster)", n)] == []


def test_alerts_show_what_their_own_signal_costs_wherever_that_is_reckoned():
    rules = [rule for group in load_rules(RULES).groups for rule in group.rules]
    reckoned = {dict(r.label_texts)["signal"] for r in rules if r.name == "spikewatch:waste_usd_per_hour"}
    shown = {}
    for rule in rules:
        if rule.is_alert and (text := dict(rule.annotation_texts).get("waste_usd_per_hour")):
            (asked,) = re.findall(
                r"spikewatch:waste_usd_per_hour\{signal='(\w+)',instance='%s'\}\" \$labels\.instance", text
            )
            assert asked == dict(rule.label_texts)["signal"], rule.name
            shown.setdefault(asked, []).append(rule.name)
    assert set(shown) == reckoned
