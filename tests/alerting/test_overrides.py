"""overrides.yaml changes whole values of named alerts and refuses what it cannot mean."""

import pytest

from sidecar.alerting.overrides import apply_overrides, load_overrides
from sidecar.errors import ConfigError
from sidecar.yamlfile import Document

RULES = """
groups:
- name: g
  rules:
  - alert: A
    expr: a > 1
    for: 1m
    labels: {severity: warning, signal: s}
    annotations: {summary: x}
  - alert: Twice
    expr: b > 1
    labels: {severity: warning}
  - alert: Twice
    expr: b > 2
    labels: {severity: critical}
  - record: A
    expr: sum(a)
"""


@pytest.fixture
def groups(groups_of):
    return groups_of(RULES)


def applied(groups, text):
    return apply_overrides(groups, load_overrides(Document("o.yaml", text), groups))[0].rules


def problems(groups, text):
    with pytest.raises(ConfigError) as caught:
        load_overrides(Document("o.yaml", text), groups)
    return [(p.line, p.message) for p in caught.value.problems]


def test_each_value_replaces_the_shipped_one_and_the_rest_stays(groups):
    rule = applied(groups, "overrides: {A: {expr: a > 2, for: 5m, severity: critical}}")[0]
    assert (rule.expr, rule.for_ms) == ("a > 2", 300_000)
    assert rule.label_texts == (("severity", "critical"), ("signal", "s"))
    assert rule.annotation_texts == (("summary", "x"),)


def test_what_is_not_given_stays(groups):
    rules = applied(groups, "overrides: {A: {for: 0s}}")
    assert (rules[0].expr, rules[0].for_ms, rules[0].label_texts[0]) == ("a > 1", 0, ("severity", "warning"))
    assert rules[1:] == groups[0].rules[1:]


def test_a_disabled_alert_is_gone_and_a_recording_rule_of_its_name_is_not(groups):
    assert [(r.name, r.is_alert) for r in applied(groups, "overrides: {A: {disabled: true}}")] == [
        ("Twice", True),
        ("Twice", True),
        ("A", False),
    ]
    assert len(applied(groups, "overrides: {Twice: {disabled: true}}")) == 2
    assert len(applied(groups, "overrides: {A: {disabled: false}}")) == 4


def test_an_empty_file_overrides_nothing(groups):
    for text in ("", "overrides:", "overrides: {}"):
        assert applied(groups, text) == groups[0].rules


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("overrides: {Nope: {for: 1m}}", "no rule has an alert named 'Nope' (alerts: A, Twice)"),
        ("overrides: {Twice: {for: 1m}}", "2 rules have an alert named 'Twice'"),
        ("overrides: {A: {fro: 1m}}", "unknown key 'fro'"),
        ("overrides: {A: {for: 1}}", "not a valid duration"),
        ("overrides: {A: {expr: a >}}", "could not parse expression"),
        ("overrides: {A: {expr: }}", "expr must not be empty"),
        ("overrides: {A: {severity: page}}", "severity must be one of info, warning, critical"),
        ("overrides: {A: {severity: Warning}}", "severity must be one of info, warning, critical"),
        ("overrides: {A: {disabled: maybe}}", "disabled must be true or false"),
        ("overrides: {A: 5m}", "must be a mapping"),
        ("overrides: [A]", "must be a mapping"),
        ("override: {}", "unknown key 'override'"),
    ],
)
def test_what_cannot_be_meant_is_refused(groups, text, message):
    found = problems(groups, text)
    assert any(message in m for _, m in found), found


def test_every_problem_is_listed_with_its_line(groups):
    found = problems(groups, "overrides:\n  A: {for: x}\n  Nope: {severity: loud}\n")
    assert [line for line, _ in found] == [2, 3, 3]
