"""The kube collector over a hand-written API server on the loopback."""

import shutil
import ssl
import subprocess
import sys
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import httpx
import pytest
from pydantic import ValidationError

sys.path.insert(0, str(Path(__file__).parent))

from kube_cluster import Cluster, serving

from sidecar.clock import FakeClock
from sidecar.collectors.kube.catalogue import METRICS
from sidecar.collectors.kube.collector import KubeCollector
from sidecar.collectors.kube.settings import KubeSettings
from sidecar.collectors.runner import Runner
from sidecar.errors import CollectError
from sidecar.model import Availability
from sidecar.promql import evaluate
from sidecar.store import Store

NOW = int(datetime(2026, 11, 30, tzinfo=UTC).timestamp() * 1000)
PRICES = (
    "prices:\n- {instance_type: m5.xlarge, region: eu-west-1, usd_per_hour: 0.4, as_of: 2026-11-01, source: test}\n"
)


@pytest.fixture
def cluster():
    with serving(Cluster()) as served:
        yield served


@pytest.fixture
def collector(cluster, tmp_path):
    (tmp_path / "token").write_text("first\n")

    def make(prices=None, **settings):
        if prices is not None:
            (tmp_path / "prices.yaml").write_text(prices)
            settings["prices"] = tmp_path / "prices.yaml"
        own = KubeSettings(enabled=True, server=cluster.url, token_file=tmp_path / "token", **settings)
        return KubeCollector(own, environ={})

    return make


@pytest.fixture
def minutes():
    """Times a minute apart, at each of which the API is asked."""
    return count(NOW, 60_000)


def values(samples):
    return {(s.metric.removeprefix("spikewatch_"), *(f"{k}={v}" for k, v in s.labels)): s.value for s in samples}


def names(samples, metric="spikewatch_pod_info", label="pod"):
    return sorted(dict(s.labels)[label] for s in samples if s.metric == metric)


# --- what it says ---


def test_pods_have_their_node_owner_and_cost(cluster, collector):
    cluster.node()
    cluster.pod("web-1", owner="ReplicaSet/web-5d", cpu="1", memory="4Gi")
    cluster.pod("web-2", owner="ReplicaSet/web-5d", cpu="1", memory="4Gi")
    cluster.pod("db-0", owner="StatefulSet/db", cpu="2", memory="8Gi")
    cluster.behind("replicasets", "web-5d", owner="Deployment/web")
    found = values(collector(PRICES).sample(NOW))
    own = ("namespace=train", "owner=Deployment/web", "pod=web-1")
    assert found["pod_info", "namespace=train", "node=n1", *own[1:]] == 1
    assert found[("pod_cost_per_hour", *own)] == pytest.approx(0.1)
    assert found[("pod_running", *own)] == 1
    assert found["workload_replicas", "namespace=train", "owner=Deployment/web"] == 2
    assert found["workload_replicas", "namespace=train", "owner=StatefulSet/db"] == 1
    assert sum(v for k, v in found.items() if k[0] == "pod_cost_per_hour") == pytest.approx(0.4)
    assert not [key for key in found if key[0] == "pod_cost_limit_usd_per_hour"]


def test_everything_it_emits_is_in_the_catalogue(cluster, collector):
    cluster.node()
    cluster.pod("a", owner="Job/x", cpu="1")
    known = {info.name: set(info.labels) for info in METRICS}
    samples = list(collector(PRICES, pod_cost_limit_usd_per_hour=5).sample(NOW))
    assert {s.metric for s in samples} == set(known)
    assert all({k for k, _ in s.labels} <= known[s.metric] for s in samples)


def test_pods_that_hold_nothing_are_left_out(cluster, collector):
    cluster.pod("waiting", node="", phase="Pending")
    cluster.pod("starting", phase="Pending")
    cluster.pod("done", phase="Succeeded")
    cluster.pod("failed", phase="Failed")
    assert names(collector().sample(NOW)) == ["starting"]


