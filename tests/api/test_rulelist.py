"""The list of rules, from real groups that have been evaluated."""

import pytest

from sidecar.alerting.loader import load_rules
from sidecar.alerting.manager import Manager
from sidecar.errors import QueryError
from sidecar.yamlfile import Document

T0 = 1_700_000_000_000

RULES = """
groups:
- name: first
  interval: 1s
  limit: 5
  labels: {team: infra}
  rules:
  - record: job:up:sum
    expr: sum(up)
    labels: {l: "1"}
  - alert: Down
    expr: up   ==  0
    for: 2s
    keep_firing_for: 1m
    labels: {severity: warning}
    annotations: {summary: "{{ $labels.job }} is down"}
  - alert: Broken
    expr: up + on() up
- name: second
  interval: 1h
  rules:
  - record: later
    expr: vector(1)
"""


def query(expr, t_ms):
    if expr == "up + on() up":
        raise QueryError("many-to-many matching not allowed")
    return [((("job", "a"),), 1.0)] if expr == "sum(up)" else [((("__name__", "up"), ("job", "b")), 0.0)]


@pytest.fixture
def manager():
    clock = iter(range(0, 10**12, 1_000_000))
    made = Manager(load_rules([Document("rules/x.yaml", RULES)]).groups, query, stopwatch=lambda: next(clock))
    for t_ms in range(T0, T0 + 5000, 1000):
        made.tick(t_ms)
    return made


@pytest.fixture
def groups(serve, manager):
    client = serve(rules=manager.rules)

    def get(**params):
        answer = client.get("/api/v1/rules", params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]["groups"]

    return get


def named(found):
    return [(group["name"], [rule["name"] for rule in group["rules"]]) for group in found]


ALL = [("first", ["job:up:sum", "Down", "Broken"]), ("second", ["later"])]


def test_every_group_is_listed_with_its_rules(groups):
    first, second = groups()
    assert named([first, second]) == ALL
    assert (first["file"], first["interval"], first["limit"]) == ("rules/x.yaml", 1, 5)
    assert (second["interval"], second["lastEvaluation"], second["evaluationTime"]) == (3600, "0001-01-01T00:00:00Z", 0)
    assert first["lastEvaluation"].startswith("2023-11-14T22:13:2")
    assert first["evaluationTime"] > 0


def test_an_alerting_rule_has_everything_prometheus_tells_of_it(groups):
    rule = groups()[0]["rules"][1]
    (alert,) = rule.pop("alerts")
    evaluations = rule.pop("evaluations")
    assert rule == {
        "state": "firing",
        "name": "Down",
        "query": "up == 0",
        "duration": 2,
        "keepFiringFor": 60,
        "labels": {"severity": "warning", "team": "infra"},
        "annotations": {"summary": "{{ $labels.job }} is down"},
        "health": "ok",
        "evaluationTime": 0.001,
        "lastEvaluation": evaluations[-1]["time"],
        "type": "alerting",
    }
    assert alert["state"] == "firing"
    assert alert["labels"] == {"alertname": "Down", "job": "b", "severity": "warning", "team": "infra"}
    assert alert["annotations"] == {"summary": "b is down"}


def test_a_recording_rule_has_no_state(groups):
    rule = groups()[0]["rules"][0]
    del rule["evaluations"], rule["lastEvaluation"]
    assert rule == {
        "name": "job:up:sum",
        "query": "sum(up)",
        "labels": {"l": "1", "team": "infra"},
        "health": "ok",
        "evaluationTime": 0.001,
        "type": "recording",
    }


def test_a_rule_that_fails_says_why_and_one_that_never_ran_is_unknown(groups):
    first, second = groups()
    assert (first["rules"][2]["health"], first["rules"][2]["lastError"]) == ("err", "many-to-many matching not allowed")
    assert "lastError" not in first["rules"][0]
    never = second["rules"][0]
    assert (never["health"], never["lastEvaluation"], never["evaluations"]) == ("unknown", "0001-01-01T00:00:00Z", [])


def test_the_last_evaluations_of_a_rule_tell_how_it_went(groups):
    good, bad = (groups()[0]["rules"][n]["evaluations"] for n in (1, 2))
    assert len(good) >= 4
    assert set(good[0]) == {"time", "duration", "series"}
    assert {e["series"] for e in good} == {1}
    assert [e["time"] for e in good] == sorted(e["time"] for e in good)
    assert bad[-1]["error"] == "many-to-many matching not allowed"


@pytest.mark.parametrize(
    ("params", "found"),
    [
        ({"type": "alert"}, [("first", ["Down", "Broken"])]),
        ({"type": "record"}, [("first", ["job:up:sum"]), ("second", ["later"])]),
        ({"rule_name[]": ["Down", "later"]}, [("first", ["Down"]), ("second", ["later"])]),
        ({"rule_group[]": "second"}, ALL[1:]),
        ({"file[]": "rules/x.yaml"}, ALL),
        ({"file[]": "y"}, []),
        ({"match[]": '{severity="warning"}'}, [("first", ["Down"])]),
        ({"match[]": ['{severity="warning"}', '{l=~"."}']}, [("first", ["job:up:sum", "Down"])]),
        ({"match[]": '{team="infra"}', "type": "alert", "rule_name[]": "Broken"}, [("first", ["Broken"])]),
        ({"rule_name[]": "nothing"}, []),
    ],
)
def test_rules_are_filtered_as_prometheus_filters_them(groups, params, found):
    assert named(groups(**params)) == found


def test_alerts_can_be_left_out(groups):
    assert groups(exclude_alerts="true")[0]["rules"][1]["alerts"] is None


def test_groups_come_in_pages(serve, manager):
    client = serve(rules=manager.rules)
    first = client.get("/api/v1/rules", params={"group_limit": 1}).json()["data"]
    assert named(first["groups"]) == ALL[:1]
    params = {"group_limit": 1, "group_next_token": first["groupNextToken"]}
    second = client.get("/api/v1/rules", params=params).json()["data"]
    assert named(second["groups"]) == ALL[1:]
    assert "groupNextToken" not in second


@pytest.mark.parametrize(
    "params",
    [
        {"type": "x"},
        {"match[]": "{"},
        {"match[]": "sum(x)"},
        {"exclude_alerts": "x"},
        {"group_limit": "x"},
        {"group_limit": "-1"},
        {"group_next_token": "x"},
        {"group_limit": "1", "group_next_token": "x"},
    ],
)
def test_what_cannot_be_meant_is_refused(serve, manager, params):
    answer = serve(rules=manager.rules).get("/api/v1/rules", params=params)
    assert (answer.status_code, answer.json()["errorType"]) == (400, "bad_data")
