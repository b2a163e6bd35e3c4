"""The real Prometheus of the comparison: started, left alone for a while, and asked what it has recorded."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

from sidecar.errors import SpikewatchError
from sidecar.history.api import QueryApi

EXTERNAL = {"cluster": "rivals", "owner": "everybody"}
EXTERNAL_URL = "http://prometheus.example:9090"
RESEND_MS = 1000


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def configuration(exporter, alertmanager, rule_file):
    """prometheus.yml as JSON, which is YAML."""
    return json.dumps(
        {
            "global": {
                "scrape_interval": "200ms",
                "scrape_timeout": "200ms",
                "evaluation_interval": "200ms",
                "external_labels": EXTERNAL,
            },
            "rule_files": [str(rule_file)],
            "scrape_configs": [{"job_name": "world", "static_configs": [{"targets": [exporter]}]}],
            "alerting": {
                "alertmanagers": [{"path_prefix": "/theirs", "static_configs": [{"targets": [alertmanager]}]}]
            },
        }
    )


@contextmanager
def running(folder, exporter, alertmanager, rule_file):
    """A query client for a Prometheus that scrapes `exporter` and evaluates `rule_file` every 200 ms."""
    (folder / "prometheus.yml").write_text(configuration(exporter, alertmanager, rule_file))
    address = f"127.0.0.1:{free_port()}"
    command = [
        str(Path(os.environ["SPIKEWATCH_PEERS"]) / "bin" / "prometheus"),
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/tsdb",
        f"--web.listen-address={address}",
        f"--web.external-url={EXTERNAL_URL}",
        "--web.route-prefix=/",
        "--scrape.discovery-reload-interval=100ms",
        f"--rules.alert.resend-delay={RESEND_MS}ms",
    ]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        with QueryApi(f"http://{address}") as api:
            wait_for(lambda: _at_work(api), 25)
            yield api
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def _at_work(api):
    """Whether its first alert would be written and sent.

    Prometheus writes ALERTS from the third evaluation on, after it has looked for what was before its start, and
    drops alerts as long as it has not discovered an Alertmanager.
    """
    evaluated = api.instant("min(count_over_time(seen:after[1m]))").series
    known = api._client.get(f"{api.url}/api/v1/alertmanagers").json()["data"]["activeAlertmanagers"]
    return known and evaluated and evaluated[0].points[0][1] > 3 and api.instant("up == 1").series


def wait_for(condition, timeout_s):
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            if found := condition():
                return found
        except SpikewatchError:
            pass  # not listening yet
        if time.monotonic() > deadline:
            raise TimeoutError("it did not come about")
        time.sleep(0.05)
