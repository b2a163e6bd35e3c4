"""One cause, one page: the example for Alertmanager, over the alerts that the shipped rules raise."""

import json
import re
import socket
import subprocess
import time
from itertools import product
from pathlib import Path

import httpx
import pytest
import yaml

from sidecar.app.rulepack import read_pack, shipped_files
from sidecar.responses import matchers

EXAMPLE = Path(__file__).parents[2] / "examples" / "alertmanager.yml"
WHERE = {"cluster": "c", "namespace": "n", "train_job": "j", "pod": "p"}

# (what is the cause, what is told besides, what of the labels may differ)
SILENCED = [
    ("TrainerStarvedOfData", "PrefetchHitRateLow", "rank"),
    ("TrainerStarvedOfData", "InputThroughputLow", ""),
    ("TrainerStarvedOfData", "SmLagsDram", "gpu"),
    ("TrainerStarvedOfData", "IoBlocked", "cause"),
    ("TrainerStarvedOfData", "DataWorkersThrottled", ""),
    ("TrainerStarvedOfData", "PageCacheThrash", ""),
    ("TrainerStarvedOfData", "GpuHeldIdle", "gpu"),
    ("TrainerStarvedOfData", "AllReduceWait", "pod"),
    ("TrainerStarvedOfData", "StragglerRank", "pod"),
    ("CollectiveTimedOut", "AllReduceWait", "pod"),
    ("CollectiveTimedOut", "GpuCommCoupling", "pod"),
    ("CollectiveTimedOut", "TrainerNoProgress", "pod"),
    ("CollectiveTimedOut", "TrainerStarvedOfData", "pod"),
    ("NcclTransportDowngraded", "GpuCommCoupling", "pod"),
    ("NcclTransportDowngraded", "GradientBuffersMisaligned", ""),
    ("NcclTransportDowngraded", "AllReduceWait", "pod"),
    ("GpuXidError", "AllReduceWait", "pod"),
    ("GpuClockThrottled", "StragglerRank", "pod"),
    ("GpuClockThrottled", "GpuBelowBaseline", ""),
    ("TrainerNoProgress", "GpuHeldIdle", "gpu"),
    ("AllReduceWait", "CostPerSampleUp", "pod"),
    ("StragglerRank", "GpuCommCoupling", "pod"),
    ("CheckpointResidency", "CostPerSampleUp", "rank"),
    ("NonFiniteLoss", "LossScaleCollapse", "pod"),
    ("LossScaleCollapse", "GradientOverflowsFrequent", ""),
    ("LossScaleCollapse", "GradientOverflowsMany", ""),
    ("GradientOverflowsFrequent", "GradientOverflowsMany", ""),
    ("CheckpointResidency", "GpuMemoryFragmented", "rank"),
    ("CheckpointResidency", "GpuMemorySaturatedByTraining", "gpu"),
    ("GpuMemoryFragmentedAndSlow", "CheckpointResidency", "rank"),
    ("CollectorDown", "BlindGpuBandwidth", ""),
    ("ScrapeTargetDown", "BlindGatewayCache", "instance"),
    ("HighCostPod", "CostliestPods", ""),
    ("BudgetOverrun", "BudgetOverrunAhead", ""),
]
TOLD = [
    ("TrainerStarvedOfData", "IoBlocked", "pod"),
    ("TrainerStarvedOfData", "PrefetchHitRateLow", "namespace"),
    ("CollectiveTimedOut", "AllReduceWait", "train_job"),
    ("CollectiveTimedOut", "AllReduceWait", "cluster"),
    ("BudgetOverrun", "BudgetOverrunAhead", "budget"),
    ("HighCostPod", "CostliestPods", "pod"),
    ("CheckpointResidency", "GpuMemoryFragmented", "pod"),
    ("CollectorDown", "BlindGpuBandwidth", "collector"),
    # a consequence does not silence its cause
    ("AllReduceWait", "CollectiveTimedOut", ""),
    ("IoBlocked", "TrainerStarvedOfData", ""),
    ("GpuCommCoupling", "NcclTransportDowngraded", ""),
    ("CostPerSampleUp", "GpuCommCoupling", ""),
    ("CheckpointResidency", "CostPerSampleUp", "pod"),
    # and what has nothing to do with each other is told, both
    ("TrainerStarvedOfData", "CheckpointResidency", ""),
    ("TrainerStarvedOfData", "ColdStartSlow", ""),
    ("LossScaleCollapse", "TrainerStarvedOfData", ""),
    ("BudgetOverrun", "VcpuSpendWithoutLoad", ""),
]
OWN = {"CollectorDown": {"collector": "nvml"}, "BudgetOverrun": {"budget": "b"}, "BudgetOverrunAhead": {"budget": "b"}}


