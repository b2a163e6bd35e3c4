"""A real Prometheus 3.5 and ours hold the same samples: asked the same, they answer the same bytes."""

import itertools
import subprocess
import tempfile
import time
from urllib.parse import urlencode

import httpx
import pytest
import twin_prometheus as twin

from sidecar import promql
from sidecar.alerting.loader import load_rules
from sidecar.alerting.manager import Manager
from sidecar.api import routes
from sidecar.api.services import Data
from sidecar.app.files import shipped_folder
from sidecar.store import Store

pytestmark = pytest.mark.peers

T = twin.START_MS // 1000
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
RULES = """
groups:
- name: at work
  interval: 1s
  limit: 9
  labels: {team: x}
  rules:
  - record: two
    expr: vector( 2 )
    labels: {l: "1"}
  - alert: Fires
    expr: label_replace(vector(1), "a", "b", "", "")  >  0  or  vector(3)
    keep_firing_for: 1m
    labels: {severity: warning}
    annotations: {summary: "{{ $value }} of {{ $labels.a }}"}
  - alert: Waits
    expr: vector(1)
    for: 1h
  - alert: Calm
    expr: vector(0) == 1
"""


@pytest.fixture(scope="module")
def rule_files(tmp_path_factory):
    """Rules that do something, and everything shipped."""
    path = tmp_path_factory.mktemp("rules") / "work.yaml"
    path.write_text(RULES)
    return [path, *sorted(shipped_folder().glob("**/*.rules.yaml"))]


@pytest.fixture(scope="module")
def theirs(peer):
    """A client of a real one with our samples."""
    with tempfile.TemporaryDirectory() as folder, twin.prometheus(peer("prometheus"), folder) as client:
        twin.fill(client, twin.samples())
        yield client


@pytest.fixture(scope="module")
def ruler(peer, rule_files):
    """A client of a real one with our rules, once it has evaluated them."""
    config = {"global": {"evaluation_interval": "1h"}, "rule_files": [str(path) for path in rule_files]}
    with tempfile.TemporaryDirectory() as folder, twin.prometheus(peer("prometheus"), folder, config) as client:
        until = time.monotonic() + 10
        while {r["health"] for r in data(client, "rules", **{"rule_group[]": "at work"})["groups"][0]["rules"]} != {
            "ok"
        }:
            assert time.monotonic() < until
            time.sleep(0.05)
        yield client


@pytest.fixture(scope="module")
def ours(loop, silent, rule_files):
    """A client of a listener over our store, whose rules have been evaluated."""
    store, now_ms = Store(), time.time_ns() // 1_000_000
    made = Manager(
        load_rules(rule_files).groups,
        lambda expr, t_ms: promql.evaluate(store, expr, t_ms),
        default_interval_ms=3600_000,
    )
    for second in range(3):
        made.tick(now_ms + second * 1000)
    services = silent(data=Data(twin.store_of(twin.samples())), rules=made.rules, alerts=made.alerts)
    server = loop.start(routes.full(services))
    with httpx.Client(base_url="http://{}:{}".format(*server.address), trust_env=False, timeout=10) as client:
        yield client


def asked(client, path, params, method="GET"):
    """Status, content type and body."""
    if method == "GET":
        answer = client.get(f"/api/v1/{path}", params=params)
    else:
        answer = client.post(f"/api/v1/{path}", content=urlencode(params), headers=FORM)
    return answer.status_code, answer.headers["content-type"], answer.content


