"""What the pods of a node cost: requests, shares and prices, without any API."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.collectors.kube import objects
from sidecar.collectors.kube.objects import Node, Owner, Pod, Resources
from sidecar.collectors.kube.shares import CORE_GIB, costs, shares

GIB = 2.0**30
AMOUNTS = st.floats(0, 1e4, allow_subnormal=False)
RESOURCES = st.builds(Resources, AMOUNTS, AMOUNTS.map(lambda gib: gib * GIB), st.integers(0, 56).map(float))
PODS = st.lists(RESOURCES, max_size=30)


def container(*, always=False, **requests):
    return {"resources": {"requests": requests}} | ({"restartPolicy": "Always"} if always else {})


# --- requests ---


def test_a_pod_requests_the_sum_of_its_containers_and_sidecars():
    spec = {
        "containers": [container(cpu="500m", memory="1Gi"), container(cpu="1", memory="1Gi")],
        "initContainers": [container(always=True, cpu="250m", memory="256Mi")],
        "overhead": {"cpu": "100m"},
    }
    assert objects.requests(spec) == Resources(1.85, 2.25 * GIB)


def test_what_it_takes_to_start_counts_where_that_is_more():
    spec = {
        "containers": [container(cpu="1")],
        "initContainers": [container(always=True, cpu="1"), container(cpu="4"), container(always=True, cpu="1")],
    }
    assert objects.requests(spec).cpu == 5.0


def test_a_request_of_the_whole_pod_stands_for_those_of_its_containers():
    spec = {
        "containers": [container(cpu="1", memory="1Gi", **{"nvidia.com/gpu": "2"})],
        "resources": {"requests": {"cpu": "8"}},
    }
    assert objects.requests(spec) == Resources(8.0, GIB, 14.0)


@pytest.mark.parametrize(
    ("resource", "slices"),
    [
        ("nvidia.com/gpu", 7), ("amd.com/gpu", 7), ("nvidia.com/gpu.shared", 7), ("google.com/tpu", 7),
        ("habana.ai/gaudi", 7), ("nvidia.com/mig-1g.10gb", 1), ("nvidia.com/mig-3g.40gb", 3),
        ("nvidia.com/mig-1g.10gb.me", 1), ("nvidia.com/mig-1c.4g.40gb", 1), ("nvidia.com/gpu.product", 0), ("gpu", 0),
        ("rdma/hca", 0), ("ephemeral-storage", 0),
    ],
)  # fmt: skip
def test_whole_gpus_and_slices_of_them_are_counted_alike(resource, slices):
    assert objects.resources({resource: "2"}).gpu == 2 * slices


@pytest.mark.parametrize(
    ("labels", "capacity"),
    [
        ({}, "on-demand"), ({"eks.amazonaws.com/capacityType": "SPOT"}, "spot"),
        ({"eks.amazonaws.com/capacityType": "ON_DEMAND"}, "on-demand"),
        ({"karpenter.sh/capacity-type": "spot"}, "spot"),
        ({"karpenter.sh/capacity-type": "reserved"}, "reserved"), ({"cloud.google.com/gke-spot": "true"}, "spot"),
        ({"kubernetes.azure.com/scalesetpriority": "spot"}, "spot"),
        ({"eks.amazonaws.com/capacityType": "CAPACITY_BLOCK"}, "reserved"),
    ],
)  # fmt: skip
def test_how_a_node_is_paid_for_is_told_by_the_labels_of_clouds_and_autoscalers(labels, capacity):
    assert objects.capacity(labels) == capacity


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=2)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "metadata",
                        "spec",
                        "status",
                        "name",
                        "namespace",
                        "nodeName",
                        "containers",
                        "resources",
                        "requests",
                        "cpu",
                        "labels",
                        "allocatable",
                    ]
                ),
                inner,
                max_size=4,
            )
        ),
    )
)
def test_an_object_of_any_shape_is_read_or_called_unreadable(given_):
    for read in (objects.pod, objects.node):
        try:
            read(given_)
        except objects.Unreadable:
            continue


# --- shares ---


@given(RESOURCES, PODS)
def test_the_shares_of_a_nodes_pods_never_add_up_to_more_than_the_node(offered, requested):
    found = shares(offered, requested)
    assert len(found) == len(requested)
    assert all(share >= 0 for share in found)
    assert sum(found) <= 1 + 1e-9


@given(RESOURCES, PODS, RESOURCES)
def test_a_pod_pays_no_less_when_it_requests_more_and_another_comes_or_goes(offered, requested, more):
    before = shares(offered, [Resources(), *requested])[0]
    assert before == 0
    fits = Resources(offered.cpu / 4, offered.memory / 4, offered.gpu / 4)
    alone, with_another = shares(offered, [fits])[0], shares(offered, [fits, fits])[0]
    assert with_another == pytest.approx(alone)
    assert shares(offered, [fits + fits])[0] == pytest.approx(2 * alone)
    assert shares(offered, [more, more])[0] == pytest.approx(shares(offered, [more, more])[1])


def test_a_node_that_is_requested_whole_is_paid_whole_and_idle_parts_by_nobody():
    offered = Resources(4, 16 * GIB)
    assert sum(shares(offered, [Resources(1, 4 * GIB), Resources(3, 12 * GIB)])) == pytest.approx(1)
    assert sum(shares(offered, [Resources(2, 8 * GIB)])) == pytest.approx(0.5)
    cores = 4 * CORE_GIB / (4 * CORE_GIB + 16)
    assert shares(offered, [Resources(4, 0)]) == [pytest.approx(cores)]


def test_a_gpu_node_is_shared_by_its_gpus_alone():
    offered = Resources(96, 1024 * GIB, 56)
    assert shares(offered, [Resources(4, GIB, 14), Resources(90, 900 * GIB, 0)]) == [0.25, 0.0]


def test_slices_of_a_gpu_pay_by_how_many_they_are():
    offered = objects.resources({"nvidia.com/mig-1g.10gb": "4", "nvidia.com/mig-3g.40gb": "1"})
    small = objects.resources({"nvidia.com/mig-1g.10gb": "1"})
    large = objects.resources({"nvidia.com/mig-3g.40gb": "1"})
    assert shares(offered, [small, large]) == [pytest.approx(1 / 7), pytest.approx(3 / 7)]


# --- costs ---


def pod(name, node="n1", claims=False, **requests):
    return Pod("train", name, node, Owner(), Resources(**requests), claims)


NODES = {"n1": Node("n1", "m5.xlarge", "eu", "on-demand", Resources(4, 16 * GIB))}


def test_a_pod_on_a_node_without_a_price_or_unknown_has_no_cost_and_never_zero():
    pods = [pod("a", cpu=1.0, memory=4 * GIB), pod("b", node="gone", cpu=1.0)]
    assert costs(pods, NODES, lambda node: 1.0) == {("train", "a"): pytest.approx(0.25)}
    assert costs(pods, NODES, lambda node: None) == {}


def test_a_pod_with_devices_that_no_request_shows_has_no_cost_and_leaves_the_others_theirs():
    pods = [pod("a", claims=True, cpu=2.0), pod("b", cpu=1.0, memory=4 * GIB)]
    assert costs(pods, NODES, lambda node: 8.0) == {("train", "b"): pytest.approx(2.0)}


@given(st.lists(RESOURCES, min_size=1, max_size=20), st.floats(0, 1000))
def test_the_pods_of_a_node_cost_no_more_than_the_node(requested, price):
    pods = [Pod("train", str(n), "n1", Owner(), r) for n, r in enumerate(requested)]
    assert sum(costs(pods, NODES, lambda node: price).values()) <= price * (1 + 1e-9)
