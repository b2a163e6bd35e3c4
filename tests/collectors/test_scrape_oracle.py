"""Relabelling held against the real Prometheus: the same page, the same rules, the same series."""

import json
import random
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from urllib.parse import quote

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from scraped_page import serving

from sidecar.collectors.scrape.fetch import samples
from sidecar.collectors.scrape.jobs import Job, targets
from sidecar.errors import CollectError

pytestmark = pytest.mark.peers

JOBS = 80
PAGE = """# TYPE requests_total counter
requests_total{path="/v1/chat",code="200",job="theirs"} 10
requests_total{path="/v1/embed",code="500"} 20
queue_length{node="GPU-1",path="/v1/chat",same="GPU-1"} 3
queue_length{node="gpu-2",path="",zone="é\\n\\"x\\""} 4.25
temperature 1e3
"""
NAMES = ["__name__", "path", "code", "node", "zone", "job", "same", "missing"]
REGEXES = [
    "(.*)",
    "/v1/(.*)",
    "(?P<kind>[a-z_]+)_total",
    ".+",
    "",
    "200|GPU-1",
    "(.)(.*)",
    "queue.*",
    "p.*",
    "gpu-.|GPU-.",
    "[^x]*",
]
TEMPLATES = ["$1", "${1}-x", "$1x", "$kind", "$$1", "fixed", "", "$2$1", "${9}", "a$", "$ 1"]
TARGETS = ["path", "new", "__name__", "code", "${1}", "$1", "__tmp_x", "zone"]


def random_config(rng):
    """One relabelling step that Prometheus accepts."""
    action = rng.choice(["replace"] * 4 + ["keep", "drop", "keepequal", "dropequal", "hashmod"])
    action = rng.choice([action, action, "labelmap", "labeldrop", "labelkeep", "lowercase", "uppercase"])
    config = {"action": action}
    sources = rng.sample(NAMES, rng.randint(1, 3))
    if action in ("labeldrop", "labelkeep"):
        # what would take the name or the job away ends in nothing to compare
        config["regex"] = rng.choice(
            ["path", "z.*", "missing", "same|code"] if action == "labeldrop" else ["__name__|job|p.*"]
        )
    elif action == "labelmap":
        config |= {
            "regex": rng.choice(["(p)(.*)", "zo(.*)", "code"]),
            "replacement": rng.choice(["m_$1", "other", "$2"]),
        }
    elif action in ("keepequal", "dropequal"):
        config |= {"source_labels": sources[:1], "target_label": rng.choice(["same", "node", "missing"])}
    else:
        config |= {"source_labels": sources, "separator": rng.choice([";", "", "-"])}
        if action in ("keep", "drop", "replace"):
            config["regex"] = rng.choice(REGEXES)
        if action == "replace":
            config |= {"target_label": rng.choice(TARGETS), "replacement": rng.choice(TEMPLATES)}
        elif action == "hashmod":
            config |= {"target_label": "shard", "modulus": rng.choice([1, 7, 1000])}
        elif action in ("lowercase", "uppercase"):
            config["target_label"] = rng.choice(["new", "path", "__name__"])
    return config


def jobs(address):
    rng = random.Random(20261129)
    for number in range(JOBS):
        yield {
            "job_name": f"job{number}",
            "static_configs": [{"targets": [address], "labels": {"zone": "target"} if number % 3 == 0 else {}}],
            "honor_labels": number % 4 == 0,
            "scrape_interval": "1s",
            "scrape_timeout": "1s",
            "metric_relabel_configs": [
                *(random_config(rng) for _ in range(rng.randint(1, 3))),
                {"source_labels": ["__name__"], "regex": ".*", "target_label": "pool", "replacement": f"job{number}"},
            ],
        }


def get(base, path):
    with urllib.request.urlopen(base + path, timeout=10) as answer:
        return json.load(answer)["data"]


@pytest.mark.timeout(90)
def test_eighty_random_relabellings_give_the_series_that_prometheus_gives(peer, tmp_path):
    with serving(PAGE) as (page, address), socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        free.close()
        configured = list(jobs(address))
        config = {"global": {"metric_name_validation_scheme": "legacy"}, "scrape_configs": configured}
        (tmp_path / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        command = [
            peer("prometheus"),
            f"--config.file={tmp_path}/prometheus.yml",
            f"--storage.tsdb.path={tmp_path}/data",
        ]
        command += [f"--web.listen-address=127.0.0.1:{port}"]
        log = (tmp_path / "log").open("w")
        base = f"http://127.0.0.1:{port}/api/v1"
        with subprocess.Popen(command, stdout=log, stderr=log) as prometheus:
            try:
                theirs = scraped_by_prometheus(base, prometheus, tmp_path / "log")
            finally:
                prometheus.kill()
                log.close()
    for job in configured:
        assert scraped_by_us(job) == theirs[job["job_name"]], job["metric_relabel_configs"]
    refused = sum(found is None for found in theirs.values())
    assert 0 < refused < JOBS / 2
    assert sum(len(found or ()) for found in theirs.values()) > JOBS


def scraped_by_us(job):
    """The same, by ours."""
    (target,) = targets(Job.model_validate(job))
    try:
        found = samples(target, PAGE).samples
    except CollectError:
        return None
    return {(tuple(sorted((("__name__", s.metric), *s.labels))), s.value) for s in found}


def scraped_by_prometheus(base, process, log):
    """By job, the series its scrapes brought; None where Prometheus refused the page."""
    deadline = time.monotonic() + 60
    while True:
        assert process.poll() is None, log.read_text()[-2000:]
        assert time.monotonic() < deadline, "Prometheus has not scraped every job"
        try:
            active = get(base, "/targets?state=active")["activeTargets"]
        except OSError:
            active = []
        if len(active) == JOBS and all(t["health"] != "unknown" for t in active):
            break
        time.sleep(0.05)
    found = {t["scrapePool"]: set() if t["health"] == "up" else None for t in active}
    for series in get(base, "/query?query=" + quote('{pool!=""}'))["result"]:
        found[series["metric"]["pool"]].add((tuple(sorted(series["metric"].items())), float(series["value"][1])))
    return found
