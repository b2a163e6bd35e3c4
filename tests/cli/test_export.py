"""`spikewatch export`: rules for a central Prometheus, with windows that suit its scrape interval."""

import os
import re
from pathlib import Path

import pytest
import yaml

from sidecar.alerting.loader import load_rules
from sidecar.promql import canonical, compile
from sidecar.promql.plan import Range, Subquery, walk
from sidecar.yamlfile import Document

RULES = """
groups:
- name: first
  interval: 30s
  query_offset: 10s
  limit: 7
  labels: {team: "1e3", on_call: y}
  rules:
  - record: x:rate
    expr: |
      # what comes in
      rate(x{path="[5s]"}[30s]) + rate(x[5m])
    labels: {kind: "007"}
  - alert: Burst
    expr: increase(x[10s] offset 1m) > 3 and max_over_time(x:rate[20s:5s]) > 1
    for: 5s
    keep_firing_for: 1m
    annotations: {summary: 'rank {{ $labels.rank }}: "{{ $value }}"', many: "two\\nlines"}
- name: second
  rules:
  - {alert: Slow, expr: vector(1) > 2}
"""


@pytest.fixture
def rule_file(tmp_path):
    path = tmp_path / "My Rules.rules.yaml"
    path.write_text(RULES)
    return path


def meaning(text):
    """What Prometheus makes of a rule file."""
    groups = load_rules([Document("rules", text)]).groups
    return [
        (
            (group.name, group.interval_ms, group.query_offset_ms, group.limit),
            [
                (r.name, canonical(r.expr), r.for_ms, r.keep_firing_for_ms, r.label_texts, r.annotation_texts)
                for r in group.rules
            ],
        )
        for group in groups
    ]


def test_a_rule_file_without_scrape_interval_means_what_it_meant(spikewatch, rule_file):
    result = spikewatch("export", "rules", rule_file)
    assert (result.exit_code, result.stderr) == (0, "")
    assert meaning(result.stdout) == meaning(RULES)
    assert "# what comes in" in result.stdout


def test_the_groups_own_fields_stay_with_the_group(spikewatch, rule_file):
    (first, _) = yaml.safe_load(spikewatch("export", "rules", rule_file).stdout)["groups"]
    assert {key: value for key, value in first.items() if key != "rules"} == {
        "name": "first",
        "interval": "30s",
        "query_offset": "10s",
        "limit": 7,
        "labels": {"team": "1e3", "on_call": "y"},
    }


def test_text_that_go_would_read_as_something_else_is_quoted(spikewatch, rule_file):
    text = spikewatch("export", "rules", rule_file).stdout
    assert [line.strip() for line in text.splitlines() if "team:" in line or "on_call:" in line or "kind:" in line] == [
        "team: '1e3'",
        "on_call: 'y'",
        "kind: '007'",
    ]


def test_windows_under_four_scrapes_are_widened_and_others_left(spikewatch, rule_file):
    result = spikewatch("export", "rules", "--scrape-interval", "15s", rule_file)
    rules = {r.name: r for g in load_rules([Document("out", result.stdout)]).groups for r in g.rules}
    assert rules["x:rate"].expr == '# what comes in\nrate(x{path="[5s]"}[1m]) + rate(x[5m])'
    assert rules["Burst"].expr == "increase(x[1m] offset 1m) > 3 and max_over_time(x:rate[1m:5s]) > 1"
    comments = [line.strip() for line in result.stdout.splitlines() if "spikewatch.io" in line]
    assert comments == ["# spikewatch.io/widened: 30s to 1m", "# spikewatch.io/widened: 10s, 20s to 1m"]


def test_it_says_where_a_threshold_means_something_else_now(spikewatch, rule_file):
    lines = spikewatch("export", "rules", "--scrape-interval", "15s", rule_file).stderr.splitlines()
    assert lines[0].endswith("first/x:rate: window 30s made 1m long")
    assert lines[1].endswith("increase over it grows with it: look at the threshold")
    assert len(lines) == 2


