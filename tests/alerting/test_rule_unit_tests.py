"""Rule unit tests in promtool's format run here with promtool's outcome."""

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.alerting.seriestext import MAX_SAMPLES, parse_metric, parse_values
from sidecar.alerting.unittests import run_file
from sidecar.errors import QueryError
from sidecar.model import STALE

peers = os.environ.get("SPIKEWATCH_PEERS")
corpus = os.environ.get("SPIKEWATCH_CORPUS")
needs_peers = pytest.mark.skipif(not peers, reason="set SPIKEWATCH_PEERS to the folder with promtool in its bin/")
needs_corpus = pytest.mark.skipif(not corpus, reason="set SPIKEWATCH_CORPUS to the folder with promql/*.test.yaml")


class TestSeriesNotation:
    @pytest.mark.parametrize(
        ("text", "labels"),
        [
            ("up", {"__name__": "up"}),
            ("up{}", {"__name__": "up"}),
            ("{}", {}),
            ("", {}),
            ('up{a="1", b = "2",}', {"__name__": "up", "a": "1", "b": "2"}),
            ("""a:b{x='it"s',y=`\\d`}""", {"__name__": "a:b", "x": 'it"s', "y": "\\d"}),
            ('{__name__="up",a=""}', {"__name__": "up"}),
            ('{"my.metric", "a b"="c"}', {"__name__": "my.metric", "a b": "c"}),
            ('up{a="\\n\\u00e9"}', {"__name__": "up", "a": "\né"}),
        ],
    )
    def test_a_series_is_a_name_and_labels(self, text, labels):
        assert dict(parse_metric(text)) == labels

    @pytest.mark.parametrize(
        "text",
        ["up{a!='1'}", "up{a=~'1'}", "up offset 5m", "up{", "sum(up)", "up + 1", "up{a=1}", "up @ 5", "1", "up[5m]"],
    )
    def test_anything_else_is_no_series(self, text):
        with pytest.raises(QueryError):
            parse_metric(text)

    @pytest.mark.parametrize(
        ("text", "values"),
        [
            ("", []),
            ("1 2  3", [1, 2, 3]),
            ("0+10x3", [0, 10, 20, 30]),
            ("5-2x2", [5, 3, 1]),
            ("-1-2x1", [-1, -3]),
            ("7x2", [7, 7, 7]),
            ("1x0", [1]),
            ("_ 1 _x2 2", [None, 1, None, None, 2]),
            ("_x0 1", [1]),
            ("1e2x1 .5 1. +5 inf -Inf", [100, 100, 0.5, 1, 5, float("inf"), float("-inf")]),
            ("52+0x2", [52, 52, 52]),
        ],
    )
    def test_values_stand_one_a_slot(self, text, values):
        assert parse_values(text) == values

    def test_steps_are_added_up_one_by_one(self):
        assert parse_values("0+0.1x10")[-1] == sum([0.1] * 10) != 1.0

    def test_stale_is_the_marker_and_nan_is_a_value(self):
        stale, nan = parse_values("stale NaN")
        assert stale is STALE
        assert nan != nan
        assert nan is not STALE

    @pytest.mark.parametrize(
        ("text", "offset"),
        [
            ("1 2_", 2),
            ("1x", 0),
            ("1+1", 0),
            ("1+x3", 0),
            ("0x1F", 0),
            ("1 , 2", 2),
            ("1 + 2x3", 2),
            ("stalex3", 0),
            ("abc", 0),
        ],
    )
    def test_what_promtool_does_not_read_is_refused_with_its_place(self, text, offset):
        with pytest.raises(QueryError) as caught:
            parse_values(text)
        assert caught.value.offset == offset

    def test_native_histograms_are_refused_by_name(self):
        with pytest.raises(QueryError, match="native histograms are not supported"):
            parse_values("{{schema:1 sum:3 count:22}}")

    def test_a_series_of_absurd_length_is_refused_at_once(self):
        with pytest.raises(QueryError, match=f"more than {MAX_SAMPLES} samples"):
            parse_values("1x99999999999999999999")
        with pytest.raises(QueryError, match="more than"):
            parse_values("_x4999999 1x2")

    @given(st.text("0123456789+-x._ eInfNaNstale", max_size=30))
    def test_any_text_is_read_or_refused(self, text):
        try:
            values, offset = parse_values(text), 0
        except QueryError as e:
            values, offset = [], e.offset
        assert all(v is None or isinstance(v, float) for v in values)
        assert 0 <= offset <= len(text)


