"""Signals of money: a real cluster process over a generated bill, and stand-ins for OpenCost and AWS."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

from kube_cluster import Cluster, serving
from signals_bill import Bill
from signals_rows import Row, Source, fired, pod_on, quiet
from signals_stage import HERE, Stage

ROWS = 1_000_000


def billed(stage: Stage, kit: object, rows: int = ROWS) -> Sequence[Row]:
    """A bill that grows while nothing more is done, read once at the start."""
    today = datetime.now(UTC).date()
    bill = Bill(today, resources=max(1, rows // (62 * 24) - 1))
    count = bill.write(stage.folder / "focus.csv")
    opencost = stage.serve(lambda path: (200, "application/json", json.dumps({"data": allocations(today)}).encode()))
    spent, elapsed = bill.so_far(), bill.last.day / _days_in(bill.last)
    # The second budget is not overspent by a fifth yet, but what it allows for the days so far is, or the forecast.
    ahead = (spent / 1.2 + max(spent / elapsed, spent + _rest(bill)) / 1.2) / 2
    cost = {
        "enabled": True, "focus": [str(stage.folder / "focus.csv")], "opencost": f"http://{opencost}",
        "deadline": "10m", "budgets": [{"name": "over", "amount": spent / 1.3}, {"name": "ahead", "amount": ahead}],
    }  # fmt: skip
    pod = pod_on(stage, "cluster", collectors={"cost": cost})
    source = Source(f"generated FOCUS export of {count:,} rows", "fake")
    use = Source(f"{source.what}, and a stand-in for OpenCost", "fake")
    at = pod.started
    return [
        fired(
            pod,
            "VcpuSpendWithoutLoad",
            at,
            use,
            "vCPU costs 35 % more a day than the week before, 20 % of it is used",
            seconds=300,
        ),
        fired(
            pod,
            "EgressCostSurge",
            at,
            source,
            "egress costs 70 % more than in the same days of last month, with as many reads",
        ),
        fired(pod, "BudgetOverrun", at, source, "the month has cost 1.3 times the budget, and nobody has approved it"),
        fired(
            pod,
            "BudgetOverrunAhead",
            at,
            source,
            "the days so far, or the forecast, exceed the budget by more than a fifth",
        ),
    ]


def account(stage: Stage, kit: object) -> Sequence[Row]:
    """A volume and a machine that are paid for and idle."""
    script = str(HERE / "signals_account.py")
    environ = {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "MOTO_EC2_LOAD_DEFAULT_AMIS": "false",
    }
    cost = {"enabled": True, "cloudwatch": ["us-east-1"]}
    pod = pod_on(stage, "cluster", program=[script], environ=environ, collectors={"cost": cost})
    source, at = Source("AWS account that moto plays, read through boto3", "fake"), pod.started
    return [
        fired(pod, "ProvisionedIopsIdle", at, source, "20 of 10 000 provisioned IOPS are used", seconds=300),
        fired(pod, "IdleSevenDays", at, source, "a machine uses 1 % of its CPU for a week and hardly sends a byte"),
    ]


def dear_pods(stage: Stage, kit: object) -> Sequence[Row]:
    """A pod on a node that costs more than a pod may, one on a node nobody has a price of, and GPUs held by five."""
    with serving(Cluster()) as cluster:
        cluster.node()
        cluster.node("n2", instance_type="p5.48xlarge")
        cluster.node("n3", instance_type="new.metal")
        cluster.pod("web-1", owner="ReplicaSet/web-5d", cpu="2", memory="8Gi")
        cluster.behind("replicasets", "web-5d", owner="Deployment/web")
        cluster.behind("replicasets", "llm-5d", owner="Deployment/llm")
        (stage.folder / "token").write_text("first")
        (stage.folder / "prices.yaml").write_text(PRICES)
        kube = {
            "enabled": True, "server": cluster.url, "token_file": str(stage.folder / "token"), "interval": "5s",
            "prices": str(stage.folder / "prices.yaml"), "pod_cost_limit_usd_per_hour": 50,
        }  # fmt: skip
        activity = {"value": 0.8}
        exporter = stage.serve(lambda path: (200, "text/plain; version=0.0.4", _sm_active(activity["value"])))
        job = {
            "job_name": "gpus", "honor_labels": True, "static_configs": [{"targets": [exporter]}],
            "scrape_interval": "5s", "scrape_timeout": "4s",
            "metric_relabel_configs": [
                {"target_label": "__name__", "replacement": "spikewatch_gpu_sm_active_ratio"},
                {"source_labels": ["UUID"], "target_label": "gpu"},
                {"source_labels": ["exported_pod"], "target_label": "pod"},
                {"source_labels": ["exported_namespace"], "target_label": "namespace"},
                {"regex": "__name__|gpu|namespace|pod", "action": "labelkeep"},
            ],
        }  # fmt: skip
        # A collector that reads an API every minute takes more than a sidecar's hundredth of a core every five seconds.
        pod = pod_on(stage, "cluster", collector_cpu_budget=None, collectors={"kube": kube, "scrape": {"jobs": [job]}})
        pod.until_true("spikewatch_pod_cost_per_hour == 50")
        quiet(pod, "HighCostPod", "PodCostUnknown", "GpuOverprovisioned")
        for n in range(GPUS):
            cluster.pod(f"llm-{n}", "n2", owner="ReplicaSet/llm-5d", cpu="8", **{"nvidia.com/gpu": "1"})
        cluster.pod("big", "n2", cpu="8", **{"nvidia.com/gpu": "3"})
        cluster.pod("new", "n3", cpu="1")
        since = time.time()
        source = Source("stand-in for a Kubernetes API server, and a price book", "fake")
        dear = fired(
            pod, "HighCostPod", since, source, "a pod with three of eight GPUs, 60 USD an hour; 50 are allowed"
        )
        unknown = fired(pod, "PodCostUnknown", since, source, "a pod on a node whose instance type has no price")
        pod.until_true('spikewatch_workload_replicas{owner="Deployment/llm"} == 5')
        pod.until_true("count(spikewatch_gpu_sm_active_ratio > 0.7) == 5")
        quiet(pod, "GpuOverprovisioned")
        activity["value"], since = 0.1, time.time()
        source = Source(f"{source.what}; SM activity from a page as dcgm-exporter's", "fake")
        idle = fired(pod, "GpuOverprovisioned", since, source, "SM activity of five replicas goes from 80 % to 10 %")
        return [dear, unknown, idle]


GPUS = 5
PRICES = """prices:
- {instance_type: m5.xlarge, usd_per_hour: 100, as_of: 2026-11-01}
- {instance_type: p5.48xlarge, usd_per_hour: 160, as_of: 2026-11-01}
"""


def _sm_active(value: float) -> bytes:
    names = (f'UUID="GPU-{n}",exported_pod="llm-{n}",exported_namespace="train"' for n in range(GPUS))
    return "".join(f"DCGM_FI_PROF_SM_ACTIVE{{{labels}}} {value}\n" for labels in names).encode()


def allocations(today: date, used: float = 0.2, days: int = 14) -> list[dict[str, Any]]:
    """What OpenCost would answer: a pod that costs next to nothing and uses a part of the CPU that it requests."""
    steps = []
    for n in range(days, 0, -1):
        start = today - timedelta(days=n)
        window = {"start": f"{start}T00:00:00Z", "end": f"{start + timedelta(days=1)}T00:00:00Z"}
        pod = {
            "window": window, "minutes": 1440.0, "cpuCost": 0.01, "gpuCost": 0.0, "pvCost": 0.0,
            "networkInternetCost": 0.0, "cpuCoreHours": 96.0, "cpuCoreRequestAverage": 4.0,
            "cpuCoreUsageAverage": 4 * used,
        }  # fmt: skip
        steps.append({"train/pod-0": pod})
    return steps


def _days_in(day: date) -> int:
    return ((day.replace(day=28) + timedelta(days=4)).replace(day=1) - timedelta(days=1)).day


def _rest(bill: Bill) -> float:
    return (bill.vcpu(bill.last) + bill.egress(bill.last)) * (_days_in(bill.last) - bill.last.day)
