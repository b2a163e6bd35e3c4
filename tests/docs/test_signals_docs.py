"""The page of provoked signals: complete, made of what was recorded, and honest about what each source was."""

import json
import re
import runpy
from pathlib import Path

import pytest

from sidecar import promql
from sidecar.alerting.loader import load_rules
from sidecar.app import records
from sidecar.app.files import shipped_folder
from sidecar.plugins import Registry
from sidecar.promql.plan import Selector, walk

ROOT = Path(__file__).parents[2]
SIGNALS = (
    "vcpu_spend_without_load", "egress_cost_surge", "provisioned_iops_idle",
    "high_cost_pod", "gpu_memory_saturated", "gpu_overprovisioned", "idle_worker", "cold_start_slow", "idle_seven_days",
    "budget_overrun",
    "small_parquet_files", "spark_task_oversized", "dataloader_throughput_low", "offload_bandwidth_low",
    "blind_gpu_bandwidth", "blind_gateway_cache", "blind_trace_sampling",
    "gpu_comm_coupling", "allreduce_wait", "checkpoint_residency", "loss_scale_collapse",
)  # fmt: skip
OTHER_CAUSES = {"spikewatch_io_block_delay_seconds_total"}
"""Of IoBlocked, which fires by any of three; it was provoked by the pressure that the kernel tells."""
FILE = ROOT / "docs" / "proof" / "signals.json"
ROWS = [row for story in json.loads(FILE.read_text())["stories"].values() for row in story["rows"]]


@pytest.fixture(scope="module")
def page():
    return runpy.run_path(str(ROOT / "docs" / "generate.py"))["PAGES"]["signals.md"]


@pytest.fixture(scope="module")
def rules():
    """Alert → its rule, and recorded series → the expression that makes it, of all that is loaded by default."""
    groups = load_rules(sorted(shipped_folder().glob("**/*.rules.yaml"))).groups
    return {rule.name: rule for group in groups for rule in group.rules}


def reads(rules, expr):
    """The metrics an expression comes down to."""
    found = set()
    for node in walk(promql.compile([expr]).node(expr)):
        if isinstance(node, Selector):
            own = rules.get(node.metric)
            found |= reads(rules, own.expr) if own is not None and not own.is_alert else {node.metric}
    return found


def test_the_page_is_what_the_record_gives(page):
    assert (ROOT / "docs" / "signals.md").read_text() == page(), "run `make docs`"


def test_each_of_the_21_signals_is_on_the_page_and_was_provoked(page):
    assert len(SIGNALS) == 21
    assert set(re.findall(r"^\| `(\w+)` \|", page(), re.M)) == set(SIGNALS)
    assert "not provoked" not in page()


def test_every_shipped_rule_about_a_signal_is_about_one_of_the_21(page):
    shipped = runpy.run_path(str(ROOT / "docs" / "generate.py"))["shipped_signals"]()
    assert set(shipped) == set(SIGNALS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["alert"])
def test_a_row_is_of_a_rule_as_it_is_shipped_now(rules, row):
    rule = rules[row["alert"]]
    labels = dict(rule.label_texts)
    assert (row["signal"], row["severity"]) == (labels["signal"], labels["severity"])
    assert row["for_s"] == rule.for_ms / 1000
    assert row["for_was_waited_out"] is (rule.for_ms <= 60_000)
    assert row["seconds"] >= row["for_s"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["alert"])
def test_a_row_says_device_only_where_what_its_rule_reads_is_known_from_real_sources(rules, row):
    registry = Registry()
    registry.discover()
    against = {info.name: info.verified.against for info in records.catalogue(registry) if info.verified}
    read = reads(rules, rules[row["alert"]].expr) - OTHER_CAUSES
    unreal = {metric for metric in read if against.get(metric, "device") != "device"}
    assert row["against"] in ("device", "recorded", "fake")
    assert row["against"] != "device" or not unreal, unreal


def test_the_readme_leads_to_the_page():
    assert "(docs/signals.md)" in (ROOT / "README.md").read_text()
