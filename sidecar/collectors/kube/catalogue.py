"""The metrics of the kube collector."""

from __future__ import annotations

from sidecar.model import Evidence, MetricInfo

LOOPBACK = Evidence("fake", "2026-11-30", "hand-written API server on the loopback; no real cluster")

_POD = ("namespace", "pod", "owner")
_API = "Kubernetes API"
_BOOK = "Kubernetes API, price book"


def _info(name: str, text: str, labels: tuple[str, ...], source: str = _API, quality: str = "exact") -> MetricInfo:
    return MetricInfo(f"spikewatch_{name}", "gauge", "", text, labels, source, "cluster", quality, LOOPBACK)  # type: ignore[arg-type]


METRICS: tuple[MetricInfo, ...] = (
    _info("pod_info", "Always 1: a pod that holds resources of a node, and whose it is.", (*_POD, "node")),
    _info(
        "pod_cost_per_hour",
        "USD per hour: the node's price by the share of it that the pod requests.",
        _POD,
        _BOOK,
        "estimated",
    ),
    _info(
        "pod_running",
        "Always 1, where a price book is configured: a pod that holds resources of a node, so has a cost.",
        _POD,
    ),
    _info("workload_replicas", "Pods of an owner that hold resources of a node.", ("namespace", "owner")),
    _info("pod_cost_limit_usd_per_hour", "What a pod may cost, as configured; absent: no limit.", (), "configuration"),
)
