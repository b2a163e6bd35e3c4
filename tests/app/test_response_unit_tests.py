"""Response unit tests: what they can expect, that they notice everything else, where they say a file is wrong."""

from __future__ import annotations

import copy

import pytest
import yaml
from click.testing import CliRunner

from sidecar.app.responsetests import run_response_file
from sidecar.cli import _spikewatch
from sidecar.yamlfile import Document

RULES = """
groups:
- name: g
  rules:
  - alert: Slow
    expr: slow > 0.5
    for: 5s
    labels: {severity: warning, tier: fast}
"""
RESPONSES = """
responses:
- name: feed
  match: ['alertname="Slow"']
  remediation: dataloader_prefetch
  with: {factor: 2}
  mode: act
  verify: {expr: 'sum(rate(done_total[10s]))', goal: increase, by: 5%, baseline: 20s, window: 20s}
  limits: {cooldown: 0s, per_hour: 100, max_ineffective: 100}
"""
CASE = {
    "name": "it helps",
    "duration": "2m",
    "input_series": [
        {"series": "slow", "values": "1x200"},
        {"series": "done_total", "values": "0+80x200"},
        {"series": 'spikewatch_trainer_steps_total{rank="0"}', "values": "0+10x200"},
    ],
    "trainer": {
        "knobs": {"num_workers": {"value": 2, "maximum": 16}, "prefetch_factor": 2},
        "facts": {"memory_available_bytes": 1e11},
        "effects": [{"when": {"num_workers": 4}, "rates": {"done_total": 1.5}, "values": {"slow": 0.1}}],
    },
    "response_test": [
        {
            "response": "feed",
            "exp_decision": "acted",
            "exp_waited": ["thin_baseline"],
            "exp_plan": {"num_workers": 4, "prefetch_factor": 4},
            "exp_verdict": "helped",
            "exp_reason": "gain_is_real",
            "exp_result": "kept",
            "exp_knobs": {"num_workers": 4},
        }
    ],
}


@pytest.fixture
def run(tmp_path, registry):
    """Runs one case, changed by a function, beside the rules and responses of this file."""

    def play(change=lambda case: None, *, responses=RESPONSES, **file):
        (tmp_path / "a.rules.yaml").write_text(RULES)
        (tmp_path / "responses.yaml").write_text(responses)
        case = copy.deepcopy(CASE)
        change(case)
        content = {"rule_files": ["a.rules.yaml"], "response_files": ["responses.yaml"], "tests": [case], **file}
        path = tmp_path / "r_test.yaml"
        path.write_text(yaml.safe_dump(content, sort_keys=False))
        return run_response_file(Document.read(path), registry)

    return play


def expecting(**changes):
    return lambda case: case["response_test"][0].update(changes)


def test_a_change_that_helps_is_kept(run):
    report = run()
    assert report.passed, list(report.lines())
    assert report.problems == ()


@pytest.mark.parametrize(
    ("expected", "told"),
    [
        ({"exp_decision": "observe"}, ["- decision: observe", "+ decision: acted"]),
        ({"exp_waited": []}, ["- waited: []", '+ waited: ["thin_baseline"]']),
        ({"exp_plan": {"num_workers": 8}}, ['- plan: {"num_workers": 8}', '+ plan: {"num_workers": 4']),
        ({"exp_plan": {}}, ["- plan: {}"]),
        ({"exp_verdict": "did_not_help"}, ["- verdict: did_not_help", "+ verdict: helped"]),
        ({"exp_reason": "noise"}, ["- reason: noise"]),
        ({"exp_result": "rolled_back"}, ["- result: rolled_back", "+ result: kept"]),
        ({"exp_knobs": {"num_workers": 2}}, ['- knobs: {"num_workers": 2}', '+ knobs: {"num_workers": 4}']),
        ({"episode": 2}, ["feed, episode 2", "+ decision: none (no alert that it answers fired)"]),
    ],
)
def test_everything_that_is_expected_and_does_not_come_is_told_with_its_line(run, expected, told):
    report = run(expecting(**expected))
    lines = "\n".join(report.lines())
    assert not report.passed
    assert "FAILED, 1 tests, 1 checks" in lines
    assert all(text in lines for text in told), lines
    assert "r_test.yaml:31: response: feed" in lines


def effects(*found):
    return lambda case: case["trainer"].update(effects=list(found))


def test_a_change_that_does_nothing_is_rolled_back(run):
    def change(case):
        effects()(case)
        expecting(exp_verdict="did_not_help", exp_result="rolled_back", exp_knobs={"num_workers": 2})(case)
        case["response_test"][0].pop("exp_reason")

    assert run(change).passed