INSTANT = [
    "1", "-0", "1 / 0", "NaN", '"x<y>"', "time()", "odd", "weird", "nothing", "requests_total", "ended", "vector(1)",
    "requests_total[3s]", "gauge[30s:7s]", "odd[1m]", "requests_total @ 1700000005", "requests_total offset -10s",
    '{instance="a"}', '{__name__=~"gauge|requests_total"}', 'requests_total{instance=~"a|b"}',
    "rate(requests_total[10s])", "increase(requests_total[1m])", "irate(requests_total[10s])", "delta(gauge[10s])",
    "deriv(gauge[20s])", "predict_linear(gauge[20s], 60)", "max_over_time(gauge[1m:10s])", "avg_over_time(odd[1m])",
    "histogram_quantile(0.5, rate(latency_seconds_bucket[20s]))", "timestamp(gauge)", "abs(odd)", "sgn(odd)",
    "sum(requests_total)", "avg without(instance) (requests_total)", "quantile by(job) (0.5, requests_total)",
    "stddev(requests_total)", "sort_desc(requests_total)", "topk(2, requests_total)", "bottomk(1, requests_total)",
    "requests_total > 60", "requests_total == bool 59", "requests_total + on(instance) requests_total",
    "requests_total and on() vector(1)", 'requests_total unless requests_total{instance="b"}', "odd or requests_total",
    'label_join(requests_total, "j", "-", "instance", "job")', "absent(nothing{a='b'})", "scalar(nothing)",
    'label_replace(requests_total, "a", "$1", "instance", "(.*)")', "absent_over_time(nothing[1m])",
    'label_replace(odd, "n", "x", "n", ".*")', "odd + on() odd",
]  # fmt: skip

RANGE = [
    "1", "requests_total", "sum(requests_total)", "gauge", "nothing", "time()", "topk(1, requests_total)", "ended",
    "sort(requests_total)", "gauge @ end()", "gauge + on() requests_total", 'count_values("v", gauge)', "absent(gauge)",
    "rate(requests_total[5s])", "histogram_quantile(0.9, rate(latency_seconds_bucket[20s]))", "vector(time())",
    '"a"', "gauge[1m]",
]  # fmt: skip

REQUESTS = [
    *(("query", {"query": q, "time": T + 59}) for q in INSTANT),
    *(("query_range", {"query": q, "start": T, "end": T + 40, "step": 7}) for q in RANGE),
    *(
        ("query_range", {"query": "requests_total", "start": T, "end": T + 3, "step": 1, **changed})
        for changed in (
            {"step": "0"}, {"step": "-1"}, {"step": "x"}, {"step": ""}, {"step": "1m"}, {"step": "0.5"},
            {"step": "0.0001"}, {"step": "1e300"}, {"start": "x"}, {"end": "x"}, {"start": ""}, {"end": T - 1},
            {"end": T}, {"end": T + 11000}, {"end": T + 11001}, {"limit": 1}, {"limit": "x"}, {"timeout": "x"},
            {"lookback_delta": "1s"}, {"lookback_delta": "x"}, {"start": T + 0.5, "end": T + 2.9},
        )
    ),
    *(
        ("query", {"query": "1", **changed})
        for changed in (
            {"time": "x"}, {"time": "2023-01-01T00:00:00.5Z"}, {"time": "2023-01-01T00:00:00+02:00"},
            {"time": "1.0005"}, {"time": "1.29"}, {"time": "-5.25"}, {"time": "0x10"}, {"time": " 1"}, {"time": "1_0"},
            {"time": "2023-13-01T00:00:00Z"}, {"time": "2023-01-01"}, {"timeout": "x"}, {"lookback_delta": "x"},
            {"limit": "x"}, {"limit": "-1"}, {"limit": "9" * 20}, {"time": T, "limit": 1},
            {"query": "odd", "time": T + 59, "limit": 2}, {"query": "requests_total[3s]", "time": T + 59, "limit": 1},
            {"query": "odd", "time": T + 200, "lookback_delta": "1m"}, {"query": "odd", "time": T + 359},
            {"query": "odd", "time": T + 358.999},
        )
    ),
    *(
        ("series", given)
        for given in (
            [], [("match[]", "gauge")], [("match[]", "gauge"), ("match[]", 'requests_total{instance!="a"}')],
            [("match[]", "{}")], [("match[]", "nothing")], [("match[]", '{instance="a"}')], [("match[]", "weird")],
            [("match[]", '{__name__=~".+"}')], [("match[]", "requests_total"), ("start", T - 5000), ("end", T - 4000)],
            [("match[]", "gauge"), ("start", "x")], [("match[]", "gauge"), ("end", "x")],
            [("match[]", "requests_total"), ("limit", 1)], [("match[]", "gauge"), ("limit", "x")],
            [("match[]", "requests_total"), ("match[]", "gauge"), ("limit", 1)],
        )
    ),
    *(
        (path, given)
        for path in ("labels", "label/instance/values", "label/__name__/values", "label/l/values", "label/a-b/values")
        for given in (
            {}, {"match[]": "gauge"}, {"match[]": "nothing"}, {"match[]": "{}"}, {"start": "x"}, {"limit": 9},
            {"limit": "x"}, {"start": T - 5000, "end": T - 4000},
        )
    ),
    *(("metadata", given) for given in ({}, {"metric": "x"}, {"limit": "x"}, {"limit_per_metric": "x"}, {"limit": -1})),
    *(
        ("rules", given)
        for given in (
            {"type": "x"}, {"rule_name[]": "nothing"}, {"file[]": "nothing"}, {"match[]": "{}"},
            {"exclude_alerts": "x"}, {"group_limit": "x"}, {"group_limit": -1}, {"group_next_token": "x"},
            {"group_limit": 1, "group_next_token": "x"},
        )
    ),
    *(
        ("format_query", {"query": query})
        for query in (
            "sum(  x )by(y)", "1   + 1 # comment",
            'x{a="1",b=~"c"} offset 5m + on(a) group_left(c) sum without(b) (rate(bar_total{a="b",c="ddddddddd"}[5m]))',
        )
    ),
]  # fmt: skip


