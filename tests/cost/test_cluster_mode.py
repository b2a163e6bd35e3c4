"""One process as the cluster's: the page's configuration over an API server, a bill and a folder of files."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
import yaml
from bills import EGRESS, charge

sys.path.insert(0, str(Path(__file__).parents[1] / "collectors"))

from kube_cluster import Cluster, serving

PAGE = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text()
DEAR = "spikewatch_pod_cost_per_hour > on () group_left () spikewatch_pod_cost_limit_usd_per_hour"
RULE = f"groups: [{{name: own, rules: [{{alert: Dear, expr: '{DEAR}'}}]}}]\n"
PRICES = "prices: [{instance_type: m5.xlarge, usd_per_hour: 100, as_of: 2026-11-01}]\n"


@pytest.fixture
def cluster():
    with serving(Cluster()) as served:
        served.node()
        served.pod("web-1", owner="ReplicaSet/web-5d", cpu="4", memory="16Gi")
        served.behind("replicasets", "web-5d", owner="Deployment/web")
        yield served


@pytest.fixture
def config(cluster, export, tmp_path):
    """The example of the page, with what is not here left out."""
    (text,) = [b for b in re.findall(r"```yaml\n(.+?)```", PAGE, re.S) if b.startswith("# cluster.yaml\n")]
    example = yaml.safe_load(text)
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    rows = [charge(today - timedelta(days=n), 7.0, **EGRESS) for n in range(1, 70)]
    (tmp_path / "token").write_text("first")
    (tmp_path / "prices.yaml").write_text(PRICES)
    collectors = example["collectors"]
    collectors["kube"] |= {"server": cluster.url, "token_file": "token", "prices": "prices.yaml"}
    collectors["cost"] |= {"focus": [str(export(rows))], "opencost": "", "cloudwatch": [], "cache": "cost.json"}
    del collectors["cost"]["approvals"]
    collectors["scrape"]["jobs"] = []
    collectors["datasets"]["datasets"] = [{"name": "corpus", "path": str(tmp_path)}]
    collectors["spark"]["enabled"] = False
    (tmp_path / "own.rules.yaml").write_text(RULE)  # shipped ones about pods are due every 15 s
    example["rules"] = ["shipped:*.rules.yaml", "own.rules.yaml"]
    example |= {"state_dir": "state", "run_dir": "run", "alertmanagers": []}
    example |= {"http": {"listen": "127.0.0.1:0"}, "metrics": None, "evaluation_interval": "200ms"}
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump(example))
    return file


def test_one_process_tells_the_cost_of_pods_and_the_bill_and_ends_when_it_is_told(config, tmp_path):
    wanted = {
        'spikewatch_pod_cost_per_hour{namespace="train",owner="Deployment/web",pod="web-1"} 100.0',
        "spikewatch_pod_cost_limit_usd_per_hour 50.0",
        'spikewatch_cost_daily{category="egress",window="last7"} 7.0',
    }
    command = [sys.executable, "-m", "sidecar", "run", "--config", str(config)]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=Path(__file__).parents[2])
        try:
            seen, firing, end = set(), set(), time.monotonic() + 25

            def waiting():
                time.sleep(0.02)
                return time.monotonic() < end and process.poll() is None

            while b"running: " not in (tmp_path / "log").read_bytes() and waiting():
                pass
            transport = httpx.HTTPTransport(uds=str(tmp_path / "run" / "api.sock"))
            with httpx.Client(transport=transport, base_url="http://sidecar") as client:
                while not (wanted <= seen and firing) and waiting():
                    seen = set(client.get("/metrics").text.splitlines())
                    alerts = client.get("/api/v1/alerts").json()["data"]["alerts"]
                    firing = {a["labels"]["alertname"] for a in alerts if a["state"] == "firing"} & {"Dear"}
                assert wanted <= seen, (tmp_path / "log").read_text()
            assert firing == {"Dear"}
            assert not [line for line in seen if line.startswith(("spikewatch_process_", "spikewatch_gpu_"))]
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            process.kill()
            process.wait()