def test_without_a_price_book_no_cost_is_told_and_none_is_missed(cluster, collector):
    cluster.node()
    cluster.pod("a", cpu="1")
    one = collector()
    assert {s.metric for s in one.sample(NOW)} == {"spikewatch_pod_info"}
    assert one.probe().state is Availability.AVAILABLE


def test_a_node_that_the_book_does_not_know_leaves_its_pods_without_a_cost_and_says_which(cluster, collector):
    cluster.node("n1")
    cluster.node("n2", instance_type="p5.48xlarge", labels={"karpenter.sh/capacity-type": "spot"}.items())
    cluster.pod("a", node="n1", cpu="1")
    cluster.pod("b", node="n2", **{"nvidia.com/gpu": "8"})
    one = collector(PRICES)
    samples = list(one.sample(NOW))
    assert names(samples, "spikewatch_pod_cost_per_hour") == ["a"]
    assert names(samples, "spikewatch_pod_running") == ["a", "b"]
    status = one.probe()
    assert (status.state, status.reason) == (Availability.DEGRADED, "no_price")
    assert "p5.48xlarge in eu-west-1, spot" in status.fix


def test_the_outermost_owner_is_asked_for_once_and_again_only_for_a_new_one(cluster, collector, minutes):
    cluster.pod("a", owner="Job/train-28", cpu="1")
    cluster.pod("b", owner="ReplicaSet/alone", cpu="1")
    cluster.behind("jobs", "train-28", owner="CronJob/train")
    one = collector()

    def owners():
        cluster.asked.clear()
        samples = list(one.sample(next(minutes)))
        return names(samples, label="owner"), sorted({plural for plural, *_ in cluster.asked})

    assert owners() == (["CronJob/train", "ReplicaSet/alone"], ["jobs", "nodes", "pods", "replicasets"])
    assert owners() == (["CronJob/train", "ReplicaSet/alone"], ["nodes", "pods"])
    cluster.pod("c", owner="Job/train-29", cpu="1")
    assert owners() == (["CronJob/train", "Job/train-29", "ReplicaSet/alone"], ["jobs", "nodes", "pods"])
    assert "PartialObjectMetadataList" in next(accept for plural, _, _, accept in cluster.asked if plural == "jobs")


def test_only_the_costliest_pods_have_series_where_there_are_too_many(cluster, collector):
    cluster.node(cpu="100", memory="400Gi")
    for n in range(30):
        cluster.pod(f"p{n:02}", owner="Deployment/d", cpu=f"{n}00m")
    one = collector(PRICES, max_pods=3)
    samples = list(one.sample(NOW))
    assert names(samples) == ["p27", "p28", "p29"]
    assert values(samples)["workload_replicas", "namespace=train", "owner=Deployment/d"] == 30
    assert one.probe().reason == "too_many_pods"


def test_pods_that_nobody_can_price_are_not_the_first_to_be_left_out(cluster, collector):
    cluster.node(cpu="100", memory="400Gi")
    cluster.node("dear", instance_type="unheard.of", cpu="100", memory="400Gi")
    for n in range(10):
        cluster.pod(f"p{n}", cpu="1")
        cluster.pod(f"u{n}", node="dear", cpu=f"{n + 1}")
    samples = list(collector(PRICES, max_pods=8).sample(NOW))
    shown = names(samples, metric="spikewatch_pod_running")
    assert shown == ["p0", "p1", "p2", "p3", "p4", "p5", "u8", "u9"]
    assert names(samples, metric="spikewatch_pod_cost_per_hour") == shown[:6]


def test_an_object_that_cannot_be_read_costs_itself_only(cluster, collector):
    cluster.node()
    cluster.pod("bad", cpu="1 core")
    cluster.pod("good", cpu="1")
    one = collector(PRICES)
    assert names(one.sample(NOW)) == ["good"]
    assert (one.probe().reason, "train/bad" in one.probe().fix) == ("unreadable_objects", True)