def test_every_request_is_answered_with_the_same_bytes(theirs, ours):
    different = []
    for path, params in REQUESTS:
        their, our = (asked(client, path, params) for client in (theirs, ours))
        if any(isinstance(v, str) and "count_values" in v for v in dict(params).values()):
            # its elements come in no particular order there
            their, our = ((s, kind, sorted(body)) for s, kind, body in (their, our))
        if their != our:
            different.append((path, params, their, our))
    assert len(REQUESTS) > 150
    assert different == []


@pytest.mark.parametrize(
    ("path", "params"),
    [
        ("query", {"query": "requests_total", "time": T + 59}),
        ("query_range", {"query": "requests_total", "start": T, "end": T + 3, "step": "1s"}),
        ("series", {"match[]": "gauge"}),
        ("labels", {"match[]": "gauge"}),
        ("format_query", {"query": "1+1"}),
    ],
)
def test_a_form_is_answered_as_the_same_request_in_the_address(theirs, ours, path, params):
    assert asked(ours, path, params, "POST") == asked(theirs, path, params, "POST") == asked(ours, path, params)


WRONG = [
    "", "sum(", "x[5m", "foo{", "abs(1,2)", "nofunc(1)", "limitk(1, odd)", "1 +", '"a', "x)", "x y", "rate(x)",
    "1 and 1",
    "x{a=b}", "{}", '{a=""}', "x[5m] offset", "$", 'x{a=~"("}', "sum(1)", 'abs("a")', "count_values(x, y)", '-"a"',
    "x[0s]", 'x{__name__="y"}', "x @ foo", '"x" + 1', "1 > 2", "topk(x)", "# c", ")", "sum by", "1e999",
]  # fmt: skip


@pytest.mark.parametrize("path", ["query", "query_range", "format_query", "series", "labels", "rules"])
def test_what_is_no_expression_is_refused_alike_though_in_other_words(theirs, ours, path):
    name = "query" if "query" in path else "match[]"
    for text in WRONG:
        if name == "match[]" and "__name__" in text:
            continue  # the name given twice: Prometheus takes it for a selector, though not for a query
        params = {name: text, "time": T, "start": T, "end": T + 1, "step": 1}
        (status, kind, their), (our_status, our_kind, our) = (asked(c, path, params) for c in (theirs, ours))
        assert (our_status, our_kind) == (status, kind) == (400, "application/json"), text
        # the position follows, if it is known
        assert our.partition(b"1:")[0] == their.partition(b"1:")[0] or b"unknown position" in our + their, text


@pytest.mark.parametrize("path", ["labels", "label/instance/values", "label/__name__/values"])
def test_a_cut_list_has_as_many_entries_and_the_same_warning_as_there(theirs, ours, path):
    whole = data(theirs, path)
    their, our = (client.get(f"/api/v1/{path}", params={"limit": 2}).json() for client in (theirs, ours))
    assert our["warnings"] == their["warnings"]
    # which entries these are is left to chance there; ours are the first
    assert len(our["data"]) == len(their["data"]) == 2
    assert our["data"] == whole[:2]


