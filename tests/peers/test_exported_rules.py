"""A central Prometheus that scrapes every 15 s raises, by the rules that we export for it, the alerts of each pod."""

import json
import subprocess

import pytest
import yaml
from click.testing import CliRunner
from exported_scenes import SCENES, expected, named

import sidecar.cli
from sidecar.app.rulepack import read_pack, shipped_files

pytestmark = pytest.mark.peers

SCRAPE_S = 15
LAST_S = 750


def exported(folder, *options):
    """The shipped rules as objects for Kubernetes, and their groups as a rule file."""
    made = CliRunner().invoke(sidecar.cli._spikewatch, ["export", "prometheusrule", *options])
    assert made.exit_code == 0, made.stderr
    groups = [group for item in yaml.safe_load_all(made.stdout) for group in item["spec"]["groups"]]
    path = folder / "exported.rules.yaml"
    path.write_text(yaml.safe_dump({"groups": groups}, sort_keys=False, width=10_000))
    return path


def test_every_signal_of_a_pod_is_played():
    played = {signal.name for signal in read_pack(shipped_files(extra=False)).signals() if signal.at in ("pod", "job")}
    assert played | {"gpu_overprovisioned"} == {scene.signal for scene in SCENES} - {"well"}


def firing(names):
    return f'ALERTS{{alertname=~"{names}",alertstate="firing"}}'


def checks():
    """Each alert has fired by its time, and in twelve minutes nowhere but where it was foreseen."""
    for alert, pods in expected().items():
        for by_s in sorted({*pods.values(), LAST_S}):
            there = [{"labels": f'{{pod="{pod}"}}', "value": 1} for pod, s in pods.items() if s <= by_s]
            expr = f"count by (pod) (count_over_time({firing(alert)}[{by_s}s]))"
            yield {"expr": expr, "eval_time": f"{by_s}s", "exp_samples": there}
    foreseen = "|".join(sorted(expected()))
    others = f'count_over_time(ALERTS{{alertstate="firing",alertname!~"{foreseen}"}}[{LAST_S}s])'
    yield {"expr": f"count({others})", "eval_time": f"{LAST_S}s", "exp_samples": []}


def played(peer, rules, scenes=SCENES):
    """promtool's run of scenes, all at once, scraped every 15 s."""
    times = range(0, LAST_S + 1, SCRAPE_S)
    series = [
        {
            "series": named(one, job="pods", instance=f"{scene.signal}:9479", pod=scene.signal),
            "values": " ".join(f"{value(t):.10g}" for t in times),
        }
        for scene in scenes
        for one, value in scene.series.items()
    ]
    interval = f"{SCRAPE_S}s"
    test = {
        "rule_files": [rules.name],
        "evaluation_interval": interval,
        "tests": [{"interval": interval, "input_series": series, "promql_expr_test": list(checks())}],
    }
    (rules.parent / "exported.test.yaml").write_text(json.dumps(test))
    command = [peer("promtool"), "test", "rules", "exported.test.yaml"]
    return subprocess.run(command, cwd=rules.parent, capture_output=True, text=True, timeout=120, check=False)


def test_the_exported_rules_raise_every_alert_in_its_pod_and_in_no_other(peer, tmp_path):
    done = played(peer, exported(tmp_path, "--scrape-interval", f"{SCRAPE_S}s"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_with_the_windows_of_a_sidecar_they_would_be_silent(peer, tmp_path):
    """The test above could not fail if this did not."""
    starved = [scene for scene in SCENES if "TrainerStarvedOfData" in scene.alerts]
    done = played(peer, exported(tmp_path), starved)
    assert done.returncode == 1
    missing = done.stderr.partition("TrainerStarvedOfData")[2].partition("got:")[2].lstrip()
    assert missing.startswith("nil"), done.stderr