def test_a_price_book_that_changes_counts_from_the_next_reading_and_a_wrong_one_not_at_all(
    cluster, collector, tmp_path, minutes
):
    cluster.node()
    cluster.pod("a", cpu="4", memory="16Gi")
    one = collector(PRICES)

    def cost():
        return [s.value for s in one.sample(next(minutes)) if s.metric == "spikewatch_pod_cost_per_hour"]

    assert cost() == [pytest.approx(0.4)]
    (tmp_path / "prices.yaml").write_text(PRICES.replace("0.4", "0.75"))
    assert cost() == [pytest.approx(0.75)]
    (tmp_path / "prices.yaml").write_text(PRICES.replace("0.4", "cheap"))
    assert cost() == [pytest.approx(0.75)]
    assert one.probe().reason == "price_book"
    assert "prices.yaml:2:" in one.probe().fix


def test_prices_in_use_that_are_old_are_told(cluster, collector):
    cluster.node()
    cluster.pod("a", cpu="1")
    one = collector(PRICES.replace("2026-11-01", "2026-08-01"))
    assert len(names(one.sample(NOW), "spikewatch_pod_cost_per_hour")) == 1
    assert one.probe().reason == "old_prices"


def test_between_two_readings_nothing_is_asked_and_little_is_written(cluster, collector):
    cluster.pod("a", cpu="1")
    one = collector(refresh="2m")

    def written(second):
        (section,) = one.sections(NOW + second * 1000)
        return section.samples is not None

    assert [second for second in range(0, 240, 5) if written(second)] == [0, 50, 100, 120, 170, 220]
    assert len(cluster.asked) == 4
    one.stretch(2)
    for second in range(240, 480, 5):
        written(second)
    assert len(cluster.asked) == 6


def test_an_api_that_is_away_for_minutes_ends_no_series_and_one_that_stays_away_does(cluster, collector):
    cluster.node()
    cluster.pod("a", cpu="1")
    one = collector(PRICES)
    before = values(one.sample(NOW))
    cluster.answer = (503, b"")
    for second in range(60, 300, 60):
        assert values(one.sample(NOW + second * 1000)) == before
        assert (one.probe().state, one.probe().reason) == (Availability.DEGRADED, "http_status")
    with pytest.raises(CollectError):
        one.sample(NOW + 300_000)
    assert one.probe().state is Availability.UNAVAILABLE
    cluster.answer = None
    assert values(one.sample(NOW + 301_000)) == before
    assert one.probe().state is Availability.AVAILABLE


# --- pages ---


def test_long_lists_come_in_pages_and_only_so_many(cluster, collector):
    for n in range(35):
        cluster.pod(f"p{n:02}", cpu="1")
    assert names(collector(page_size=10).sample(NOW)) == [f"p{n:02}" for n in range(35)]
    assert [q["limit"] for p, _, q, _ in cluster.asked if p == "pods"] == ["10"] * 4
    with pytest.raises(CollectError, match="more than 3 pages of 10"):
        collector(page_size=10, max_pages=3).sample(NOW)


def test_a_list_whose_continuation_expires_begins_anew_and_counts_nothing_twice(cluster, collector):
    for n in range(25):
        cluster.pod(f"p{n:02}", cpu="1")
    cluster.expire = 2
    assert names(collector(page_size=10).sample(NOW)) == [f"p{n:02}" for n in range(25)]
    cluster.expire = 100
    with pytest.raises(CollectError, match="expired") as failed:
        collector(page_size=10).sample(NOW)
    assert failed.value.reason == "expired"
    assert cluster.expire == 97


def test_with_namespaces_only_theirs_are_asked_for(cluster, collector):
    for namespace in ("a", "b", "c"):
        cluster.pod(f"in-{namespace}", namespace=namespace, cpu="1")
    assert names(collector(namespaces=["a", "c"]).sample(NOW)) == ["in-a", "in-c"]
    assert {(p, n) for p, n, *_ in cluster.asked} == {("pods", "a"), ("pods", "c"), ("nodes", "")}