def test_a_prometheusrule_carries_names_labels_and_what_was_widened(spikewatch, rule_file):
    result = spikewatch(
        "export", "prometheusrule", "--namespace", "ml", "--label", "release=kps", "--scrape-interval", "15s", rule_file
    )
    made = yaml.safe_load(result.stdout)
    assert (made["apiVersion"], made["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert made["metadata"] == {
        "name": "my-rules",
        "namespace": "ml",
        "labels": {"app.kubernetes.io/name": "spikewatch", "release": "kps"},
        "annotations": {"spikewatch.io/widened": "first/x:rate: 30s to 1m\nfirst/Burst: 10s, 20s to 1m\n"},
    }
    assert [group["name"] for group in made["spec"]["groups"]] == ["first", "second"]


@pytest.mark.parametrize(
    ("option", "value"),
    [("--namespace", "A b"), ("--namespace", "-x"), ("--label", "x y=z"), ("--label", "x=a b"), ("--label", "x")],
)
def test_what_kubernetes_would_not_take_is_refused(spikewatch, rule_file, option, value):
    result = spikewatch("export", "prometheusrule", option, value, rule_file)
    assert result.exit_code == 2
    assert "Invalid value" in result.stderr


def test_overrides_are_in_what_is_exported(spikewatch, rule_file, tmp_path):
    changes = tmp_path / "overrides.yaml"
    burst = "{expr: 'increase(x[20s]) > 9', for: 90s, severity: critical}"
    changes.write_text(f"overrides:\n  Burst: {burst}\n  Slow: {{disabled: true}}\n")
    result = spikewatch("export", "rules", "--scrape-interval", "15s", "--overrides", changes, rule_file)
    (first, second) = load_rules([Document("out", result.stdout)]).groups
    burst = first.rules[1]
    assert (burst.expr, burst.for_ms, burst.keep_firing_for_ms) == ("increase(x[1m]) > 9", 90_000, 60_000)
    assert dict(burst.label_texts)["severity"] == "critical"
    assert second.rules == (), "a disabled alert is not exported"


def test_an_override_of_an_alert_that_is_not_exported_is_refused(spikewatch, rule_file, tmp_path):
    changes = tmp_path / "overrides.yaml"
    changes.write_text("overrides:\n  Brust: {disabled: true}\n")
    result = spikewatch("export", "rules", "--overrides", changes, rule_file)
    assert result.exit_code == 1
    assert f"{changes}:2:10: error: no rule has an alert named 'Brust' (alerts: Burst, Slow)" in result.stderr


def test_nothing_widened_is_nothing_annotated(spikewatch, rule_file):
    made = yaml.safe_load(spikewatch("export", "prometheusrule", "--scrape-interval", "1s", rule_file).stdout)
    assert "annotations" not in made["metadata"]


def test_runbooks_can_be_said_to_be_elsewhere(spikewatch, tmp_path):
    links = {"A": "{{ $externalURL }}/runbooks/A", "B": "https://wiki/B", "C": ""}
    rules = [
        {"alert": a, "expr": "x", "annotations": {"runbook_url": link} if link else {}} for a, link in links.items()
    ]
    path = tmp_path / "a.rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": rules}]}))

    def written(*options):
        out = yaml.safe_load(spikewatch("export", "rules", *options, path).stdout)
        return [rule.get("annotations", {}).get("runbook_url") for rule in out["groups"][0]["rules"]]

    assert written() == ["{{ $externalURL }}/runbooks/A", "https://wiki/B", None]
    assert written("--runbooks", "https://git/books/") == ["https://git/books/A", "https://wiki/B", None]


def test_the_shipped_rules_are_what_is_exported_by_default(spikewatch):
    out = spikewatch("export", "rules").stdout
    assert "TrainerStarvedOfData" in [rule.get("alert") for g in yaml.safe_load(out)["groups"] for rule in g["rules"]]


def test_several_files_become_one_rule_file_or_one_object_each(spikewatch, rule_file, tmp_path):
    other = tmp_path / "other.yml"
    other.write_text("groups: [{name: third, rules: [{record: a, expr: 1}]}]")
    groups = yaml.safe_load(spikewatch("export", "rules", rule_file, other).stdout)["groups"]
    assert [group["name"] for group in groups] == ["first", "second", "third"]
    objects = list(yaml.safe_load_all(spikewatch("export", "prometheusrule", rule_file, other).stdout))
    assert [made["metadata"]["name"] for made in objects] == ["my-rules", "other"]


@pytest.mark.parametrize(
    ("form", "second", "said"),
    [("rules", "b.yaml", "group 'first' is also in"), ("prometheusrule", "My-Rules.yml", "would be called 'my-rules'")],
)
def test_names_that_clash_are_refused(spikewatch, rule_file, tmp_path, form, second, said):
    other = tmp_path / second
    other.write_text(RULES)
    result = spikewatch("export", form, rule_file, other)
    assert (result.exit_code, result.stdout) == (1, "")
    assert said in result.stderr


def test_what_prometheus_refuses_is_not_exported(spikewatch, rule_file):
    rule_file.write_text("groups: [{name: g, rules: [{alert: A, expr: 'rate(x)'}]}]")
    result = spikewatch("export", "rules", rule_file)
    assert (result.exit_code, result.stdout) == (1, "")
    assert ":1:" in result.stderr


def test_an_output_file_is_written_and_one_that_cannot_be_is_an_error(spikewatch, rule_file, tmp_path):
    assert spikewatch("export", "rules", "--output", tmp_path / "out.yaml", rule_file).exit_code == 0
    assert meaning((tmp_path / "out.yaml").read_text()) == meaning(RULES)
    result = spikewatch("export", "rules", "--output", tmp_path / "no" / "out.yaml", rule_file)
    assert result.exit_code == 1
    assert "cannot be written" in result.stderr


