"""A real Prometheus scrapes pages every 15 s, a quarter of an hour, with the exported rules; nothing is scaled."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml
from click.testing import CliRunner
from exported_scenes import SCENES, expected

import sidecar.cli
from bench import _live

pytestmark = [pytest.mark.proof, pytest.mark.peers, pytest.mark.timeout(1500)]

SCRAPE_S = 15
LONGEST_S = 1200
SLACK_S = 3 * SCRAPE_S  # a target is first scraped, and a group first evaluated, some time within an interval


class Pages:
    """One page a scene; its series have the values of the time since it was started."""

    def __init__(self):
        self.began = time.monotonic()
        self.asked = dict.fromkeys((scene.signal for scene in SCENES), 0)
        pages, scenes = self, {f"/{scene.signal}": scene for scene in SCENES}

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                scene, t = scenes[self.path], time.monotonic() - pages.began
                pages.asked[scene.signal] += 1
                body = "".join(f"{one} {value(t):.10g}\n" for one, value in scene.series.items()).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,))
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


def prometheus(peer, folder, pages):
    """Its command line and address; the rules are those of the exported objects."""
    made = CliRunner().invoke(
        sidecar.cli._spikewatch, ["export", "prometheusrule", "--scrape-interval", f"{SCRAPE_S}s"]
    )
    assert made.exit_code == 0, made.stderr
    groups = [group for item in yaml.safe_load_all(made.stdout) for group in item["spec"]["groups"]]
    (folder / "exported.rules.yaml").write_text(yaml.safe_dump({"groups": groups}, sort_keys=False, width=10_000))
    targets = [
        {
            "targets": [pages.address],
            "labels": {"pod": s.signal, "instance": f"{s.signal}:9479", "__metrics_path__": f"/{s.signal}"},
        }
        for s in SCENES
    ]
    interval = f"{SCRAPE_S}s"
    config = {
        "global": {"scrape_interval": interval, "scrape_timeout": "10s", "evaluation_interval": interval},
        "rule_files": ["exported.rules.yaml"],
        "scrape_configs": [{"job_name": "pods", "static_configs": targets}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    address = f"127.0.0.1:{_live.free_port()}"
    command = (
        peer("prometheus"),
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/tsdb",
        f"--web.listen-address={address}",
    )
    return command, address


def fired(client, since):
    """(alert, pod) → when it first fired, in seconds since then."""
    expr = 'min by (alertname, pod) (min_over_time(timestamp(ALERTS{alertstate="firing"})[25m:5s]))'
    found = client.get("/api/v1/query", params={"query": expr}).json()["data"]["result"]
    return {(s["metric"]["alertname"], s["metric"].get("pod", "")): float(s["value"][1]) - since for s in found}


def test_every_signal_of_a_pod_fires_in_a_real_prometheus_that_scrapes_every_15_seconds(
    peer, started, tmp_path, record_proof
):
    wanted = {(alert, pod): by_s for alert, pods in expected().items() for pod, by_s in pods.items()}
    with Pages() as pages:
        since = time.time()
        command, address = prometheus(peer, tmp_path, pages)
        with started(address, command, tmp_path / "prometheus.log") as client:
            until = time.monotonic() + LONGEST_S
            while not set(wanted) <= set(found := fired(client, since)) and time.monotonic() < until:
                time.sleep(5)
            health = client.get("/api/v1/rules").json()["data"]["groups"]
            version = client.get("/api/v1/status/buildinfo").json()["data"]["version"]
    rules = [rule for group in health for rule in group["rules"]]
    record_proof(
        "exported_rules",
        {
            "what": "exported with --scrape-interval 15s, evaluated every 15 s by a real Prometheus that scrapes "
            "pages which play each signal that a pod can have; nothing is scaled",
            "prometheus": version,
            "scrape_interval_s": SCRAPE_S,
            "pods": len(SCENES),
            "scrapes_of_a_pod": min(pages.asked.values()),
            "rules": len(rules),
            "unhealthy_rules": sorted(rule["name"] for rule in rules if rule["health"] != "ok"),
            "signals": {
                scene.signal: {
                    alert: round(found[alert, scene.signal]) for alert in scene.alerts if (alert, scene.signal) in found
                }
                for scene in SCENES
            },
            "seconds": "from the start of the pages to the first sample of ALERTS that says firing",
            "foreseen_by_s": {scene.signal: dict(scene.alerts) for scene in SCENES if scene.alerts},
            "fired_elsewhere": sorted(f"{alert} in {pod}" for alert, pod in set(found) - set(wanted)),
        },
    )
    assert set(found) == set(wanted)
    assert {key: s for key, s in found.items() if s > wanted[key] + SLACK_S} == {}
    assert [rule["name"] for rule in rules if rule["health"] != "ok"] == []