RULES = """
groups:
- name: first
  rules:
  - record: job:x:sum
    expr: sum without (rank) (x)
  - alert: High
    expr: job:x:sum > 5
    for: 2m
    labels: {severity: warning}
    annotations: {summary: "{{ $value }} in {{ $labels.job }} ({{ $externalLabels.cluster }} {{ $externalURL }})"}
- name: second
  interval: 1h
  rules:
  - record: late
    expr: job:x:sum * 2
"""
TESTS = """
rule_files: ["*.rules.yaml"]
evaluation_interval: 1m
tests:
- name: over the limit
  interval: 30s
  external_labels: {cluster: c1}
  external_url: http://x
  input_series:
  - {series: 'x{job="a",rank="0"}', values: '0+1x20'}
  - {series: 'x{job="a",rank="1"}', values: '2x8 _x2 stale _x8'}
  alert_rule_test:
  - {eval_time: 3m, alertname: High, exp_alerts: []}
  - eval_time: 4m
    alertname: High
    exp_alerts:
    - exp_labels: {severity: warning, job: a}
      exp_annotations: {summary: 10 in a (c1 http://x)}
  promql_expr_test:
  - {expr: late, eval_time: 4m, exp_samples: [{labels: 'late{job="a"}', value: 20}]}
  - expr: ALERTS
    eval_time: 3m
    exp_samples: [{labels: 'ALERTS{alertname="High",alertstate="pending",job="a",severity="warning"}', value: 1}]
  - {expr: 'count(x)', eval_time: 6m, exp_samples: [{value: 1}]}
  - {expr: '1 + 1', eval_time: 0s, exp_samples: [{labels: '{}', value: 2}]}
  - {expr: 'nothing', eval_time: 1m}
"""


@pytest.fixture
def run(tmp_path):
    def run_(tests=TESTS, rules=RULES, **options):
        (tmp_path / "my.rules.yaml").write_text(rules)
        path = tmp_path / "my.test.yaml"
        path.write_text(tests)
        run_.path = path
        return run_file(path, **options)

    return run_


@pytest.mark.parametrize("face", ["incremental", "naive"])
def test_a_file_whose_checks_all_hold_passes(run, face):
    report = run(face=face)
    assert list(report.lines()) == [f"{run.path}: passed, 1 tests, 7 checks"]
    assert report.passed


@pytest.mark.peers
@needs_peers
def test_promtool_passes_the_same_file(run):
    # told no order, promtool takes the groups in a new one each time
    run(TESTS.replace("tests:", "group_eval_order: [first, second]\ntests:", 1))
    command = [f"{peers}/bin/promtool", "test", "rules", str(run.path)]
    assert subprocess.run(command, capture_output=True, timeout=30, check=False).returncode == 0


def test_a_failed_check_shows_what_is_missing_and_what_is_too_much(run):
    report = run(TESTS.replace("10 in a", "11 in a").replace("value: 20", "value: 21"))
    assert not report.passed
    alert, expr = report.failures
    assert alert.what == "alertname: High, time: 4m"
    assert [line.strip() for line in str(alert).splitlines()[1:]] == [
        '- {alertname="High", job="a", severity="warning"} annotations {summary="11 in a (c1 http://x)"}',
        '+ {alertname="High", job="a", severity="warning"} annotations {summary="10 in a (c1 http://x)"}',
    ]
    assert "expr: 'late', time: 4m, in 'over the limit'" in str(expr)
    assert '- {__name__="late", job="a"} 21.0' in str(expr)
    assert [f.line for f in report.failures] == [14, 20]


def test_alerts_that_should_not_be_there_fail(run):
    report = run(TESTS.replace("eval_time: 3m, alertname", "eval_time: 5m, alertname"))
    assert "(expected nothing)" in str(report.failures[0])


