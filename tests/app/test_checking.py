"""`spikewatch check` reads each file by what it is and lists every finding with its place; its exit code says which."""

import json

import pytest
from click.testing import CliRunner

from sidecar.app.checking import check_files, kind
from sidecar.cli import _spikewatch
from sidecar.errors import PluginError
from sidecar.yamlfile import Document

GOOD = {
    "groups": {"groups": [{"name": "g", "rules": [{"alert": "A", "expr": "up == 0"}]}]},
    "responses": {
        "responses": [
            {
                "name": "r",
                "match": ['alertname="TrainerStarvedOfData"'],
                "remediation": "dataloader_prefetch",
                "verify": {"expr": "sum(rate(x[1m]))", "goal": "increase"},
            }
        ]
    },
    "overrides": {"overrides": {"TrainerStarvedOfData": {"for": "1m"}}},
    "caps": {"caps": {"dataloader_prefetch": "act"}},
    "config": {"state_dir": "s", "responses": "shipped:responses.yaml"},
}
BAD = {
    "groups": ({"groups": [{"name": "g", "rules": [{"alert": "A", "expr": "up =="}]}]}, "could not parse expression"),
    "responses": ({"responses": [{**GOOD["responses"]["responses"][0], "with": {"factor": 99}}]}, "factor"),
    "overrides": ({"overrides": {"NoSuchAlert": {"for": "1m"}}}, "no rule has an alert named 'NoSuchAlert'"),
    "caps": ({"caps": {"prayer": "act"}}, "unknown remediation 'prayer'"),
    "config": ({"state_dirr": "s"}, "unknown key 'state_dirr'"),
}


@pytest.fixture
def check(tmp_path):
    """Runs the command on files with these contents; returns exit code, output and errors."""

    def run(*contents, options=()):
        paths = []
        for number, content in enumerate(contents):
            path = tmp_path / f"file{number}.yaml"
            path.write_text(content if isinstance(content, str) else json.dumps(content))
            paths.append(str(path))
        result = CliRunner().invoke(_spikewatch, ["check", *options, *paths])
        return result.exit_code, result.stdout, result.stderr.replace(f"{tmp_path}/", "")

    return run


@pytest.mark.parametrize("what", GOOD)
def test_a_file_of_each_kind_that_is_right_passes_also_strictly(check, what):
    for options in ((), ("--strict",)):
        code, out, err = check(GOOD[what], options=options)
        assert (code, err) == (0, "")
        assert "file0.yaml: " in out


@pytest.mark.parametrize("what", BAD)
def test_a_file_of_each_kind_that_is_wrong_fails_with_its_place(check, what):
    content, text = BAD[what]
    code, out, err = check(content)
    assert code == 1
    assert out == ""
    assert text in err
    assert err.startswith("file0.yaml:1:")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("approvals: 3\n", "file0.yaml:1:12: error: approvals: must be a list"),
        ("prices: 3\n", "file0.yaml:1:9: error: prices: must be a list"),
        ("groups: [{name: g, rules: [{alert: A, expr: up, labels: 3}]}]\n", "labels must be a mapping, not text"),
        ("groups: [{name: g, rules: [3]}]\n", "a rule must be a mapping, not text"),
        ("gpus: -1\nevaluation_interval: 1\nfoo: 1\n", "file0.yaml:1:7: error: gpus: must be at least 1"),
    ],
)
def test_a_wrong_shape_is_told_in_words_of_the_file(check, content, said):
    code, _, err = check(content)
    assert code == 1
    assert said in err
    assert "Input" not in err


def test_findings_of_all_files_come_in_the_order_of_the_files(check):
    code, out, err = check(BAD["caps"][0], GOOD["groups"], BAD["groups"][0], BAD["config"][0])
    assert code == 1
    assert [line.partition(":")[0] for line in err.splitlines()] == ["file0.yaml", "file2.yaml", "file3.yaml"]
    assert "file1.yaml: 1 rule" in out


def test_bad_promql_is_placed_at_the_value_of_expr(check):
    text = "groups:\n- name: g\n  rules:\n  - alert: A\n    expr: sum(up) by\n  - alert: B\n    expr: 'rat(up)'\n"
    code, _, err = check(text)
    assert code == 1
    assert [line.split(": ")[0] for line in err.splitlines()] == ["file0.yaml:5:11", "file0.yaml:7:11"]


