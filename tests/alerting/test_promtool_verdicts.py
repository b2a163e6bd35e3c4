"""Every rule file gets promtool's verdict: real ones, broken ones, and odd YAML."""

import os
import random
import subprocess
from pathlib import Path

import pytest
import yaml

from sidecar.alerting.loader import load_rules
from sidecar.errors import ConfigError

peers = os.environ.get("SPIKEWATCH_PEERS")
corpus = os.environ.get("SPIKEWATCH_CORPUS")
needs_peers = [
    pytest.mark.peers,
    pytest.mark.skipif(not peers, reason="set SPIKEWATCH_PEERS to the folder with promtool in its bin/"),
]
needs_corpus = [
    pytest.mark.corpus,
    pytest.mark.skipif(not corpus, reason="set SPIKEWATCH_CORPUS to the folder with rule_corpus"),
]


def accepted(path):
    try:
        load_rules([path])
    except ConfigError as e:
        found = {p.file for p in e.problems}
    else:
        return True
    assert found == {str(path)}
    return False


def promtool_accepts(paths):
    """One run for all files: promtool says SUCCESS or FAILED after each. Its lint findings are no refusal."""
    run = subprocess.run(
        [f"{peers}/bin/promtool", "check", "rules", "--lint=none", *map(str, paths)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    verdicts, current = {}, None
    for line in run.stdout.splitlines():
        if line.startswith("Checking "):
            current = line.removeprefix("Checking ")
            verdicts[current] = False
        elif "SUCCESS" in line:
            verdicts[current] = True
    assert len(verdicts) == len(paths), run.stderr
    return [verdicts[str(p)] for p in paths]


RULE = "groups: [{name: g, rules: [{alert: A, expr: up"
RECORD = "groups: [{name: g, rules: [{record: "

# text of the file → does promtool 3.5 accept it (held to the real one below)
FILES = {
    "": True,
    "---": True,
    "null": True,
    "[]": False,
    "abc": False,
    "foo: bar": False,
    "groups:": True,
    "groups: {a: b}": False,
    "groups: [null]": True,
    "groups: [abc]": False,
    "groups: []\n---\nfoo: bar": True,
    "groups: []\n---\nfoo: [bar": True,
    "groups: [{rules: []}]": False,
    'groups: [{name: "", rules: []}]': False,
    "groups: [{name: 5, rules: []}]": True,
    "groups: [{name: g}]": True,
    "groups: [{name: g, rules: }]": True,
    "groups: [{name: g, rules: [null]}]": True,
    "groups: [{name: g, rules: abc}]": False,
    "groups: [{Name: g, rules: []}]": False,
    "groups: [{name: g, name: h, rules: []}]": False,
    "groups: [{name: g, rules: []},{name: g, rules: []}]": False,
    "groups: [{name: g, interval: 0s, rules: []}]": True,
    "groups: [{name: g, query_offset: 1m, rules: []}]": True,
    "groups: [{name: g, query_offset: -1m, rules: []}]": False,
    "groups: [{name: g, labels: {a-b: c}, rules: []}]": True,
    "groups: [{name: g, labels: {__name__: c}, rules: []}]": False,
    'groups: [{name: g, labels: {a: "{{ nope }}"}, rules: [{alert: A, expr: up}]}]': True,
    "groups: [{name: g, partial_response_strategy: warn, rules: []}]": False,
    'groups: [{name: g, limit: "5", rules: []}]': False,
    "groups: [{name: g, limit: 5.5, rules: []}]": True,
    "groups: [{name: g, limit: -5, rules: []}]": True,
    "groups: [{name: g, limit: 0x10, rules: []}]": True,
    "groups: [{name: g, limit: 010, rules: []}]": True,
    "groups: [{name: g, limit: 1_000, rules: []}]": True,
    "groups: [{name: g, limit: , rules: []}]": True,
    "groups: [{name: g, limit: 1e3, rules: []}]": True,
    "groups: [{name: g, limit: true, rules: []}]": False,
    "groups: [{name: g, limit: [1], rules: []}]": False,
    "groups: [{name: g, limit: 99999999999999999999, rules: []}]": False,
    f"{RULE}, labels: {{a-b: x}}}}]}}]": True,
    f'{RULE}, labels: {{"": x}}}}]}}]': False,
    f"{RULE}, labels: {{__name__: x}}}}]}}]": False,
    f"{RULE}, labels: {{a: 5, b: null, c: true, d: 1.5, e: 2001-01-01}}}}]}}]": True,
    f"{RULE}, labels: {{5: x, null: y}}}}]}}]": True,
    f"{RULE}, labels: {{[a]: x}}}}]}}]": False,
    f"{RULE}, labels: {{a: [x]}}}}]}}]": False,
    f"{RULE}, labels: [a]}}]}}]": False,
    f"{RULE}, labels: abc}}]}}]": False,
    f"{RULE}, labels: }}]}}]": True,
    f"{RULE}, labels: {{a: b, a: c}}}}]}}]": False,
    f"{RULE}, labels: {{a: !!binary aGVsbG8=}}}}]}}]": True,
    f"{RULE}, labels: {{a: !!str 5}}}}]}}]": True,
    f"{RULE}, labels: {{a: !foo abc}}}}]}}]": True,
    f'{RULE}, annotations: {{"a b": x, __name__: y}}}}]}}]': True,
    f'{RULE}, annotations: {{"": x}}}}]}}]': False,
    f'{RULE}, annotations: {{a: "{{{{ nope }}}}"}}}}]}}]': False,
    f'{RULE}, annotations: {{a: "{{{{ $nope }}}}"}}}}]}}]': False,
    f'{RULE}, annotations: {{a: "{{{{ $labels.x "}}}}]}}]': False,
    f'{RULE}, annotations: {{a: "{{{{ end }}}}"}}}}]}}]': False,
    f'{RULE}, annotations: {{a: "{{{{ if }}}}{{{{ end }}}}"}}}}]}}]': False,
    f'{RULE}, annotations: {{a: "{{{{ range query \\"up\\" }}}}x{{{{ end }}}} }}}}"}}}}]}}]': True,
    f"{RULE}, for: 5}}]}}]": False,
    f"{RULE}, for: 0}}]}}]": True,
    f'{RULE}, for: ""}}]}}]': False,
    f"{RULE}, for: }}]}}]": True,
    f"{RULE}, for: -5m}}]}}]": False,
    f"{RULE}, for: [5m]}}]}}]": False,
    f"{RULE}, for: 1h30m}}]}}]": True,
    f'{RULE}, for: "5m "}}]}}]': False,
    f"{RULE}, for: 300y}}]}}]": False,
    f"{RULE}, keep_firing_for: 5 minutes}}]}}]": False,
    "groups: [{name: g, rules: [{alert: A, expr: 1}]}]": True,
    "groups: [{name: g, rules: [{alert: A, expr: }]}]": False,
    "groups: [{name: g, rules: [{alert: A, expr: {a: b}}]}]": False,
    'groups: [{name: g, rules: [{alert: A, expr: "\\"x\\""}]}]': True,
    'groups: [{name: g, rules: [{alert: A, expr: "up[5m]"}]}]': True,
    "groups: [{name: g, rules: [{alert: A, expr: sum(}]}]": False,
    "groups: [{name: g, rules: [{alert: A}]}]": False,
    'groups: [{name: g, rules: [{alert: "a é", expr: up}]}]': True,
    "groups: [{name: g, rules: [{expr: up}]}]": False,
    "groups: [{name: yes, rules: [{alert: no, expr: up}]}]": True,
    f'{RECORD}"a-b c", expr: up}}]}}]': True,
    f'{RECORD}"a{{}}", expr: up}}]}}]': False,
    f'{RECORD}"", expr: up}}]}}]': False,
    f"{RECORD}a, expr: up, annotations: {{a: b}}}}]}}]": False,
    f"{RECORD}a, expr: up, annotations: {{}}}}]}}]": True,
    f"{RECORD}a, expr: up, for: 5m}}]}}]": False,
    f"{RECORD}a, expr: up, for: 0m}}]}}]": True,
    f"{RECORD}a, expr: up, keep_firing_for: 5m}}]}}]": False,
    f'{RECORD}a, expr: up, labels: {{a: "{{{{ nope }}}}"}}}}]}}]': True,
    f"{RECORD}a, alert: B, expr: up}}]}}]": False,
    f"{RECORD}a, expr: up}},{{record: a, expr: up}}]}}]": True,
    "groups: [{name: &n g, rules: [{alert: *n, expr: up}]}]": True,
    f"{RULE}, labels: &l {{a: b}}}},{{alert: B, expr: up, labels: {{<<: *l, c: d}}}}]}}]": True,
    f"{RULE}, labels: &l {{a: b}}}},{{alert: B, expr: up, labels: {{<<: [*l], a: d}}}}]}}]": True,
    "groups: [{name: g, rules: [&r {alert: A, expr: up},{<<: *r, alert: B}]}]": True,
    f"{RULE}, labels: {{<<: x}}}}]}}]": False,
    "groups:\n\t- name: g": False,
    "\ufeffgroups: []": True,
    "groups: [] # \x01": False,
    "%YAML 1.1\n---\ngroups: []": True,
}


TEMPLATES = [
    *(
        "{{ }}",
        "{{ . }}",
        "{{ $ }}",
        "{{ .. }}",
        "{{ .x.y }}",
        "{{ $labels. }}",
        "{{ $labels.1a }}",
        "{{ $labels.a-b }}",
    ),
    *(
        "{{ .é }}",
        "{{ $é }}",
        "{{ nil }}",
        "{{ print nil }}",
        "{{ true }}",
        "{{ 0x1p4 }}",
        "{{ 1_000 }}",
        "{{ `raw` }}",
    ),
    *(
        "{{ 'a' }}",
        '{{ "\\q" }}',
        '{{ "a" "b" }}',
        "{{ 1 2 }}",
        "{{ 1 | }}",
        "{{ | humanize }}",
        '{{ "x" | "y" }}',
        "}}",
    ),
    *(
        "{{ len }}",
        "{{ eq 1 }}",
        "{{ humanize }}",
        "{{ $value $labels }}",
        "{{ ( $value }}",
        "{{ $value ) }}",
        "{{ @ }}",
    ),
    *(
        "{{ a; b }}",
        "{{ a, b }}",
        "{{ 5 = 6 }}",
        "{{ $value == 1 }}",
        "{{ $value > 1 }}",
        "{{ $value := 2 }}",
        "{{ % }}",
    ),
    *(
        "{{ $value = 2 }}",
        "{{ $x := 1 }}{{ $x }}",
        "{{ with $y := 1 }}{{ end }}{{ $y }}",
        "{{\n$value\n}}",
        "{{- 1 -}}",
    ),
    *(
        "{{ range 3 }}{{ break }}{{ end }}",
        "{{ break }}",
        "{{ continue }}",
        "{{ range $i, $v := . }}{{ end }}",
        "{{ else }}",
    ),
    *(
        "{{ range $i, $j, $k := . }}{{ end }}",
        "{{ with 1 }}{{ else with 2 }}{{ end }}",
        "{{ end }}{{ if 1 }}",
        "{{/* c */}}",
    ),
    *(
        '{{ template "x" }}',
        '{{ template "x" . . }}',
        '{{ define "x" }}y{{ end }}',
        '{{ block "a" . }}{{ end }}',
        "{{ call }}",
    ),
    *(
        "{{ if or }}{{ end }}",
        '{{ "unterminated }}',
        '{{ "x"[0] }}',
        "{{ (1) }}",
        "{{ a.b }}",
        "{{ toTime 1 }}",
        "{{ now }}",
    ),
    *(
        "{{ urlQueryEscape 1 }}",
        "{{ first }}",
        "{{ tmpl 1 }}",
        "{{ join 1 }}",
        "{{ urlquery 1 }}",
        "{{ js 1 }}",
        "{{ trim 1 }}",
    ),
]


@pytest.fixture(scope="module")
def odd_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("odd")
    paths = []
    for n, text in enumerate(FILES):
        paths.append(folder / f"{n:03d}.yaml")
        paths[-1].write_text(text)
    return paths


def test_odd_files_get_the_verdict_promtool_is_known_to_give(odd_files):
    wrong = [text for path, (text, verdict) in zip(odd_files, FILES.items(), strict=True) if accepted(path) != verdict]
    assert wrong == []


class TestAgainstPromtool:
    pytestmark = needs_peers

    def test_the_verdicts_noted_here_are_promtools(self, odd_files):
        verdicts = promtool_accepts(odd_files)
        assert [t for t, v in zip(FILES, verdicts, strict=True) if FILES[t] != v] == []


@pytest.mark.peers
@needs_peers[1]
def test_odd_templates_get_promtools_verdict(tmp_path):
    paths = []
    for n, template in enumerate(TEMPLATES):
        rule = {"alert": "A", "expr": "up", "annotations": {"a": f"x {template} y"}}
        paths.append(tmp_path / f"{n:03d}.yaml")
        paths[-1].write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": [rule]}]}))
    verdicts = promtool_accepts(paths)
    assert [t for t, p, v in zip(TEMPLATES, paths, verdicts, strict=True) if accepted(p) != v] == []
    assert 10 < verdicts.count(True) < len(verdicts) - 10


def key_typo(groups, rng):
    rule = rng.choice([r for g in groups for r in g["rules"]])
    key = rng.choice(sorted(rule))
    rule[key + rng.choice("sx_ ")] = rule.pop(key)


def bad_duration(groups, rng):
    rule = rng.choice([r for g in groups for r in g["rules"]])
    target, key = rng.choice([(rule, "for"), (rule, "keep_firing_for"), (rng.choice(groups), "interval")])
    target[key] = rng.choice(["5", "5 m", "1m1h", "five", "", "-1m", "1.5h", "5M", "400y"])


def bad_label_name(groups, rng):
    rule = rng.choice([r for g in groups for r in g["rules"]])
    rule.setdefault("labels", {})[rng.choice(["__name__", ""])] = "x"


def duplicate_group(groups, rng):
    groups.append(dict(rng.choice(groups)))


def broken_template(groups, rng):
    rules = [r for g in groups for r in g["rules"] if "alert" in r]
    if rules:
        broken = ["{{ $labels.x ", "{{ .x | }}", "{{ humanise $value }}", "{{ $vlaue }}", "{{ if true }}", "{{ end }}"]
        broken += ["{{ $value | printf }", "{{ template }}", "{{ 1 | 2 }}", '{{ "x }}', "{{ $labels.x.. }}", "{{ ( }}"]
        where = rng.choice(["annotations", "labels"])
        rng.choice(rules).setdefault(where, {})["summary"] = "a " + rng.choice(broken) + " b"


MUTATIONS = [key_typo, bad_duration, bad_label_name, duplicate_group, broken_template]


def write_mutations(files, folder, seed):
    rng = random.Random(seed)
    for path in files:
        for mutation in MUTATIONS:
            document = yaml.safe_load(path.read_text())
            if not (document and document.get("groups")) or not any(g.get("rules") for g in document["groups"]):
                continue
            mutation(document["groups"], rng)
            target = folder / f"{path.stem}.{mutation.__name__}.yaml"
            target.write_text(yaml.safe_dump(document, sort_keys=False))
            yield target


def compare(paths):
    assert paths
    verdicts = promtool_accepts(paths)
    ours = [accepted(p) for p in paths]
    assert [p.name for p, a, b in zip(paths, ours, verdicts, strict=True) if a != b] == []
    return verdicts


class TestOverTheCorpus:
    pytestmark = [*needs_peers, *needs_corpus]

    def files(self):
        return sorted((Path(corpus) / "rule_corpus").iterdir())

    def test_every_real_rule_file_is_accepted_as_by_promtool(self):
        assert all(compare(self.files()))

    def test_every_tenth_file_broken_in_five_ways_gets_promtools_verdict(self, tmp_path):
        verdicts = compare(list(write_mutations(self.files()[::10], tmp_path, seed=1)))
        assert verdicts.count(False) > len(verdicts) / 2

    @pytest.mark.proof
    @pytest.mark.timeout(300)
    def test_every_file_broken_in_five_ways_gets_promtools_verdict(self, tmp_path):
        for seed in range(3):
            compare(list(write_mutations(self.files(), tmp_path, seed)))
