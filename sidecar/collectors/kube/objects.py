"""Pods and nodes, cut down to what cost is told by: a page of the API is dropped as soon as it is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from sidecar.collectors.kube import quantity

_T = TypeVar("_T")
_WHOLE = re.compile(r"[a-z0-9.-]+/(?:gpu|gpu\.shared|tpu|gaudi)")
_SLICE = re.compile(r"[a-z0-9.-]+/mig-(?:(?P<compute>\d+)c\.)?(?P<slices>\d+)g\.\d+gb(?:\..+)?")
WHOLE = 7.0
"""Compute slices of a whole GPU: into so many MIG cuts it (NVIDIA's user guide)."""

INSTANCE_TYPE = "node.kubernetes.io/instance-type"
_OLD_INSTANCE_TYPE = "beta.kubernetes.io/instance-type"
REGION = "topology.kubernetes.io/region"

Capacity = Literal["on-demand", "spot", "reserved"]
_SPOT = {  # who says it in which words: Karpenter, EKS, GKE, AKS, kops
    "karpenter.sh/capacity-type": "spot",
    "eks.amazonaws.com/capacitytype": "spot",
    "cloud.google.com/gke-spot": "true",
    "cloud.google.com/gke-preemptible": "true",
    "kubernetes.azure.com/scalesetpriority": "spot",
    "node.kubernetes.io/lifecycle": "spot",
    "node-role.kubernetes.io/spot-worker": "true",
}
_RESERVED = {"karpenter.sh/capacity-type": "reserved", "eks.amazonaws.com/capacitytype": "capacity_block"}


@dataclass(frozen=True, slots=True)
class Resources:
    """Of a node what it offers, of a pod what it requests: cores, bytes, and GPUs in compute slices (7 are a GPU)."""

    cpu: float = 0.0
    memory: float = 0.0
    gpu: float = 0.0

    def __add__(self, other: Resources) -> Resources:
        return Resources(self.cpu + other.cpu, self.memory + other.memory, self.gpu + other.gpu)

    def at_least(self, other: Resources) -> Resources:
        """The larger of each."""
        return Resources(max(self.cpu, other.cpu), max(self.memory, other.memory), max(self.gpu, other.gpu))


@dataclass(frozen=True, slots=True)
class Owner:
    """What controls an object. A pod without one has kind and name empty."""

    kind: str = ""
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}" if self.kind else ""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod that holds a node's resources. `claims`: it gets devices by DRA, which no request shows."""

    namespace: str
    name: str
    node: str
    owner: Owner
    requests: Resources
    claims: bool = False


@dataclass(frozen=True, slots=True)
class Node:
    """A node: what it is, where, how it is paid for, and what pods may request of it."""

    name: str
    instance_type: str
    region: str
    capacity: Capacity
    allocatable: Resources


class Unreadable(Exception):
    """An object lacks what every such object has, or a quantity of it is none."""


def resources(given: Mapping[str, Any] | None) -> Resources:
    """Of a map of resource names to quantities. Raises Unreadable."""
    cpu = memory = gpu = 0.0
    for name, text in (given or {}).items():
        try:
            if name == "cpu":
                cpu = quantity.parse(text)
            elif name == "memory":
                memory = quantity.parse(text)
            elif (weight := _slices(name)) > 0:
                gpu += weight * quantity.parse(text)
        except ValueError as e:
            raise Unreadable(f"{name}: {e}") from None
    return Resources(cpu, memory, gpu)


def _slices(resource: str) -> float:
    """How many compute slices one of a resource is; 0 for what is no accelerator."""
    if _WHOLE.fullmatch(resource):
        return WHOLE
    found = _SLICE.fullmatch(resource)
    return float(found["compute"] or found["slices"]) if found else 0.0


def owner(metadata: Mapping[str, Any]) -> Owner:
    """The one owner that controls the object."""
    for reference in metadata.get("ownerReferences") or ():
        if reference.get("controller"):
            return Owner(str(reference.get("kind", "")), str(reference.get("name", "")))
    return Owner()


def pod(given: Mapping[str, Any]) -> Pod | None:
    """None for a pod that holds nothing: not bound to a node, or finished. Raises Unreadable."""

    def read() -> Pod | None:
        metadata, spec = given["metadata"], given["spec"]
        finished = (given.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        if finished or not spec.get("nodeName"):
            return None
        name = str(metadata["name"])
        claims = bool(spec.get("resourceClaims"))
        return Pod(str(metadata["namespace"]), name, str(spec["nodeName"]), owner(metadata), requests(spec), claims)

    return _shaped(read)


def requests(spec: Mapping[str, Any]) -> Resources:
    """What the scheduler sets aside for a pod: all containers and sidecars together, or what it takes to start them
    where that is more; the overhead of its runtime on top. Raises Unreadable.
    """
    together = _sum(_requested(container) for container in spec.get("containers") or ())
    sidecars, starting = Resources(), Resources()
    for container in spec.get("initContainers") or ():
        own = _requested(container)
        if container.get("restartPolicy") == "Always":
            sidecars += own
            starting = starting.at_least(sidecars)
        else:
            starting = starting.at_least(sidecars + own)
    found = (together + sidecars).at_least(starting)
    whole = (spec.get("resources") or {}).get("requests") or {}  # of the pod: stands for its containers' sum
    own = resources(whole)
    found = Resources(
        own.cpu if "cpu" in whole else found.cpu, own.memory if "memory" in whole else found.memory, found.gpu
    )
    return found + resources(spec.get("overhead"))


def node(given: Mapping[str, Any], instance_type_label: str = INSTANCE_TYPE) -> Node:
    """Raises Unreadable."""

    def read() -> Node:
        labels: Mapping[str, str] = given["metadata"].get("labels") or {}
        return Node(
            str(given["metadata"]["name"]),
            labels.get(instance_type_label) or labels.get(_OLD_INSTANCE_TYPE, ""),
            labels.get(REGION, ""),
            capacity(labels),
            resources(given["status"]["allocatable"]),
        )

    return _shaped(read)


def capacity(labels: Mapping[str, str]) -> Capacity:
    """How a node is paid for, by the labels that clouds and autoscalers put on it; on demand where none says else."""
    said = {name.lower(): value.lower() for name, value in labels.items()}
    if any(said.get(name) == value for name, value in _SPOT.items()):
        return "spot"
    return "reserved" if any(said.get(name) == value for name, value in _RESERVED.items()) else "on-demand"


def _requested(container: Mapping[str, Any]) -> Resources:
    return resources((container.get("resources") or {}).get("requests"))


def _sum(all_of: Iterable[Resources]) -> Resources:
    return sum(all_of, Resources())


def _shaped(read: Callable[[], _T]) -> _T:
    try:
        return read()
    except (KeyError, TypeError, AttributeError) as e:
        raise Unreadable(f"{type(e).__name__}: {e}") from None
