"""The worked examples of docs/scrape.md, run: real servers, the page's own configuration, the page's own rules."""

import re
import sys
import threading
from pathlib import Path

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parent))

from scraped_page import serving

from sidecar import promql
from sidecar.alerting.loader import load_rules
from sidecar.collectors.scrape.collector import ScrapeCollector
from sidecar.collectors.scrape.jobs import ScrapeSettings
from sidecar.model import Sample, labels_of
from sidecar.recording import Recorder
from sidecar.store import Store

PAGE = (Path(__file__).parents[2] / "docs/scrape.md").read_text()
OWNED = next(
    rule.expr
    for group in load_rules([Path(__file__).parents[2] / "rules/scheduling.rules.yaml"]).groups
    for rule in group.rules
    if rule.name == "spikewatch:owned_gpu_active:ratio"
)


def blocks(heading):
    """The YAML of one section, parsed."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", section, re.S)]


def run(config, pages):
    """Scrapes pages at 15 s from one another; the store afterwards and the time of the last scrape."""
    with serving() as (page, address):
        job = {**config["collectors"]["scrape"]["jobs"][0], "static_configs": [{"targets": [address]}]}
        done = threading.Semaphore(0)
        collector = ScrapeCollector(ScrapeSettings.model_validate({"jobs": [job]}), on_done=done.release)
        store = Store()
        recorder = Recorder(store, "scrape")
        now_ms = 0
        try:
            for now_ms, text in enumerate(pages, 1):
                now_ms *= 15_000
                page.body = text.encode()
                list(collector.sample(now_ms))
                assert done.acquire(timeout=25)
                recorder.record(collector.sample(now_ms), now_ms)
        finally:
            collector.close()
        return store, now_ms


def value(store, expr, now_ms):
    return {labels: v for labels, v in promql.evaluate(store, expr, now_ms)}


def rule(block):
    (group,) = block["groups"]
    (only,) = group["rules"]
    return only["record"], only["expr"]


def test_every_configuration_on_the_page_is_valid():
    found = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.S)]
    configs = [block for block in found if "collectors" in block]
    assert len(configs) == 5
    for block in configs:
        ScrapeSettings.model_validate(block["collectors"]["scrape"])


def test_the_gateway_example_gives_the_share_of_hits_and_declares_its_source():
    config, rules = blocks("Gateway cache hits")
    pages = [
        f'gateway_cache_requests_total{{result="hit"}} {63 * n}\n'
        f'gateway_cache_requests_total{{result="miss"}} {37 * n}\n'
        "gateway_requests_total 5\n"
        for n in range(1, 25)
    ]
    store, now_ms = run(config, pages)
    name, expr = rule(rules)
    assert name == "spikewatch_gateway_cache_hit_ratio"
    assert list(value(store, expr, now_ms).values()) == [pytest.approx(0.63)]
    assert list(value(store, "spikewatch_source_configured", now_ms).values()) == [1]
    assert value(store, "gateway_requests_total", now_ms) == {}


def test_the_otel_example_gives_the_share_of_traces_that_were_kept():
    config, rules, _ = blocks("Trace sampling")
    metric = "otelcol_processor_probabilistic_sampler_count_traces_sampled_total"
    pages = [
        f'{metric}{{sampled="true",policy="p"}} {n}\n{metric}{{sampled="false",policy="p"}} {199 * n}\n'
        for n in range(1, 25)
    ]
    store, now_ms = run(config, pages)
    name, expr = rule(rules)
    assert name == "spikewatch_trace_sampling_ratio"
    assert list(value(store, expr, now_ms).values()) == [pytest.approx(0.005)]


def test_a_ratio_that_the_backend_exports_only_gets_its_name():
    store, now_ms = run(blocks("Trace sampling")[2], ["sampling_probability 0.25\n"])
    assert list(value(store, "spikewatch_trace_sampling_ratio", now_ms).values()) == [0.25]


def test_the_dcgm_example_gives_the_activity_of_each_gpu_with_its_pod_and_no_other_label():
    (config,) = blocks("GPU activity by pod")
    own = 'device="nvidia0",modelName="H200",Hostname="n1",container="main"'
    page = (
        f'DCGM_FI_PROF_SM_ACTIVE{{gpu="0",UUID="GPU-1",namespace="ml",pod="web-1",{own}}} 0.25\n'
        f'DCGM_FI_PROF_SM_ACTIVE{{gpu="1",UUID="GPU-2",{own}}} 0.5\n'
        f'DCGM_FI_DEV_GPU_UTIL{{gpu="0",UUID="GPU-1",namespace="ml",pod="web-1",{own}}} 99\n'
    )
    store, now_ms = run(config, [page])
    assert value(store, "DCGM_FI_DEV_GPU_UTIL", now_ms) == {}
    pod_info = {"namespace": "ml", "pod": "web-1", "owner": "Deployment/web", "node": "n1"}
    Recorder(store, "kube").record([Sample("spikewatch_pod_info", labels_of(pod_info), 1.0)], now_ms)
    ((labels, activity),) = value(store, OWNED, now_ms).items()
    assert activity == pytest.approx(0.25)
    found = dict(labels)
    assert found.pop("instance").startswith("127.0.0.1:")
    assert found == {"namespace": "ml", "pod": "web-1", "gpu": "GPU-1", "owner": "Deployment/web", "job": "dcgm"}
