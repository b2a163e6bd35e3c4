"""A training job starves and recovers; a real Prometheus and a real Alertmanager see it as it is."""

import json
import subprocess
import time
from datetime import datetime
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from sidecar import __version__

pytestmark = [pytest.mark.peers, pytest.mark.timeout(90)]

ALERT = "TrainerStarvedOfData"
LABELS = {
    "alertname": ALERT,
    "cluster": "eu-1",
    "layer": "data_pipeline",
    "pod": "train-0",
    "severity": "warning",
    "signal": "dataloader_throughput_low",
}


def query(pod, expr):
    answer = pod.prometheus.get("/api/v1/query", params={"query": expr}).json()
    assert answer["status"] == "success", answer
    assert "warnings" not in answer
    return {tuple(sorted(series["metric"].items())): float(series["value"][1]) for series in answer["data"]["result"]}


def seconds(text):
    return datetime.fromisoformat(text).timestamp()


def test_prometheus_scrapes_what_the_trainer_does(pod):
    pod.trainer.tell(loss=1.5)
    ours = (("instance", pod.scraped), ("job", "pods"))
    rank = (*ours, ("rank", "0"))
    loss = (("__name__", "spikewatch_trainer_loss"), *rank)
    pod.eventually(lambda: query(pod, "spikewatch_trainer_loss") == {loss: 1.5}, "the loss in Prometheus")
    assert list(query(pod, "up == 1")) == [(("__name__", "up"), *ours)]
    # eight samples a step, and both counters of one moment
    assert query(pod, "spikewatch_trainer_samples_total / spikewatch_trainer_steps_total") == {rank: 8.0}
    assert query(pod, 'count by (phase) (spikewatch_trainer_phase{phase="train"} == 1)') == {(("phase", "train"),): 1.0}
    assert query(pod, f'count(spikewatch_build_info{{version="{__version__}"}})') == {(): 1.0}
    assert query(pod, 'min(spikewatch_collector_up{collector=~"trainer|process"})') == {(): 1.0}
    assert query(pod, "spikewatch_process_resident_memory_bytes > 20e6 < 200e6")
    pod.eventually(lambda: query(pod, "rate(spikewatch_trainer_steps_total[5s]) > 1"), "two scrapes, steps between")


def test_external_labels_are_not_on_the_page_for_prometheus_adds_its_own(pod):
    pod.eventually(lambda: query(pod, "up == 1"), "a scrape")
    assert query(pod, '{cluster!=""} or {pod!=""} or {exported_job!=""} or {exported_instance!=""}') == {}


def test_a_starved_trainer_fires_in_alertmanager_and_resolves_there(pod, peer):
    starved_at = pod.trainer.tell(wait=0.1)
    (fired,) = pod.eventually(lambda: pod.hook.alerts[:1], "Alertmanager's word of the alert")
    heard_at = time.time()
    assert fired["status"] == "firing"
    assert fired["labels"] == LABELS
    assert fired["annotations"]["summary"] == "The trainer waits for data instead of training"
    assert (
        "% of the step time of the rank that waits most is spent waiting for data"
        in fired["annotations"]["description"]
    )
    assert fired["annotations"]["runbook_url"] == f"http://train-0.example:9478/runbooks/{ALERT}"
    assert starved_at + 1 <= seconds(fired["startsAt"]) <= heard_at
    source = urlsplit(fired["generatorURL"])
    assert source.netloc == "train-0.example:9478"
    assert "spikewatch:trainer_data_wait:ratio" in parse_qs(source.query)["g0.expr"][0]

    # the same in every other view: Alertmanager's own tool, the sidecar, the page in Prometheus
    command = [peer("amtool"), f"--alertmanager.url={pod.alertmanager_url}", "-o", "json", "alert", "query", ALERT]
    (told,) = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert told["labels"] == LABELS
    assert seconds(told["startsAt"]) == seconds(fired["startsAt"])
    (own,) = json.loads(pod.sidecar.get("/api/v1/alerts"))["data"]["alerts"]
    assert own["state"] == "firing"
    assert seconds(own["activeAt"]) + 1 <= seconds(fired["startsAt"])
    page = f'spikewatch_alerts{{alertname="{ALERT}",alertstate="firing"}} == 1'
    pod.eventually(lambda: query(pod, page), "the alert on the page")

    recovered_at = pod.trainer.tell(wait=0.0005)
    resolved = pod.eventually(lambda: [a for a in pod.hook.alerts if a["status"] == "resolved"], "the end of the alert")
    assert resolved[0]["labels"] == LABELS
    assert resolved[0]["startsAt"] == fired["startsAt"]
    assert recovered_at < seconds(resolved[0]["endsAt"]) <= time.time()
    assert pod.alertmanager.get("/api/v2/alerts").json() == []
    pod.eventually(lambda: query(pod, page) == {}, "no alert on the page")
    assert query(pod, "sum(spikewatch_notifications_errors_total) or vector(0)") == {(): 0.0}


def test_promtool_has_no_objection_to_any_metric_of_a_working_sidecar(pod, peer):
    page = httpx.get(f"http://{pod.scraped}/metrics", trust_env=False).content
    assert b"spikewatch_trainer_steps_total" in page
    done = subprocess.run([peer("promtool"), "check", "metrics"], input=page, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_no_scrape_of_all_these_had_anything_to_complain_of(pod):
    """Last in this file: it looks back at every scrape there was."""
    (target,) = pod.prometheus.get("/api/v1/targets").json()["data"]["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")
    own = pod.prometheus.get("/metrics").text.splitlines()
    complaints = ("duplicate_timestamp", "out_of_bounds", "out_of_order")
    counted = {line.split()[0]: float(line.split()[1]) for line in own if line.startswith("prometheus_target_scrapes_")}
    assert {counted[f"prometheus_target_scrapes_sample_{what}_total"] for what in complaints} == {0.0}
    said = [
        line for line in pod.prometheus_log.read_text().splitlines() if "level=WARN" in line or "level=ERROR" in line
    ]
    assert said == []
