"""Rule files become frozen groups; everything wrong with them is listed where it stands."""

import contextlib

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.alerting.loader import load_rules
from sidecar.alerting.rules import rule_keys
from sidecar.errors import ConfigError
from sidecar.yamlfile import Document

GOOD = """\
groups:
- name: g
  interval: 30s
  query_offset: 10s
  limit: 5
  labels: {team: ml, severity: info}
  rules:
  - record: a:b
    expr: |
      sum(x)
    labels: {keep: "{{ not a template }}"}
  - alert: A
    expr: a:b > 1
    for: 1m
    keep_firing_for: 2m
    labels: {severity: "{{ $labels.sev }}"}
    annotations: {summary: "{{ $value }}", plain: text}
"""


def load(text, name="r.yaml"):
    return load_rules([Document(name, text)])


def problems(text):
    with pytest.raises(ConfigError) as caught:
        load(text)
    return [(p.line, p.column, p.message) for p in caught.value.problems if p.level == "error"]


def test_a_group_holds_what_the_file_says():
    (group,) = load(GOOD).groups
    assert (group.name, group.file) == ("g", "r.yaml")
    assert (group.interval_ms, group.query_offset_ms, group.limit) == (30_000, 10_000, 5)
    record, alert = group.rules
    assert (record.name, record.expr, record.is_alert) == ("a:b", "sum(x)", False)
    assert (alert.name, alert.expr, alert.for_ms, alert.keep_firing_for_ms) == ("A", "a:b > 1", 60_000, 120_000)
    assert alert.annotation_texts == (("plain", "text"), ("summary", "{{ $value }}"))
    assert (alert.at.line, alert.expr_at.line, alert.expr_at.column) == (12, 13, 11)


def test_group_labels_go_under_the_rules_own():
    record, alert = load(GOOD).groups[0].rules
    assert record.label_texts == (("keep", "{{ not a template }}"), ("severity", "info"), ("team", "ml"))
    assert alert.label_texts == (("severity", "{{ $labels.sev }}"), ("team", "ml"))


def test_an_empty_file_has_no_groups():
    assert load("").groups == ()
    assert load("# nothing\n").groups == ()


@pytest.mark.parametrize(
    ("wrong", "right", "line", "column", "message"),
    [
        ("exprs: a:b > 1", "expr: a:b > 1", 13, 5, "unknown key 'exprs' in rule"),
        ("for: 1 minute", "for: 1m", 14, 10, "not a valid duration"),
        ("limit: five", "limit: 5", 5, 10, "limit must be a whole number"),
        ("labels: [a]", "labels: {team: ml, severity: info}", 6, 11, "must be a mapping, not a list"),
        ("expr: a:b >", "expr: a:b > 1", 13, 11, "could not parse expression"),
        ('plain: "{{ nope }}"', "plain: text", 17, 55, "function 'nope' not defined"),
        ("name: [g]", "name: g", 2, 9, "name must be text, not a list"),
        ("record: a{b}", "record: a:b", 8, 13, "braces present"),
    ],
)
def test_a_problem_is_told_with_line_and_column(wrong, right, line, column, message):
    found = problems(GOOD.replace(right, wrong, 1))
    matching = [p for p in found if message in p[2]]
    assert [p[:2] for p in matching[:1]] == [(line, column)], found


def test_bad_promql_is_placed_at_the_value_and_says_where_inside_it():
    text = "groups:\n- name: g\n  rules:\n  - alert: A\n    expr: sum(x) > nosuch(y)\n"
    ((line, column, message),) = problems(text)
    assert (line, column) == (5, 11)
    assert message.startswith("could not parse expression: 1:10: ")


def test_bad_promql_in_a_block_counts_the_lines_of_the_expression():
    text = "groups:\n- name: g\n  rules:\n  - alert: A\n    expr: |\n      sum(x) >\n      nosuch(y)\n"
    ((line, column, message),) = problems(text)
    assert (line, column) == (5, 11)
    assert message.startswith("could not parse expression: 2:1: ")


def test_every_problem_of_every_file_is_listed(tmp_path):
    (tmp_path / "a.yaml").write_text("groups: [{name: g, rules: [{alert: A, expr: up, for: x, extra: 1}]}]")
    (tmp_path / "b.yaml").write_text("groups: [")
    with pytest.raises(ConfigError) as caught:
        load_rules([tmp_path / "a.yaml", tmp_path / "missing.yaml", tmp_path / "b.yaml"])
    files = [p.file.rsplit("/", 1)[-1] for p in caught.value.problems]
    assert files == ["a.yaml", "a.yaml", "missing.yaml", "b.yaml"]


def test_equal_rules_in_a_file_are_a_warning_only():
    rule = "{record: a, expr: x, labels: {l: v}}"
    loaded = load(f"groups: [{{name: g, rules: [{rule}, {rule}]}}, {{name: h, rules: [{rule}]}}]")
    assert [p.level for p in loaded.warnings] == ["warning", "warning"]
    assert "same name and labels" in loaded.warnings[0].message


def test_rules_that_differ_in_a_label_are_no_duplicates():
    assert (
        load("groups: [{name: g, rules: [{record: a, expr: x, labels: {l: v}}, {record: a, expr: x}]}]").warnings == ()
    )


def test_a_group_label_that_is_no_template_is_a_warning_as_prometheus_loads_it():
    loaded = load("groups: [{name: g, labels: {t: '{{ nope }}'}, rules: [{alert: A, expr: up}]}]")
    assert [p.level for p in loaded.warnings] == ["warning"]
    (rule,) = loaded.groups[0].rules
    assert rule.labels[0][1].text.startswith("<error expanding template: ")


def test_rule_keys_ignore_file_and_expression_and_number_equal_rules():
    first = load(GOOD, "one.yaml").groups
    second = load(GOOD.replace("a:b > 1", "a:b > 2"), "two.yaml").groups
    assert rule_keys(first) == rule_keys(second)
    (once, again) = rule_keys([*first, *second])
    assert not set(once) & set(again)
    assert rule_keys(load(GOOD.replace("team: ml", "team: x")).groups) != rule_keys(first)


def test_rules_and_groups_are_values():
    assert load(GOOD).groups == load(GOOD).groups
    with pytest.raises(AttributeError):
        load(GOOD).groups[0].rules[0].expr = "x"


scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["5m", "up", "{{ $value }}", "{{", ""])
)
keys = st.sampled_from(
    ["groups", "name", "rules", "alert", "record", "expr", "for", "labels", "annotations", "interval", "limit", "x"]
)
trees = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=5), max_leaves=20
)


@settings(max_examples=200, deadline=None)
@given(trees)
def test_no_tree_of_values_crashes_the_loader(tree):
    with contextlib.suppress(ConfigError):
        load(yaml.safe_dump({"groups": [{"name": "g", "rules": [tree]}, tree]}))


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(GOOD)), st.integers(0, len(GOOD)), st.text("{}[]:-|'\"#&*! \n\tax$", max_size=5))
def test_no_slip_of_the_pen_crashes_the_loader(start, end, text):
    with contextlib.suppress(ConfigError):
        load(GOOD[: min(start, end)] + text + GOOD[max(start, end) :])