def test_a_reading_ends_in_time_whatever_the_server_does(cluster, collector):
    ticks = iter(range(0, 10_000, 7))
    for n in range(35):
        cluster.pod(f"p{n}", cpu="1")
    one = collector(page_size=10, deadline="20s")
    slow = KubeCollector(one._settings, environ={}, timer=lambda: next(ticks))
    with pytest.raises(CollectError) as failed:
        slow.sample(NOW)
    assert failed.value.reason == "timeout"


# --- what can go wrong ---


def test_the_token_is_read_again_when_it_rotates(cluster, collector, tmp_path, minutes):
    cluster.pod("a", cpu="1")
    one = collector()
    assert names(one.sample(next(minutes))) == ["a"]
    cluster.tokens = {"second"}
    with pytest.raises(CollectError) as failed:
        one.sample(next(minutes))
    assert failed.value.reason == "unauthorized"
    assert one.probe().state is Availability.DENIED
    (tmp_path / "token").write_text("second")
    assert one.probe().state is Availability.AVAILABLE
    assert names(one.sample(next(minutes))) == ["a"]


def test_without_permission_for_pods_it_is_denied_and_says_the_rule_that_helps(cluster, collector):
    cluster.granted.discard(("", "pods"))
    status = collector().probe()
    assert (status.state, status.reason) == (Availability.DENIED, "forbidden")
    assert '{apiGroups: [""], resources: [pods], verbs: [list]}' in status.fix
    assert "system:serviceaccount:spikewatch:spikewatch" in status.fix


@pytest.mark.parametrize(("group", "plural"), [("", "nodes"), ("apps", "replicasets"), ("batch", "jobs")])
def test_without_another_permission_there_is_less_and_it_says_which(cluster, collector, group, plural):
    cluster.node()
    cluster.pod("a", owner="ReplicaSet/r", cpu="1")
    cluster.pod("b", owner="Job/j", cpu="1")
    cluster.granted.discard((group, plural))
    one = collector(PRICES)
    assert (one.probe().state, one.probe().reason) == (Availability.DEGRADED, f"no_{plural}")
    samples = list(one.sample(NOW))
    assert names(samples) == ["a", "b"]
    assert bool(names(samples, "spikewatch_pod_cost_per_hour")) is (plural != "nodes")
    assert one.probe().state is Availability.DEGRADED
    assert f'{{apiGroups: ["{group}"], resources: [{plural}], verbs: [list]}}' in one.probe().fix
    assert {f.what: f.status.state for f in one.findings()}[f"list of {plural}"] is Availability.DEGRADED


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((429, {"message": "too many requests"}), "throttled"),
        ((503, b"upstream connect error"), "http_status"),
        ((200, b"<html>"), "no_json"),
        ((200, b"[" * 100_000), "no_json"),
        ((200, []), "no_list"),
        ((200, {"items": 3}), "no_list"),
        ((200, {"kind": "Status"}), "no_list"),
        ((302, b""), "http_status"),
    ],
)
def test_an_answer_that_is_no_list_is_a_reason_and_nothing_is_told(cluster, collector, answer, reason):
    cluster.answer = answer
    with pytest.raises(CollectError) as failed:
        collector().sample(NOW)
    assert failed.value.reason == reason


def test_a_page_larger_than_any_makes_sense_is_not_read_to_its_end(cluster, collector, monkeypatch):
    monkeypatch.setattr("sidecar.collectors.kube.api._MAX_PAGE", 1 << 20)
    cluster.answer = (200, b" " * (3 << 20))
    with pytest.raises(CollectError) as failed:
        collector().sample(NOW)
    assert failed.value.reason == "too_large"


def test_an_empty_cluster_is_empty(cluster, collector):
    cluster.answer = (200, {"metadata": {}, "items": None})
    assert list(collector(PRICES).sample(NOW)) == []