def test_a_warning_passes_unless_strict(check):
    response = {**GOOD["responses"]["responses"][0], "match": ['alertname="Nope"']}
    content = {"responses": [response]}
    code, out, err = check(content)
    assert (code, "1 response" in out, ": warning: " in err) == (0, True, True)
    assert check(content, options=("--strict",))[0] == 1


def test_responses_are_held_against_the_rules_given_beside_them(check):
    response = {**GOOD["responses"]["responses"][0], "match": ['alertname="A"']}
    assert "will never act" in check({"responses": [response]})[2]
    assert check({"responses": [response]}, GOOD["groups"])[2] == ""


def test_overrides_are_held_against_the_rules_given_beside_them(check):
    assert check({"overrides": {"A": {"for": "1m"}}}, GOOD["groups"])[0] == 0
    assert check(GOOD["overrides"], GOOD["groups"])[0] == 1


def test_a_configuration_is_checked_with_every_file_it_names(check, tmp_path):
    (tmp_path / "in.rules.yaml").write_text(json.dumps(BAD["groups"][0]))
    (tmp_path / "in.responses.yaml").write_text(json.dumps(BAD["responses"][0]))
    code, _, err = check({"rules": "in.rules.yaml", "responses": "in.responses.yaml", "collectors": {"bogus": {}}})
    assert code == 1
    assert {line.partition(":")[0] for line in err.splitlines()} == {"in.rules.yaml", "in.responses.yaml", "file0.yaml"}


def test_what_a_start_would_warn_of_is_a_warning_of_the_check(check):
    config = {"rules": "none*.yaml", "responses": []}
    code, _, err = check({"state_dir": "s", **config})
    assert (code, err.count("warning: rules: no file matches")) == (0, 1)
    assert check(config, options=("--strict",))[0] == 1


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("a: [1", "not valid YAML"),
        ("- a\n- b\n", "must be a mapping"),
        ("state_dir: a\nstate_dir: b\n", "given twice"),
        ("groups: 5\n", "groups"),
        ("tests: []\n", "run `spikewatch test` on it"),
        ("rule_files: [x]\n", "run `spikewatch test` on it"),
        ("a: &x [*x]\n", ""),
        ("\x00", ""),
    ],
)
def test_what_is_no_such_file_at_all_is_refused_in_words(check, content, text):
    code, _, err = check(content)
    assert code == 1
    assert text in err
    assert "Traceback" not in err


def test_a_file_that_cannot_be_read_is_a_finding(check, tmp_path):
    result = CliRunner().invoke(_spikewatch, ["check", str(tmp_path), str(tmp_path / "missing.yaml")])
    assert result.exit_code == 1
    assert "Is a directory" in result.stderr
    assert "No such file" in result.stderr


def test_an_empty_file_is_a_rule_file_without_rules_as_in_prometheus(check):
    assert check("")[:2][0] == 0


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "groups"),
        ("groups: []", "groups"),
        ("groups:", "groups"),
        ("responses: [{name: x}]", "responses"),
        ("responses: []", "responses"),
        ("responses: [a.yaml]", "config"),
        ("responses: a.yaml", "config"),
        ("caps: {a: act}", "caps"),
        ("caps: caps.yaml", "config"),
        ("overrides: {A: {for: 1m}}", "overrides"),
        ("overrides: o.yaml", "config"),
        ("rule_files: [a]", "tests"),
        ("state_dir: x", "config"),
        ("[]", "config"),
    ],
)
def test_files_are_told_apart_by_their_top_level_key(text, what):
    assert kind(Document("x", text)) == what


def test_a_broken_plugin_is_a_warning_of_every_check(tmp_path, registry):
    class WithProblem:
        remediations, collectors = registry.remediations, registry.collectors
        catalogue = registry.catalogue
        problems = (PluginError("ghost", "cannot be loaded"),)

    path = tmp_path / "a.yaml"
    path.write_text(json.dumps(GOOD["groups"]))
    report = check_files([path], WithProblem())
    assert [(p.level, p.file) for p in report.problems] == [("warning", "plugin ghost")]