def test_an_alert_is_checked_at_the_last_evaluation_before_its_time(run):
    assert run(TESTS.replace("eval_time: 3m, alertname", "eval_time: 3m59s, alertname")).passed


def test_groups_run_in_the_order_asked_for(run):
    tests = TESTS.replace("tests:", "group_eval_order: [second, first]\ntests:", 1)
    (failure,) = run(tests).failures
    assert failure.what.startswith("expr: 'late'")


def test_a_rule_that_cannot_be_evaluated_ends_its_test(run):
    rules = RULES.replace("job:x:sum * 2", "x * on (job) x")
    (failure,) = run(rules=rules).failures
    assert failure.what == "rule: late, time: 0s"
    assert failure.message


def test_an_expression_that_cannot_be_parsed_fails_its_own_check_only(run):
    report = run(TESTS.replace("expr: late", "expr: 'sum('"))
    assert [f.what for f in report.failures] == ["expr: 'sum(', time: 4m"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("eval_time: 4m\n", "eval_tiem: 4m\n", "unknown key 'eval_tiem'"),
        ("0+1x20", "0+1x", "no series value"),
        ('x{job="a",rank="0"}', 'x{job="a"', "no series"),
        ("alertname: High, exp_alerts: []", "exp_alerts: []", "misses required attribute alertname"),
        ("interval: 30s", "interval: half a minute", "not a valid duration"),
        ("value: 20", "value: twenty", "must be a number"),
        ("value: 20", "value: NaN", "must be a number"),
        ("evaluation_interval: 1m", "fuzzy_compare: maybe", "must be true or false"),
        ("tests:", "group_eval_order: [a, a]\ntests:", "group name repeated"),
        ("tests:", "start_timestamp: 5\ntests:", "unknown key 'start_timestamp'"),
    ],
)
def test_a_bad_file_is_refused_with_file_line_and_column(run, old, new, message):
    report = run(TESTS.replace(old, new, 1))
    assert not report.passed
    assert any(message in p.message and p.line and p.file == str(run.path) for p in report.problems), report.problems


def test_bad_rule_files_are_reported_and_missing_ones_only_warned_about(run):
    report = run(rules=RULES.replace("for: 2m", "for: 2 m"))
    assert [p.message for p in report.problems] == ["for: not a valid duration: '2 m' (write it like 30s, 5m or 1h30m)"]
    report = run(TESTS.replace('"*.rules.yaml"', '"*.rules.yaml", nope.yaml'))
    assert report.passed
    assert [p.level for p in report.problems] == ["warning"]


def test_a_file_that_is_missing_or_empty_does_not_pass(tmp_path):
    assert not run_file(tmp_path / "none.yaml").passed
    (tmp_path / "empty.yaml").write_text("")
    assert not run_file(tmp_path / "empty.yaml").passed


def test_a_test_that_would_take_hours_is_refused(run):
    report = run(TESTS.replace("eval_time: 0s", "eval_time: 100y"))
    assert "would take hours" in str(report.failures[0])


FUZZY = """
evaluation_interval: 1m
fuzzy_compare: %s
tests:
- input_series: [{series: x, values: '0.1'}]
  promql_expr_test: [{expr: x + 0.2, eval_time: 0s, exp_samples: [{labels: '{}', value: 0.3}]}]
"""


def test_neighbouring_floats_are_equal_only_where_the_file_says_so(run):
    assert not run(FUZZY % "false").passed
    assert run(FUZZY % "true").passed


def test_nan_equals_nothing_as_in_promtool(run):
    assert not run((FUZZY % "true").replace("value: 0.3", "value: .nan").replace("x + 0.2", "x * NaN")).passed


@pytest.mark.corpus
@needs_corpus
@pytest.mark.parametrize("face", ["incremental", "naive"])
def test_every_file_of_the_promql_corpus_passes(face):
    paths = sorted((Path(corpus) / "promql").glob("*.test.yaml"))
    reports = [run_file(path, face) for path in paths]
    assert sum(r.checks for r in reports) == 717
    assert [line for r in reports if not r.passed for line in r.lines()] == []