def test_without_data_after_the_change_nothing_is_known_and_it_is_rolled_back(run):
    def change(case):
        case["input_series"][1]["values"] = "0+80x35 _x100"
        expecting(exp_verdict="inconclusive", exp_reason="too_few_samples_in_window", exp_result="rolled_back")(case)
        expecting(exp_knobs={"num_workers": 2})(case)

    assert run(change).passed


@pytest.mark.parametrize(
    ("events", "verdict", "reason", "result"),
    [
        ([{"at": "40s", "do": "restart"}], "inconclusive", "trainer_restarted", "trainer_gone"),
        ([{"at": "40s", "do": "detach"}, {"at": "1m30s", "do": "attach"}], "inconclusive", "trainer_gone",
         "reverted_by_lease"),
        ([{"at": "0s", "do": "refuse"}], "inconclusive", "refused", "not_applied"),
        ([{"at": "40s", "set": {"prefetch_factor": 9}}], "helped", "gain_is_real", "kept"),
    ],
)  # fmt: skip
def test_the_trainer_can_be_made_to_misbehave(run, events, verdict, reason, result):
    def change(case):
        case["trainer"]["events"] = events
        case["response_test"] = [
            {"response": "feed", "exp_verdict": verdict, "exp_reason": reason, "exp_result": result}
        ]

    report = run(change)
    assert report.passed, list(report.lines())


def test_an_alert_that_comes_back_is_another_episode(run):
    def change(case):
        case["duration"] = "4m"
        case["input_series"][0]["values"] = "1x80 0x20 1x140"
        case["input_series"][1]["values"] = "0+80x260"
        case["input_series"][2]["values"] = "0+10x260"
        case["trainer"]["effects"] = []
        common = {"exp_verdict": "did_not_help", "exp_result": "rolled_back"}
        case["response_test"] = [{"response": "feed", "episode": n, **common} for n in (1, 2)]

    report = run(change)
    assert report.passed, list(report.lines())


SUGGESTS = RESPONSES.replace("mode: act", "mode: suggest")


@pytest.mark.parametrize(
    ("answers", "decision", "waited"),
    [
        ([], "none", ["awaiting_approval"]),
        ([{"response": "feed"}], "acted", ["awaiting_approval", "thin_baseline"]),
        ([{"response": "feed", "from": "1m50s"}], "acted", ["awaiting_approval"]),
        ([{"response": "feed", "say": "reject", "by": "ops"}], "rejected", ["awaiting_approval"]),
    ],
)
def test_people_answer_what_is_suggested_to_them(run, answers, decision, waited):
    def change(case):
        case["answers"] = answers
        case["response_test"] = [{"response": "feed", "exp_decision": decision, "exp_waited": waited}]

    report = run(change, responses=SUGGESTS)
    assert report.passed, list(report.lines())


def test_the_platforms_caps_hold_in_a_test_too(run, tmp_path):
    (tmp_path / "caps.yaml").write_text("caps: {dataloader_prefetch: observe}")

    def change(case):
        case["response_test"] = [{"response": "feed", "exp_decision": "observe", "exp_knobs": {"num_workers": 2}}]

    assert run(change, caps_file="caps.yaml").passed


WEBHOOK = """
responses:
- name: ask
  match: ['alertname="Slow"']
  remediation: webhook
  with: {url: 'https://ops.example.com/{{ $labels.tier }}'}
  mode: act
  verify: {expr: 'sum(rate(done_total[10s]))', goal: increase, by: 5%, baseline: 20s, window: 20s}
"""


def test_a_webhook_is_known_by_its_address(run):
    def change(case):
        case["trainer"]["effects"] = [
            {"when": {"request": "https://ops.example.com/fast"}, "rates": {"done_total": 1.5}}
        ]
        case["response_test"] = [
            {
                "response": "ask",
                "exp_plan": {"request": "https://ops.example.com/fast"},
                "exp_verdict": "helped",
                "exp_result": "kept",
            }
        ]

    report = run(change, responses=WEBHOOK)
    assert report.passed, list(report.lines())


NOTE = """
responses:
- name: note
  match: ['alertname="Slow"']
  remediation: annotate_only
  with: {note: 'slow: {{ $value }}'}
  mode: act
  verify: {expr: 'sum(rate(done_total[10s]))', goal: increase}
"""


def test_a_note_is_a_decision(run):
    def change(case):
        case["response_test"] = [{"response": "note", "exp_decision": "annotated"}]

    assert run(change, responses=NOTE).passed
    report = run(lambda case: case.update(response_test=[{"response": "note", "exp_decision": "x"}]), responses=NOTE)
    assert "+ decision: annotated (slow: 1)" in "\n".join(report.lines())


