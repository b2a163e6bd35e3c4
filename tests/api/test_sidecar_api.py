"""A whole sidecar asked over HTTP while it works."""

import json
import threading

import httpx
import pytest

from sidecar.api.routes import full
from sidecar.api.server import Server
from sidecar.app import build, services
from sidecar.app.waker import Waker

INTERVAL_MS = 100
RULES = """
groups:
- name: probes
  rules:
  - record: probe:two
    expr: vector(2)
  - record: probe:seen
    expr: count_over_time(probe:two[1m])
  - alert: Probing
    expr: probe:two == 2
    annotations: {summary: "{{ $value }}"}
"""


class Running:
    """A sidecar with its listener and its pace, all on the loop of the tests."""

    def __init__(self, loop, path):
        config = {
            "state_dir": "state",
            "run_dir": "run",
            "rules": ["probe.rules.yaml"],
            "responses": [],
            "evaluation_interval": f"{INTERVAL_MS}ms",
            "collectors": {"process": {"enabled": False}},
        }
        (path / "spikewatch.yaml").write_text(json.dumps(config))
        (path / "probe.rules.yaml").write_text(RULES)
        self._loop, self._path = loop, path

    async def start(self):
        self.sidecar = build(self._path / "spikewatch.yaml", environ={})
        self.server = Server(full(services(self.sidecar, self.sidecar.reload)), "127.0.0.1", 0)
        self.waker = Waker(self.sidecar.tick, INTERVAL_MS, self.sidecar.clock)
        await self.sidecar.start()
        await self.server.start()
        self.waker.start()

    async def stop(self):
        await self.waker.stop()
        await self.sidecar.stop()
        await self.server.stop()

    async def fill(self, series, slots):
        """A quarter of an hour of samples, one each second."""
        store, now_ms = self.sidecar.store, self.sidecar.clock.now_ms()
        handles = [store.series("m", {"i": str(i)}) for i in range(series)]
        for slot in range(slots, 0, -1):
            store.push(handles[0].block, now_ms - slot * 1000, {h.column: float(slot) for h in handles})


@pytest.fixture(scope="module")
def running(loop, tmp_path_factory):
    made = Running(loop, tmp_path_factory.mktemp("sidecar"))
    loop.run(made.start())
    yield made
    loop.run(made.stop())


@pytest.fixture(scope="module")
def client(running):
    address = "http://{}:{}".format(*running.server.address)
    with httpx.Client(base_url=address, trust_env=False, timeout=20) as made:
        yield made


def data(client, path, **params):
    answer = client.get(f"/api/v1/{path}", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


def group(client):
    (found,) = data(client, "rules")["groups"]
    return found


def until(condition, tries=200):
    """Asks again, a tick's time apart, until there is something to see."""
    pause = threading.Event()
    for _ in range(tries):
        if found := condition():
            return found
        pause.wait(INTERVAL_MS / 1000)
    raise AssertionError("it did not come")


def test_what_rules_record_can_be_queried(client):
    (series,) = until(lambda: data(client, "query", query="probe:two")["result"])
    assert (series["metric"], series["value"][1]) == ({"__name__": "probe:two"}, "2")
    found = until(lambda: data(client, "query", query="probe:two[1m]")["result"])
    assert {v for _, v in found[0]["values"]} == {"2"}


def test_the_alerts_that_fire_are_in_the_list_in_their_rule_and_among_the_series(client):
    (alert,) = until(lambda: data(client, "alerts")["alerts"])
    assert (alert["labels"]["alertname"], alert["state"]) == ("Probing", "firing")
    rule = group(client)["rules"][2]
    assert (rule["state"], rule["health"], rule["alerts"][0]["annotations"]) == ("firing", "ok", {"summary": "2"})
    assert [e["series"] for e in rule["evaluations"]][-1] == 1
    assert data(client, "series", **{"match[]": "ALERTS"}) == [
        {"__name__": "ALERTS", "alertname": "Probing", "alertstate": "firing"}
    ]
    assert "Probing" in data(client, "label/alertname/values")


def test_metadata_and_build_are_those_of_the_program(client):
    described = data(client, "metadata", metric="spikewatch_build_info")["spikewatch_build_info"]
    assert described[0]["type"] == "gauge"
    build_info = data(client, "status/buildinfo")
    assert build_info["application"] == "spikewatch"
    assert {"version", "revision", "branch", "buildUser", "buildDate", "goVersion"} < set(build_info)


SLOW = "sum_over_time(sum_over_time(m[15m:1s])[15m:1s])"


def test_rules_keep_their_tick_while_a_pathological_query_runs_and_it_is_cut_off(loop, running, client):
    loop.run(running.fill(series=50, slots=890))
    until(lambda: len(group(client)["rules"][0]["evaluations"]) >= 3)
    before = running.sidecar.manager.stats().evaluations
    answer = client.post("/api/v1/query", data={"query": SLOW, "timeout": "3s"})
    evaluated = (running.sidecar.manager.stats().evaluations - before) / 3
    assert (answer.status_code, answer.json()["errorType"]) == (503, "timeout")
    # 30 ticks are due; a busy machine may take some of them away, a query that held the loop would take all
    assert evaluated >= 10
    assert {rule["health"] for rule in group(client)["rules"]} == {"ok"}


def test_long_range_queries_answer_while_rules_go_on(loop, running, client):
    loop.run(running.fill(series=30, slots=890))
    now = running.sidecar.clock.now_ms() / 1000
    before = running.sidecar.manager.stats().evaluations
    found = data(client, "query_range", query="avg_over_time(m[1m])", start=now - 800, end=now, step=1)
    assert len(found["result"]) >= 30
    until(lambda: running.sidecar.manager.stats().evaluations > before)
