"""The page about cluster mode is right: its configuration loads, its permissions suffice, its settings exist."""

import re
from pathlib import Path

import pytest
import yaml

from sidecar.app.collecting import check
from sidecar.collectors.cost.collector import CostSettings
from sidecar.collectors.cost.pricebook import load_prices
from sidecar.collectors.kube.api import RESOURCES
from sidecar.collectors.kube.catalogue import METRICS
from sidecar.collectors.kube.settings import KubeSettings
from sidecar.collectors.scrape.fetch import samples
from sidecar.collectors.scrape.jobs import targets
from sidecar.hooks import CollectorSettings
from sidecar.plugins import Registry
from sidecar.settings import load

DOCS = Path(__file__).parents[2] / "docs"
PAGE, COST = (DOCS / "cluster.md").read_text(), (DOCS / "cost.md").read_text()
BLOCKS = re.findall(r"```yaml\n(.+?)```", PAGE, re.S)


def block(first_line):
    (found,) = [b for b in BLOCKS if b.startswith(f"# {first_line}\n")]
    return found


@pytest.fixture
def example(tmp_path):
    """The page's configuration, checked: collectors' settings by name."""
    file = tmp_path / "cluster.yaml"
    file.write_text(block("cluster.yaml"))
    registry = Registry()
    registry.discover()
    return check(load(file, {}), registry)


def test_the_configuration_loads_and_leaves_on_only_what_a_cluster_has(example):
    on = {name for name, settings in example.items() if settings.enabled}
    assert on == {"kube", "cost", "scrape", "datasets", "spark"}


def test_its_gpus_become_the_series_that_rules_read(example):
    (target,) = targets(example["scrape"].jobs[0])
    plain = 'gpu="0",UUID="GPU-a",Hostname="n1",namespace="train",pod="a-0",job="dcgm",instance="x"'
    exported = 'gpu="0",UUID="GPU-b",namespace="gpu",pod="dcgm-1",exported_namespace="train",exported_pod="b-0"'
    page = f"DCGM_FI_PROF_SM_ACTIVE{{{plain}}} 0.25\nDCGM_FI_PROF_SM_ACTIVE{{{exported}}} 0.5\n"
    for nobodys in ('namespace="gpu",pod="nvidia-dcgm-exporter-x7k2p"', 'namespace="gpu"'):
        page += f'DCGM_FI_PROF_SM_ACTIVE{{gpu="1",UUID="GPU-c",{nobodys}}} 0\n'
    found = {tuple(v for _, v in s.labels): s.value for s in samples(target, page).samples}
    assert found == {("GPU-a", "train", "a-0"): 0.25, ("GPU-b", "train", "b-0"): 0.5}
    assert {s.metric for s in samples(target, page).samples} == {"spikewatch_gpu_sm_active_ratio"}
    assert target.url.startswith("http://prometheus.monitoring:9090/federate?match%5B%5D=DCGM_FI_PROF_SM_ACTIVE")


def test_what_the_page_grants_is_what_is_asked_for():
    documents = [d for b in BLOCKS for d in yaml.safe_load_all(b)]
    (role,) = [d for d in documents if d.get("kind") == "ClusterRole"]
    granted = {(g, r) for rule in role["rules"] for g in rule["apiGroups"] for r in rule["resources"]}
    assert granted == {(r.group, r.plural) for r in RESOURCES}
    assert all(rule["verbs"] == ["list"] for rule in role["rules"])


def test_the_price_book_is_one(tmp_path):
    file = tmp_path / "prices.yaml"
    file.write_text(block("prices.yaml"))
    assert load_prices(file).find("dgx-h100", "anywhere", "on-demand").usd_per_hour == 31


@pytest.mark.parametrize(
    ("page", "heading", "settings"), [(PAGE, "setting of `kube`", KubeSettings), (COST, "setting", CostSettings)]
)
def test_every_setting_has_a_row_and_every_row_a_setting(page, heading, settings):
    table = page.partition(f"| {heading} |")[2].partition("\n\n")[0]
    named = {n for row in re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", table, re.M) for n in re.findall(r"`(\w+)`", row)}
    assert named == set(settings.model_fields) - set(CollectorSettings.model_fields)


def test_every_metric_has_a_row():
    assert set(re.findall(r"^\| `(spikewatch_\w+)", PAGE, re.M)) == {info.name for info in METRICS}