def test_what_is_known_to_differ_does_no_more_than_that(theirs, ours):
    for query in ("rate(gauge[1m])", "quantile(2, odd)"):
        their, our = (
            client.get("/api/v1/query", params={"query": query, "time": T + 59}).json() for client in (theirs, ours)
        )
        assert set(their) - set(our) in ({"infos"}, {"warnings"}), "remarks on the expression"
        assert our["data"] == their["data"]
    their, our = (
        client.get("/api/v1/query", params={"query": "1", "stats": "all"}).json() for client in (theirs, ours)
    )
    assert set(their["data"]) - set(our["data"]) == {"stats"}
    for path in ("parse_query", "query_exemplars", "targets", "status/config", "status/flags", "status/tsdb"):
        assert ours.get(f"/api/v1/{path}", params={"query": "x"}).status_code == 404


# --- rules -----------------------------------------------------------------------------------------------------------

CLOCKWORK = ("evaluationTime", "lastEvaluation", "evaluations", "activeAt")


def timeless(value):
    """Without what depends on when and how fast rules are evaluated, and with alerts in one order."""
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if k not in CLOCKWORK}
    if isinstance(value, list):
        found = [timeless(v) for v in value]
        return sorted(found, key=str) if found and isinstance(found[0], dict) and "activeAt" in value[0] else found
    return value


def data(client, path, **params):
    return client.get(f"/api/v1/{path}", params=params).json()["data"]


def test_rules_and_alerts_are_told_alike(ruler, ours):
    for given in ({}, {"type": "alert"}, {"type": "record"}, {"rule_name[]": "Fires"}, {"exclude_alerts": "true"},
                  {"match[]": '{severity="warning"}'}):  # fmt: skip
        their, our = (data(client, "rules", **{"rule_group[]": "at work"}, **given) for client in (ruler, ours))
        assert timeless(our) == timeless(their), given
        keys = [[list(rule) for rule in group["rules"]] for group in their["groups"]]
        assert [[list(r)[: len(k)] for r, k in zip(g["rules"], ks, strict=True)]
                for g, ks in zip(our["groups"], keys, strict=True)] == keys, "and in the same order"  # fmt: skip
    assert timeless(data(ours, "alerts")) == timeless(data(ruler, "alerts"))
    assert len(data(ours, "alerts")["alerts"]) == 3


def test_every_shipped_rule_is_told_as_prometheus_tells_it(ruler, ours):
    groups = [
        [g for g in data(client, "rules", type="record")["groups"] + data(client, "rules", type="alert")["groups"]]
        for client in (ruler, ours)
    ]
    their, our = (
        {
            (group["name"], group["file"], rule["name"], n): (rule["query"], rule["labels"], rule.get("annotations"))
            for group in side
            for n, rule in enumerate(group["rules"])
            if "labels" in rule
        }
        for side in groups
    )
    assert len(their) > 5
    assert our == their


# --- promtool --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def promtool(peer, theirs, ours):
    """Exit status and output of `promtool query` against both."""
    addresses = [str(client.base_url).rstrip("/") for client in (theirs, ours)]

    def run(*args):
        for address in addresses:
            command = [peer("promtool"), "query", *(address if a == "URL" else a for a in args)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
            yield done.returncode, done.stdout, done.stderr.replace(address, "")

    return run


AT = ("--time", str(T + 59))
SPAN = ("--start", str(T), "--end", str(T + 20))


@pytest.mark.parametrize(
    "args",
    [
        ("instant", *AT, "URL", "requests_total"),
        ("instant", *AT, "URL", "odd"),
        ("instant", *AT, "--format", "json", "URL", "requests_total[2s]"),
        ("instant", *AT, "URL", "odd + on() odd"),
        ("range", *SPAN, "--step", "5s", "URL", "rate(requests_total[10s])"),
        ("range", *SPAN, "URL", "requests_total"),
        ("series", "--match", "gauge", "--match", "requests_total", "URL"),
        ("series", "--match", "requests_total", *SPAN, "URL"),
        ("labels", "URL", "instance"),
        ("labels", "--match", "gauge", *SPAN, "URL", "__name__"),
        ("analyze", "--type=histogram", "--duration=20s", *AT, "--match", "latency_seconds_bucket", "--server", "URL"),
    ],
    ids=lambda args: " ".join(itertools.islice(args, 1)),
)
def test_promtool_gets_the_same_from_both(promtool, args):
    their, our = promtool(*args)
    assert our == their
    assert their[1] or their[0] == 1