@pytest.mark.parametrize("empty", ["", "groups:\n", "groups: []\n"])
def test_a_file_without_rules_stays_one(spikewatch, rule_file, empty):
    rule_file.write_text(empty)
    assert yaml.safe_load(spikewatch("export", "rules", rule_file).stdout) == {"groups": []}


# --- everything there is --------------------------------------------------------------------------------------------


def corpus(step):
    """Every so many-th file of the corpus that loads."""
    folder = os.environ.get("SPIKEWATCH_CORPUS")
    if not folder:
        pytest.skip("SPIKEWATCH_CORPUS is not set")
    found = []
    for path in sorted(Path(folder, "rule_corpus").glob("*.yaml"))[::step]:
        try:
            load_rules([path])
        except Exception:  # noqa: BLE001  some are there to be refused
            continue
        found.append(path)
    return found


@pytest.mark.corpus
@pytest.mark.peers
@pytest.mark.parametrize("step", [24, pytest.param(1, marks=[pytest.mark.proof, pytest.mark.timeout(300)])])
def test_real_rule_files_keep_their_meaning_and_promtool_takes_them(spikewatch, promtool, tmp_path, step):
    files = corpus(step)
    assert len(files) > 100 / step
    for number, path in enumerate(files):
        out = spikewatch("export", "rules", path).stdout
        assert meaning(out) == meaning(path.read_text()), path.name
        wide = tmp_path / f"{number}.yaml"
        assert spikewatch("export", "rules", "--scrape-interval", "1m", "--output", wide, path).exit_code == 0
        for group in load_rules([wide]).groups:
            for rule in group.rules:
                assert all(length >= 240_000 for length in windows(rule.expr)), (path.name, rule.name)
    promtool("check", "rules", "--lint=none", *sorted(tmp_path.glob("*.yaml")))


def windows(expr):
    return [node.range_ms for node in walk(compile([expr]).node(expr)) if isinstance(node, Range | Subquery)]


@pytest.mark.corpus
def test_objects_have_the_shape_of_the_custom_resource(spikewatch, rule_file):
    schema = resource_schema()
    for path in [rule_file, *corpus(40)]:
        for text in spikewatch("export", "prometheusrule", "--scrape-interval", "30s", path).stdout.split("\n---\n"):
            made = yaml.safe_load(text)
            assert list(misfits(made, schema, "object")) == [], path.name
            names = [group["name"] for group in made["spec"]["groups"]]
            assert len(names) == len(set(names))


def test_the_shape_check_finds_what_does_not_fit():
    schema = resource_schema()
    broken = {"spec": {"groups": [{"rules": [{"alert": 3, "for": "soon", "expr": "x", "remediate": "y"}]}]}}
    assert sorted(misfits(broken, schema, "object")) == [
        "object.spec.groups[0].rules[0].alert: not a string",
        "object.spec.groups[0].rules[0].for: not of the pattern",
        "object.spec.groups[0].rules[0].remediate: unknown",
        "object.spec.groups[0]: no name",
    ]


def resource_schema():
    folder = os.environ.get("SPIKEWATCH_CORPUS")
    if not folder:
        pytest.skip("SPIKEWATCH_CORPUS is not set")
    resource = yaml.safe_load(Path(folder, "crds", "prometheusrules.yaml").read_text())
    (version,) = [v for v in resource["spec"]["versions"] if v["name"] == "v1"]
    return version["schema"]["openAPIV3Schema"]


def misfits(value, schema, where):
    """What an API server would refuse or drop, for the parts of OpenAPI that this resource uses."""
    kinds = {"object": dict, "array": list, "string": str, "integer": int}
    if schema.get("x-kubernetes-int-or-string"):
        if not isinstance(value, int | str):
            yield f"{where}: neither number nor text"
        return
    if (kind := schema.get("type")) and not isinstance(value, kinds[kind]):
        yield f"{where}: not a {kind}"
        return
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        yield f"{where}: not of the pattern"
    if isinstance(value, str) and len(value) < schema.get("minLength", 0):
        yield f"{where}: too short"
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from misfits(item, schema["items"], f"{where}[{number}]")
    if isinstance(value, dict):
        yield from _misfits_of_fields(value, schema, where)


def _misfits_of_fields(value, schema, where):
    yield from (f"{where}: no {name}" for name in schema.get("required", ()) if name not in value)
    for name, item in value.items():
        inner = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
        if inner is None and where != "object.metadata":
            yield f"{where}.{name}: unknown"
        elif inner is not None:
            yield from misfits(item, inner, f"{where}.{name}")