BATCH = """
responses:
- name: shrink
  match: ['alertname="Slow"']
  remediation: batch_size
  with: {strategy: stability, global_batch: follow}
  mode: act
  verify: {expr: 'sum(rate(done_total[10s]))', goal: increase, by: 5%, baseline: 20s, window: 20s}
- name: grow
  match: ['alertname="Slow"']
  remediation: batch_size
  with: {strategy: utilisation, global_batch: follow}
  mode: act
  verify: {expr: 'sum(rate(done_total[10s]))', goal: increase, by: 5%, baseline: 20s, window: 20s}
"""


def test_a_remediation_sees_the_series_that_it_reads(run):
    def change(case):
        case["input_series"].append({"series": "spikewatch_trainer_gradient_norm", "values": " ".join(["1 9"] * 100)})
        case["trainer"] = {"knobs": {"micro_batch_size": {"value": 32, "maximum": 64}}}
        case["response_test"] = [{"response": "shrink", "exp_plan": {"micro_batch_size": 16}}]

    report = run(change, responses=BATCH)
    assert report.passed, list(report.lines())


def test_what_was_seen_on_recordings_only_suggests_and_the_report_says_why(run):
    def change(case):
        case["input_series"].append({"series": "spikewatch_gpu_sm_active_ratio", "values": "0.9x200"})
        case["input_series"].append({"series": "spikewatch_trainer_gradient_norm", "values": "5x200"})
        case["trainer"] = {"knobs": {"micro_batch_size": {"value": 32, "maximum": 32}}}
        case["response_test"] = [{"response": "shrink", "exp_decision": "at_limit"}]

    report = run(change, responses=BATCH)
    assert report.passed, list(report.lines())
    assert [p.level for p in report.problems] == ["warning"]
    assert "`suggest` at most: the strategy utilisation reads GPU activity" in str(report.problems[0])
    assert "responses.yaml:13:9:" in str(report.problems[0])


UTILISATION = """
responses:
- name: grow
  match: ['alertname="Slow"']
  remediation: batch_size
  with: {strategy: utilisation, global_batch: follow}
  mode: suggest
  verify: {expr: 'sum(rate(done_total[10s]))', goal: increase, by: 5%, baseline: 20s, window: 20s}
"""


@pytest.mark.parametrize(
    ("activity", "nonfinite", "effect", "expected"),
    [
        ("0.91x300", "0x300", 1.2, {"exp_plan": {"micro_batch_size": 48, "accumulation_steps": 4},
                                    "exp_verdict": "helped", "exp_result": "kept"}),
        ("0.91x300", "0x300", 0.9, {"exp_verdict": "did_not_help", "exp_result": "rolled_back",
                                    "exp_knobs": {"micro_batch_size": 32}}),
        ("0.91x60 0.2x40 0.91x200", "0x300", 1.0, {"exp_decision": "acted"}),
        ("0.5x300", "0x300", 1.0, {"exp_decision": "none", "exp_waited": ["thin_history", "steady"]}),
        ("_x300", "0x300", 1.0, {"exp_decision": "none", "exp_waited": ["thin_history"]}),
        ("0.91x300", "0x5 1x295", 1.0, {"exp_plan": {"lr_factor": 0.9}}),
    ],
)  # fmt: skip
def test_the_strategy_that_reads_gpu_activity_on_recordings_of_it(run, activity, nonfinite, effect, expected):
    def change(case):
        case["duration"] = "4m"
        case["input_series"] = [
            {"series": "slow", "values": "1x300"},
            {"series": "done_total", "values": "0+80x300"},
            {"series": 'spikewatch_trainer_steps_total{rank="0"}', "values": "0+10x300"},
            {"series": 'spikewatch_gpu_sm_active_ratio{gpu="a"}', "values": activity},
            {"series": 'spikewatch_trainer_nonfinite_losses_total{rank="0"}', "values": nonfinite},
        ]
        shared = {"scope": "all_rank", "minimum": 0.1, "maximum": 512}
        case["trainer"] = {
            "knobs": {
                "micro_batch_size": {"value": 32, **shared},
                "accumulation_steps": {"value": 4, **shared},
                "lr_factor": {"value": 1.0, **shared},
            },
            "effects": [{"when": {"micro_batch_size": 48}, "rates": {"done_total": effect}}],
        }
        case["answers"] = [{"response": "grow"}]
        case["response_test"] = [{"response": "grow", **expected}]

    report = run(change, responses=UTILISATION)
    assert report.passed, list(report.lines())


