"""Templates expand to exactly the text that real Prometheus code expands them to: promtool is asked."""

import ast
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from sidecar.alerting.templates import Scope, Surroundings, TemplateParser
from sidecar.errors import TemplateError

peers = os.environ.get("SPIKEWATCH_PEERS")
corpus = os.environ.get("SPIKEWATCH_CORPUS")
pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(not peers, reason="set SPIKEWATCH_PEERS to the folder with promtool in its bin/"),
]

VALUES = """0 1 -1 0.5 12345.678 1e6 1e20 1e21 1e-7 0.0001 -0.00123 100000 999999 999999.5 123456789.123 NaN Inf -Inf
3661 86400.5 59.999 1e18 1609459200 1609459200.123 -5e8 0.3333333333333333 72.5 1024 1048576.5 -86399""".split()
LABELS = {
    "a": "x.y:80",
    "instance": "h1.example.com:9100",
    "n": "12.5",
    "job": "trainer",
    "pod": "p-0",
    "namespace": "",
}
AROUND = Surroundings((("cluster", "c1"),), "http://e.x/pre/fix")

HAND = [
    "{{ $value }}",
    "{{ $value | humanize }} {{ humanize1024 $value }} {{ $value | humanizeDuration }}",
    "{{ $value | humanizePercentage }} {{ $value|humanizeTimestamp }}",
    '{{ printf "%.2f" $value }} {{ printf "%.0f" $value }} {{ printf "%f" $value }} {{ printf "%g" $value }}',
    '{{ printf "%e" $value }} {{ printf "%.3g" $value }} {{ printf "%v" $value }} {{ printf "%.1f%%" $value }}',
    '{{ printf "%s" $value }} {{ printf "%d" $value }} {{ $value | printf "about %.2f" }}',
    '{{ printf "%s" $labels.a }} {{ printf "%v" $labels.a }} {{ printf "%.2f" $labels.a }}',
    "{{ $labels.a }}-{{ .Labels.a }}-{{ $labels.nope }}-{{ $labels }}",
    "{{ .Labels.a | toUpper }} {{ $labels.a | toUpper | toLower }} {{ $value | humanize | toUpper }}",
    "{{ $externalLabels.cluster }} {{ $externalURL }} {{ $externalLabels.nope }} {{ .ExternalURL }}",
    '{{ $labels.n | humanize }} {{ humanizeDuration "90" }} {{ 5 | humanize }} {{ humanize "1_000" }}',
    '{{ title "hello world o\'neil x-y foo_bar" }} {{ safeHtml "<b>" }} {{ html "<a>" }}',
    "{{ stripPort $labels.instance }} {{ stripDomain $labels.instance }}",
    '{{ stripDomain "10.0.0.1:80" }} {{ stripDomain "[::1]:80" }} {{ stripPort "[::1]:80" }} {{ stripPort "a:b:c" }}',
    '{{ reReplaceAll "(h)(\\\\d)" "$2-${1}x$0$$" $labels.instance }} {{ match "h[0-9]" $labels.instance }}',
    '{{ graphLink "up == 1" }} {{ tableLink "up{a=\\"b\\"}" }} {{ parseDuration "1h30m" }}',
    '{{ if $value }}yes{{ else }}no{{ end }}{{ if eq $labels.a "x.y:80" }}same{{ end }}',
    '{{ if lt $value 5.0 }}small{{ end }}{{ not $value }}{{ and $value 1 }}{{ or $labels.nope "else" }}',
    "{{ args 1 2 }} {{ toTime 1609459200 }} {{ (toTime 1609459200.5).Unix }}",
    '{{ (toTime 1609459200).Format "2006-01-02T15:04:05Z07:00" }}',
    "{{ len $labels }} {{ $x := 5 }}{{ $x }} {{- $value -}} x {{/* a comment */}}",
    '{{ define "t" }}[{{ . }}]{{ end }}{{ template "t" $value }}{{ index $labels "a" }}',
    '{{ "a" | printf "%s-%s" "b" }} {{ print $value " " $labels.a }} {{ slice $labels.a 1 3 }} {{ len $labels.a }}',
    '{{ printf "%6.2f" $value }}|{{ printf "%-8s|" $labels.a }}|{{ printf "%q" $labels.a }}|{{ printf "%x" "hi" }}',
    """{{ range query "x{idx='000'}" }}{{ .Labels.idx }}={{ .Value }};{{ end }}""",
    '{{ range query "nope" }}x{{ else }}none{{ end }}',
    """{{ (query "x{idx='001'}" | first).Value | humanize }}""",
    """{{ with query "x{idx='002'}" }}{{ . | first | value }}{{ end }}""",
    """{{ range query "x{idx=~'00[0-2]'}" | sortByLabel "idx" }}{{ label "idx" . }}{{ end }}""",
    """{{ strvalue (query "x{idx='000'}" | first) }}""",
    "{{ range $k, $v := $labels }}{{ $k }}={{ $v }},{{ end }}",
    "100% sure, {{ $value }}% {} }} {",
]
# these fail when they are expanded, in Go and here; only that they do is compared
FAILING = [
    '{{ query "nope" | first | value }}',
    "{{ $labels.a | humanize }}",
    "{{ $value | toUpper }}",
    "{{ $labels.x.y }}",
    "{{ $value.foo }}",
    "{{ .Nope }}",
    '{{ humanize "abc" }}',
    '{{ parseDuration "5x" }}',
    '{{ query "sum(" }}',
    '{{ match "(" "x" }}',
]


