"""promtool finds what our engine computes for random rules and series: alerts, ALERTS series and recorded ones."""

import os
import random
import re
import subprocess

import pytest
import yaml

from sidecar.alerting.unittests import run_file

peers = os.environ.get("SPIKEWATCH_PEERS")
pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(not peers, reason="set SPIKEWATCH_PEERS to the folder with promtool in its bin/"),
]

MINUTES = 12
CASE = """
- name: g{n}
  query_offset: {offset}
  labels: {{team: t, lab: shared}}
  rules:
  - record: rec{n}
    expr: max_over_time(x{n}[2m]) {threshold}
    labels: {{lab: "{{{{ $value }}}}"}}
  - alert: A{n}
    expr: x{n} {threshold}
    for: {for}
    keep_firing_for: {keep_firing_for}
    labels: {{lab: "{label}"}}
    annotations: {{value: "{{{{ $value }}}} at {{{{ $labels.rank }}}}"}}
"""
PAIR = re.compile(r'(\w+)="([^"]*)"')


@pytest.mark.parametrize("seed", [1, 2])
def test_promtool_confirms_what_we_compute(tmp_path, seed):
    path, tests = write_random_tests(tmp_path, random.Random(seed), cases=12)
    fill_in(tests, run_file(path))
    write(path, tests)
    assert run_file(path).passed
    command = [f"{peers}/bin/promtool", "test", "rules", str(path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, (run.stdout + run.stderr)[:5000]
    assert sum(len(e["exp_alerts"]) for t in tests for e in t["alert_rule_test"]) > 50


def write(path, tests):
    path.write_text(yaml.safe_dump({"rule_files": ["random.rules.yaml"], "tests": tests}))


def write_random_tests(folder, rng, cases):
    """A file that expects nothing, and its tests."""
    rules, tests = "groups:", []
    for n in range(cases):
        rules += CASE.format(
            **{
                "n": n,
                "for": rng.choice(["0s", "1m", "3m"]),
                "keep_firing_for": rng.choice(["0s", "0s", "1m", "2m"]),
                "label": rng.choice(["x", "{{ $labels.rank }}", "{{ $value }}", "{{ $labels.nope }}"]),
                "threshold": rng.choice(["> 0", "> 1", ">= 0"]),
                "offset": rng.choice(["0s", "0s", "1m", "90s"]),
            }
        )
        exprs = (f"rec{n}", f'ALERTS{{alertname="A{n}"}}', f'ALERTS_FOR_STATE{{alertname="A{n}"}}')
        tests.append(
            {
                "name": f"case {n}",
                "interval": "1m",
                "input_series": [
                    {
                        "series": f'x{n}{{rank="{rank}"}}',
                        "values": " ".join(rng.choice(["0", "1", "2", "2", "_", "stale"]) for _ in range(MINUTES)),
                    }
                    for rank in range(3)
                ],
                "alert_rule_test": [
                    {"eval_time": f"{t}m", "alertname": f"A{n}", "exp_alerts": []} for t in range(MINUTES)
                ],
                "promql_expr_test": [
                    {"expr": expr, "eval_time": f"{t}m", "exp_samples": []}
                    for t in range(0, MINUTES, 3)
                    for expr in exprs
                ],
            }
        )
    (folder / "random.rules.yaml").write_text(rules)
    path = folder / "random.test.yaml"
    write(path, tests)
    return path, tests


def fill_in(tests, report):
    """Puts what was got in the place of the empty expectations."""
    assert not report.problems
    for failure in report.failures:
        assert not failure.message, failure
        test = tests[int(failure.case.removeprefix("case "))]
        time = re.search(r"time: (\S+)", failure.what)[1].replace("0s", "0m")
        if failure.what.startswith("alertname"):
            entry = next(e for e in test["alert_rule_test"] if e["eval_time"] == time)
            for line in failure.got:
                labels, annotations = (dict(PAIR.findall(part)) for part in line.split(" annotations "))
                del labels["alertname"]
                entry["exp_alerts"].append({"exp_labels": labels, "exp_annotations": annotations})
        else:
            expr = re.search(r"expr: '(.*)', time", failure.what)[1]
            entry = next(e for e in test["promql_expr_test"] if e["eval_time"] == time and e["expr"] == expr)
            for line in failure.got:
                labels, value = line.rsplit(" ", 1)
                entry["exp_samples"].append({"labels": labels, "value": float(value)})