@pytest.fixture(scope="module")
def alerts():
    """Shipped alert → the labels it always has."""
    return {a.rule.name: {"alertname": a.rule.name, **a.labels} for a in read_pack(shipped_files(extra=True)).alerts}


@pytest.fixture(scope="module")
def config():
    return yaml.safe_load(EXAMPLE.read_text())


def parsed(texts):
    return [m for text in texts for m in matchers.parse(text)]


def test_what_the_example_names_exists(config, alerts):
    known = {name: {labels.get(name, "") for labels in alerts.values()} for name in ("alertname", "signal", "severity")}
    rules = [m for r in config["inhibit_rules"] for side in ("source", "target") for m in parsed(r[f"{side}_matchers"])]
    routes = [m for route in config["route"]["routes"] for m in parsed(route["matchers"])]
    for m in (m for m in (*rules, *routes) if m.name in known and m.value != ".+"):
        for part in m.value.split("|"):
            assert any(re.fullmatch(part, value) for value in known[m.name]), part
    names = {receiver["name"] for receiver in config["receivers"]}
    assert {config["route"]["receiver"], *(route["receiver"] for route in config["route"]["routes"])} == names


def test_nothing_silences_itself_by_a_detour(config, alerts):
    """Whatever fires at one place, some cause is told: no two alerts silence each other, be it through others."""
    full = {name: {**WHERE, **OWN.get(name, {}), **labels} for name, labels in alerts.items()}
    rules = [(parsed(r["source_matchers"]), parsed(r["target_matchers"])) for r in config["inhibit_rules"]]
    matched = [
        (
            {n for n, labels in full.items() if all(m.matches(labels) for m in source)},
            {n for n, labels in full.items() if all(m.matches(labels) for m in target)},
        )
        for source, target in rules
    ]
    silences = {
        (source, target)
        for (sources, targets), (_, raw) in zip(matched, rules, strict=True)
        for source, target in product(sources, targets)
        if source != target
        and (any(m.name == "alertname" for m in raw) or full[source]["signal"] == full[target]["signal"])
    }
    assert silences
    causes = set(full)
    while rest := {target for source, target in silences if source in causes and target in causes}:
        roots = causes - rest
        assert roots, f"a ring: {sorted(causes)}"
        causes = rest


def test_a_rule_that_speaks_of_a_pod_or_job_wants_it_named_on_both_sides(config):
    """Two labels that are missing are equal to Alertmanager: every job without a name would silence every other."""
    for rule in config["inhibit_rules"]:
        if {"cluster", "namespace"} <= set(rule["equal"]) and "signal" not in rule["equal"]:
            sides = [{m.name for m in parsed(rule[f"{side}_matchers"])} for side in ("source", "target")]
            last = rule["equal"][-1]
            assert all(last in names for names in sides) or "ScrapeTargetDown" in str(rule), rule


@pytest.mark.peers
def test_amtool_accepts_the_example(peer):
    done = subprocess.run([peer("amtool"), "check-config", EXAMPLE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout


@pytest.mark.peers
def test_a_real_alertmanager_silences_the_consequence_and_not_what_happens_elsewhere(
    alertmanager_command, alerts, tmp_path
):
    posted, wanted = [], {}  # what is to be told comes first: once the rest is silenced it would be, too
    for number, (case, silenced) in enumerate([*((c, False) for c in TOLD), *((c, True) for c in SILENCED)]):
        cause, target, differs = case
        where = WHERE | {"cluster": f"case-{number}"}
        here = where | OWN.get(cause, {}) | alerts[cause]
        there = where | OWN.get(target, {}) | alerts[target]
        if differs == "collector":  # another one is down
            here["collector"] = "io"
        elif differs:
            there[differs] = f"other-{number}"
        posted += [{"labels": here}, {"labels": there}]
        wanted[json.dumps(there, sort_keys=True)] = (silenced, case)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = "{}:{}".format(*free.getsockname())
    command = alertmanager_command(EXAMPLE, tmp_path / "data", address)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with httpx.Client(base_url=f"http://{address}", trust_env=False) as client:
            wrong = told(client, posted, wanted)
    finally:
        process.kill()
        process.wait(10)
    assert wrong == []


def told(client, posted, wanted, seconds=20):
    """The cases that are not as wanted, once there are none or the time is over."""
    until, wrong = time.monotonic() + seconds, ["no Alertmanager"]
    while wrong and time.monotonic() < until:
        try:
            client.post("/api/v2/alerts", json=posted).raise_for_status()
            found = client.get("/api/v2/alerts").raise_for_status().json()
        except httpx.TransportError:
            time.sleep(0.05)
            continue
        states = {json.dumps(a["labels"], sort_keys=True): bool(a["status"]["inhibitedBy"]) for a in found}
        wrong = [case for labels, (silenced, case) in wanted.items() if states.get(labels) is not silenced]
        time.sleep(0.05 if wrong else 0)
    return wrong
