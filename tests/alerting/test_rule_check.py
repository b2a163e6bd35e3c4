"""What promtool accepts but cannot be meant is a warning at the expression."""

import pytest

from sidecar.alerting.check import check_rules
from sidecar.model import MetricInfo
from sidecar.yamlfile import Document

CATALOGUE = {
    "spikewatch_a_total": MetricInfo("spikewatch_a_total", "counter", "", "a", ("rank",)),
    "spikewatch_trainer_steps_total": MetricInfo("spikewatch_trainer_steps_total", "counter", "", "steps", ("rank",)),
    "spikewatch_b_ratio": MetricInfo("spikewatch_b_ratio", "gauge", "ratio", "b", ("rank", "phase")),
}


def warnings(expr, catalogue=CATALOGUE, **options):
    text = f"groups:\n- name: g\n  rules:\n  - alert: A\n    expr: '{expr}'\n"
    found = check_rules([Document("r.yaml", text)], catalogue, **options)
    assert all(p.level == "warning" and (p.line, p.column) == (5, 11) for p in found)
    return [p.message.removeprefix("A: ") for p in found]


@pytest.mark.parametrize(
    "expr",
    [
        "rate(spikewatch_a_total[5s]) > 1",
        'spikewatch_b_ratio{phase="x", pod="p", rank!="", nope=""} > 0.5',
        "other_metric_total > 1",
        "rate(other_gauge[5s]) > 1",
        'x{a="1"} and x{a="2"}',
        "x != NaN",
    ],
)
def test_a_good_expression_gives_no_warning(expr):
    assert warnings(expr) == []


@pytest.mark.parametrize(
    ("expr", "message"),
    [
        ("spikewatch_c > 1", "no metric is called spikewatch_c"),
        ("spikewatch:c:d > 1", "no metric is called spikewatch:c:d"),
        ('spikewatch_a_total{rnak="0"} > 1', "spikewatch_a_total has no label 'rnak' (labels: rank)"),
        ("rate(spikewatch_b_ratio[1m]) > 1", "rate() of spikewatch_b_ratio, which is a gauge"),
        ("rate(x[1s]) > 1", "the window [1s] of x is under two sampling intervals of 1s"),
        ("rate(spikewatch_trainer_steps_total[4s])", "the window [4s] of spikewatch_trainer_steps_total is under 5 tr"),
        (
            "holt_winters(x[5m], 0.1, 0.1)",
            "holt_winters() is of Prometheus 2: Prometheus 3 calls it double_exponential_s",
        ),
        ('x{a="1", a="2"}', "x can never match: a cannot be '1' and '2'"),
        ("x > NaN", "> NaN is never true"),
        ("x[5m]", "the result is a matrix, neither vector nor scalar"),
        ('"text"', "the result is a string, neither vector nor scalar"),
    ],
)
def test_what_cannot_be_meant_is_warned_about(expr, message):
    found = warnings(expr)
    assert len(found) == 1
    assert found[0].startswith(message)


def test_windows_are_judged_by_the_sampling_interval():
    assert warnings("rate(x[1m])", sampling_ms=30_000) == []
    assert len(warnings("rate(x[59s])", sampling_ms=30_000)) == 1


def test_windows_over_the_trainers_metrics_are_judged_by_its_steps():
    five_steps = "increase(spikewatch_trainer_steps_total[200s])"
    assert warnings(five_steps, step_ms=40_000) == []
    assert "5 training steps of 41s" in warnings(five_steps, step_ms=41_000)[0]
    assert warnings("increase(spikewatch_a_total[2s])", step_ms=41_000) == [], "not a metric that moves by steps"


def test_without_a_catalogue_names_are_not_judged():
    assert warnings("spikewatch_c > 1", None) == []


def test_a_metric_recorded_by_a_rule_of_any_checked_file_is_known(tmp_path):
    (tmp_path / "a.yaml").write_text("groups: [{name: g, rules: [{record: 'spikewatch:x', expr: up}]}]")
    (tmp_path / "b.yaml").write_text("groups: [{name: g, rules: [{alert: A, expr: 'spikewatch:x > 1'}]}]")
    assert check_rules([tmp_path / "a.yaml", tmp_path / "b.yaml"], CATALOGUE) == []
    assert len(check_rules([tmp_path / "b.yaml"], CATALOGUE)) == 1
    assert check_rules([tmp_path / "b.yaml"], CATALOGUE, recorded=["spikewatch:x"]) == []


def test_one_bad_file_does_not_hide_the_findings_of_the_others(tmp_path):
    (tmp_path / "a.yaml").write_text("groups: [{name: g, rules: [{alert: A}]}]")
    (tmp_path / "b.yaml").write_text("groups: [{name: g, rules: [{alert: A, expr: 'x[5m]'}]}]")
    levels = [p.level for p in check_rules([tmp_path / "a.yaml", tmp_path / "b.yaml"])]
    assert levels == ["error", "warning"]


def test_the_same_thing_is_said_once_an_expression():
    assert len(warnings("spikewatch_c > 1 and spikewatch_c < 5")) == 1