# --- wrong files ------------------------------------------------------------------------------------------------------


def text(case="", top=""):
    """A file whose lines are known: the test begins on line 4."""
    return f"rule_files: [a.rules.yaml]\nresponse_files: [responses.yaml]\n{top or 'tests:'}\n- name: x\n{case}"


OK = "  response_test: [{response: feed}]\n"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (text(OK + "  colour: red\n"), ":6:3: error: unknown key 'colour' in test"),
        (text(), ":4:3: error: a test without response_test checks nothing"),
        (text("  response_test: [{response: fed}]\n"), ":5:30: error: no response is named 'fed' (there are: feed)"),
        (text("  response_test: [{exp_plan: {}}]\n"), ":5:19: error: the name of a response is missing"),
        (text(OK + "  answers: [{response: fed}]\n"), ":6:24: error: no response is named 'fed'"),
        (text(OK + "  answers: [{response: feed, say: perhaps}]\n"), ":6:35: error: say approve or reject"),
        (text(OK + "  input_series: [{series: a, values: 1+}]\n"), ":6:38: error: no series value: '1+'"),
        (text(OK + "  duration: 5 minutes\n"), ":6:13: error: duration: not a valid duration"),
        (text(OK + "  trainer: {knobs: {a: {minimum: 1}}}\n"), ":6:24: error: the knob a needs a value"),
        (text(OK + "  trainer: {knobs: {a: [1]}}\n"), ":6:24: error: a knob's value is a number"),
        (text(OK + "  trainer: {knobs: {a: {value: 1, scope: x}}}\n"), ":6:42: error: scope must be local or all_rank"),
        (text(OK + "  trainer: {effects: [{when: {a: 1}}]}\n"), ":6:30: error: a is no knob of the trainer"),
        (text(OK + "  trainer: {effects: [{rates: {b: 2}}]}\n"), ":6:31: error: b is no metric of the input series"),
        (text(OK + "  trainer: {facts: {a: b}}\n"), ":6:24: error: facts.a must be a number"),
        (text(OK + "  trainer: {events: [{at: 1s, do: explode}]}\n"), ":6:35: error: do must be one of restart"),
        (text(OK + "  trainer: {events: [{at: 1s}]}\n"), ":6:22: error: an event needs one of do and set"),
        (text(OK, "tests: []\nother:"), ":4:1: error: unknown key 'other'"),
        (text("  response_test: [{response: feed, episode: 0}]\n"), ":5:45: error: episodes count from 1"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_told_with_line_and_column(tmp_path, registry, content, complaint):
    (tmp_path / "a.rules.yaml").write_text(RULES)
    (tmp_path / "responses.yaml").write_text(RESPONSES)
    path = tmp_path / "r_test.yaml"
    path.write_text(content)
    report = run_response_file(Document.read(path), registry)
    assert not report.passed
    assert f"{path}{complaint}" in "\n".join(map(str, report.problems))


def test_a_mistake_in_the_responses_themselves_is_told_with_their_own_place(run):
    report = run(responses=RESPONSES.replace("factor: 2", "factor: two"))
    assert "responses.yaml:6:18: error: " in str(report.problems[0])


def test_a_test_that_would_take_hours_is_refused(run):
    report = run(lambda case: case.update(duration="1000h"))
    assert "more than 200000 evaluations would take hours" in "\n".join(report.lines())


def test_a_glob_that_matches_nothing_is_a_warning(run):
    report = run(rule_files=["a.rules.yaml", "b*.yaml"])
    assert report.passed
    assert "no file matches" in str(report.problems[0])


def test_the_two_kinds_of_unit_tests_are_told_apart_and_run_by_one_command(run, tmp_path):
    run()
    rules_test = tmp_path / "rules.test.yaml"
    rules_test.write_text(
        "rule_files: [a.rules.yaml]\nevaluation_interval: 1s\n"
        "tests: [{interval: 1s, input_series: [{series: slow, values: 1x9}],\n"
        "  alert_rule_test: [{eval_time: 4s, alertname: Slow}]}]\n"
    )
    good = CliRunner().invoke(_spikewatch, ["test", str(rules_test), str(tmp_path / "r_test.yaml")])
    assert good.exit_code == 0, good.output
    assert good.output.count("passed, 1 tests, 1 checks") == 2
    run(expecting(exp_verdict="inconclusive"))
    bad = CliRunner().invoke(_spikewatch, ["test", str(rules_test), str(tmp_path / "r_test.yaml")])
    assert bad.exit_code == 1
    assert "+ verdict: helped" in bad.output