def expanded_by_promtool(templates, values, labels, folder):
    """Alerts with these templates as annotations, expected to be none: promtool prints those it got."""
    rule = {"alert": "A", "expr": "x", "annotations": {f"t{n}": t for n, t in enumerate(templates)}}
    (folder / "r.yaml").write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": [rule]}]}, width=1 << 20))
    written = ",".join(f'{k}="{v}"' for k, v in labels.items())
    case = {
        "external_labels": dict(AROUND.external_labels),
        "external_url": AROUND.external_url,
        "input_series": [{"series": f'x{{idx="{n:03d}",{written}}}', "values": v} for n, v in enumerate(values)],
        "alert_rule_test": [{"eval_time": "0m", "alertname": "A", "exp_alerts": []}],
    }
    (folder / "t.yaml").write_text(yaml.safe_dump({"rule_files": ["r.yaml"], "tests": [case]}))
    command = [f"{peers}/bin/promtool", "test", "rules", str(folder / "t.yaml")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    got, index = {}, -1
    for line in (run.stdout + run.stderr).splitlines():
        if match := re.search(r'Labels:\{.*idx="(\d+)"', line):
            index = int(match[1])
        elif match := re.search(r"Annotations:\{(.*)\}", line):
            for number, text in re.findall(r't(\d+)=("(?:[^"\\]|\\.)*")', match[1]):
                got[index, int(number)] = ast.literal_eval(text)
    assert len(got) == len(values) * len(templates), run.stderr[:2000]
    return got


def ours(templates, values, labels):
    series = [
        (
            tuple(sorted({"__name__": "x", "idx": f"{n:03d}", **{k: v for k, v in labels.items() if v}}.items())),
            float(v),
        )
        for n, v in enumerate(values)
    ]

    def query(expr):
        if "(" in expr:
            raise TemplateError("parse error")
        wanted = re.match(r"x\{idx=~?'([^']*)'\}", expr)
        return [(ls, v) for ls, v in series if wanted and re.fullmatch(wanted[1], dict(ls)["idx"])]

    parser = TemplateParser()
    for number, template in enumerate(parser.parse(t) for t in templates):
        for index, (sample, value) in enumerate(series):
            yield index, number, template.expand(Scope(sample, value, AROUND, query))


def differences(templates, values, labels, folder):
    expected = expanded_by_promtool(templates, values, labels, folder)
    return [
        (templates[number], values[index], expected[index, number], text)
        for index, number, text in ours(templates, values, labels)
        if text != expected[index, number] and not (failed(text) and failed(expected[index, number]))
    ]


def failed(text):
    """The wording of Go's errors is Go's own."""
    return text.startswith("<error expanding template: ")


def test_every_function_and_format_expands_as_in_prometheus(tmp_path):
    assert differences(HAND, VALUES, LABELS, tmp_path) == []


def test_what_fails_in_prometheus_fails_here_and_becomes_a_text(tmp_path):
    texts = expanded_by_promtool(FAILING, ["1"], LABELS, tmp_path)
    assert all(failed(text) for text in texts.values())
    assert all(failed(text) for _, _, text in ours(FAILING, ["1"], LABELS))


def corpus_templates():
    texts = set()
    for path in (Path(corpus) / "rule_corpus").iterdir():
        for group in (yaml.safe_load(path.read_text()) or {}).get("groups") or []:
            for rule in group["rules"]:
                if "alert" in rule:
                    texts.update(str(t) for t in {**rule.get("labels", {}), **rule.get("annotations", {})}.values())
    return sorted(t for t in texts if "{{" in t)


@pytest.mark.corpus
@pytest.mark.skipif(not corpus, reason="set SPIKEWATCH_CORPUS to the folder with rule_corpus")
def test_the_templates_of_real_rules_expand_as_in_prometheus(tmp_path):
    templates = [t for t in corpus_templates() if "query" not in t]
    assert len(templates) > 500
    assert differences(templates, VALUES[:6] + ["NaN", "1609459200"], LABELS, tmp_path) == []