def test_an_api_out_of_reach_is_unavailable_until_it_answers(collector):
    def refuse(request):
        raise httpx.ConnectError("refused")

    one = collector()
    gone = KubeCollector(one._settings, environ={}, transport=httpx.MockTransport(refuse))
    assert (gone.probe().state, gone.probe().reason) == (Availability.UNAVAILABLE, "unreachable")
    assert [f.status.reason for f in gone.findings()] == ["unreachable"] * 4


def test_a_token_that_is_not_there_or_fits_no_header_is_told_and_never_shown(collector, tmp_path):
    for wrong in (b"", b"secret\nsecret", b"secret\xff", b"two secrets"):
        (tmp_path / "token").write_bytes(wrong)
        assert collector().probe().reason == "no_token"
        assert "secret" not in collector().probe().fix
    (tmp_path / "token").unlink()
    status = collector().probe()
    assert (status.state, status.reason) == (Availability.DENIED, "no_token")
    assert "automountServiceAccountToken" in status.fix


def test_outside_a_cluster_it_says_so_and_inside_it_finds_the_api():
    status = KubeCollector(KubeSettings(enabled=True), environ={}).probe()
    assert (status.state, status.reason) == (Availability.UNAVAILABLE, "not_in_cluster")
    asked = []
    inside = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    one = KubeCollector(KubeSettings(enabled=True), environ=inside, transport=httpx.MockTransport(asked.append))
    assert one.probe().reason == "no_ca"
    assert one._server() == "https://[fd00::1]:443"


def test_the_api_is_trusted_by_the_clusters_authority_only(collector, tmp_path):
    if not shutil.which("openssl"):
        pytest.skip("the openssl command makes the certificate")
    files = ["-keyout", tmp_path / "key.pem", "-out", tmp_path / "ca.pem"]
    command = ["openssl", "req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command += ["-subj", "/CN=kube", "-addext", "subjectAltName=IP:127.0.0.1", *files]
    subprocess.run([*map(str, command)], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "ca.pem", tmp_path / "key.pem")
    own = Cluster()
    own.pod("a", cpu="1")
    with serving(own, context):
        settings = collector()._settings.model_copy(update={"server": own.url, "ca_file": tmp_path / "ca.pem"})
        assert names(KubeCollector(settings, environ={}).sample(NOW)) == ["a"]
        (tmp_path / "ca.pem").write_text("nothing")
        assert KubeCollector(settings, environ={}).probe().reason == "no_ca"


def test_it_is_off_unless_it_is_switched_on_and_refuses_settings_that_make_no_sense():
    assert KubeSettings().enabled is False
    for wrong in ({"server": "kubernetes"}, {"namespaces": ["a/b"]}, {"max_pods": 10**6}, {"refresh": "1s"}):
        with pytest.raises(ValidationError):
            KubeSettings(**wrong)


def test_in_a_running_sidecar_pods_that_are_gone_end_and_a_denied_api_comes_back(cluster, collector):
    cluster.pod("a", cpu="1")
    cluster.pod("b", cpu="1")
    one = collector()
    store, clock = Store(), FakeClock(NOW)
    runner = Runner([(one, one._settings)], store, clock)

    def seen():
        runner.tick(clock.now_ms())
        assert runner.settle(30)
        runner.tick(clock.now_ms() + 1)
        found = evaluate(store, "spikewatch_pod_info", clock.now_ms() + 1)
        state = evaluate(store, 'spikewatch_collector_status{collector="kube"}', clock.now_ms() + 1)
        clock.advance(61_000)
        return sorted(dict(labels)["pod"] for labels, _ in found), [dict(labels)["state"] for labels, _ in state]

    try:
        assert seen() == (["a", "b"], ["available"])
        cluster.objects["pods"].pop()
        assert seen() == (["a"], ["available"])
        cluster.granted.clear()
        assert [seen(), seen()][-1] == ([], ["denied"])
        cluster.granted.add(("", "pods"))
        assert [seen(), seen(), seen()][-1][0] == ["a"]
    finally:
        assert runner.close(30) == []
