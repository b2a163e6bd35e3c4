"""What each pod of a node costs: the node's price by the share of it that the pod requests. Pure functions.

What nobody requests is nobody's cost: it stays with the node. Shares of a node's pods never add up to more than one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import fsum

from sidecar.collectors.kube.objects import Node, Pod, Resources

CORE_GIB = 7.5
"""What a core costs in GiB of memory. Ours: clouds that price the two apart take 7.5 (Google's custom types) to 9."""
_GIB = float(1 << 30)

PodKey = tuple[str, str]
"""(namespace, name)"""


def shares(offered: Resources, requested: Sequence[Resources]) -> list[float]:
    """The share of a node that each request takes, 0..1.

    A node with GPUs is its GPUs: it is shared by them alone. Any other is shared by cores and memory, weighted by what
    they cost. Where more is requested than there is (a node that shrank), requests are scaled down to all of it.
    """
    whole = Resources(
        max(offered.cpu, fsum(r.cpu for r in requested)),
        max(offered.memory, fsum(r.memory for r in requested)),
        max(offered.gpu, fsum(r.gpu for r in requested)),
    )
    if whole.gpu > 0:
        return [r.gpu / whole.gpu for r in requested]
    cores, memory = whole.cpu * CORE_GIB, whole.memory / _GIB
    worth = cores + memory
    if worth <= 0:
        return [0.0] * len(requested)
    by_cores = cores / worth
    return [by_cores * _part(r.cpu, whole.cpu) + (1 - by_cores) * _part(r.memory, whole.memory) for r in requested]


def costs(pods: Iterable[Pod], nodes: Mapping[str, Node], price: Callable[[Node], float | None]) -> dict[PodKey, float]:
    """USD per hour of every pod whose cost is known. Unknown: the node or its price is, or the pod has devices that
    no request shows (DRA claims).
    """
    by_node: dict[str, list[Pod]] = defaultdict(list)
    for pod in pods:
        by_node[pod.node].append(pod)
    found: dict[PodKey, float] = {}
    for name, held in by_node.items():
        node = nodes.get(name)
        usd = None if node is None else price(node)
        if node is None or usd is None:
            continue
        for pod, share in zip(held, shares(node.allocatable, [pod.requests for pod in held]), strict=True):
            if not pod.claims:
                found[pod.namespace, pod.name] = usd * share
    return found


def _part(requested: float, whole: float) -> float:
    return requested / whole if whole > 0 else 0.0
