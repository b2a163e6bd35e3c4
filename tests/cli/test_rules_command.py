"""`spikewatch rules`: what rule files say about themselves, and how an alert stands in a running sidecar."""

import json
import re

import pytest

from sidecar.promql.comparisons import Comparison, comparisons
from sidecar.store import Store

T0 = 1_700_000_000_000
SIGNALS = """
vcpu_spend_without_load egress_cost_surge provisioned_iops_idle high_cost_pod gpu_memory_saturated gpu_overprovisioned
idle_worker cold_start_slow idle_seven_days budget_overrun small_parquet_files spark_task_oversized
dataloader_throughput_low offload_bandwidth_low blind_gpu_bandwidth blind_gateway_cache blind_trace_sampling
gpu_comm_coupling allreduce_wait checkpoint_residency loss_scale_collapse
""".split()

RULES = """
# Belongs to the file.
groups:
- name: room-pod
  rules:
  - record: room:busy:ratio
    expr: rate(busy_seconds_total[1m])
  - record: room:calm:ratio
    # 7: belongs to the recording rule. Ours.
    expr: 1 - room:busy:ratio
  # 5: above the alert. Requirement.
  - alert: RoomHot
    # 0.5: share of time that the room may be busy. Ours, where the
    #      requirement says nothing.
    # Nothing about a number; and the next line does not go on with it.
    #   3: indented, yet a number of its own
    # 2m:  how long.
    expr: room:calm:ratio < 0.5 and count_of_people > 5
    for: 2m
    labels: {signal: room_hot, layer: rooms, severity: warning}
    annotations: {summary: The room is hot, runbook_url: https://wiki/RoomHot}
- name: room-cluster
  rules:
  - {alert: RoomsHot, expr: sum without (room) (temperature) > limit, labels: {signal: room_hot, layer: rooms}}
- name: others
  rules:
  - {alert: Lonely, expr: vector(1) > 2}
  - {alert: Alone, expr: up == 0}
"""
RESPONSES = """
responses:
- name: open-a-window
  match: ['signal="room_hot"', 'room=~".+"']
  remediation: annotate_only
  with: {note: Open a window}
- name: fewer-people
  match: ['alertname="RoomsHot"']
  remediation: dataloader_prefetch
  mode: suggest
  verify: {expr: sum(temperature), goal: decrease}
- name: not-for-it
  match: ['signal="room_cold"']
  remediation: annotate_only
  with: {note: Close the window}
"""


@pytest.fixture
def files(tmp_path):
    """Arguments that name a rule file and a file of responses."""
    (tmp_path / "room.yaml").write_text(RULES)
    (tmp_path / "responses.yaml").write_text(RESPONSES)
    return [tmp_path / "room.yaml", "--responses", tmp_path / "responses.yaml"]


def listed(spikewatch, *args):
    result = spikewatch("rules", "list", "--json", *args)
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)


def test_a_signal_tells_where_it_is_evaluated_what_it_reads_and_what_answers_it(spikewatch, files):
    (hot, _, _) = listed(spikewatch, *files)
    assert {key: hot[key] for key in ("signal", "layer", "alerts")} == {
        "signal": "room_hot",
        "layer": "rooms",
        "alerts": ["RoomHot", "RoomsHot"],
    }
    assert hot["at"] == "cluster", "the widest of the places of its alerts"
    assert hot["metrics"] == ["busy_seconds_total", "count_of_people", "limit", "temperature"]
    assert hot["response"] == {
        "name": "open-a-window",
        "remediation": "annotate_only",
        "mode": "observe",
        "then": ["fewer-people"],
    }


def test_a_note_is_told_as_written_with_its_templates(spikewatch, files, tmp_path):
    (tmp_path / "responses.yaml").write_text(RESPONSES.replace("Open a window", '"Open {{ $labels.room }}"'))
    result = spikewatch("rules", "show", "RoomHot", "--json", *files)
    assert json.loads(result.stdout)[0]["responses"][0]["note"] == "Open {{ $labels.room }}"
    assert "Open {{ $labels.room }}" in spikewatch("rules", "show", "RoomHot", *files).stdout


def test_thresholds_are_those_that_the_comments_explain(spikewatch, files):
    assert listed(spikewatch, *files)[0]["thresholds"] == [
        {"alert": "RoomHot", "value": "5", "meaning": "above the alert. Requirement.", "origin": "requirement"},
        {
            "alert": "RoomHot",
            "value": "0.5",
            "meaning": "share of time that the room may be busy. Ours, where the requirement says nothing.",
            "origin": "ours",
        },
        {"alert": "RoomHot", "value": "3", "meaning": "indented, yet a number of its own", "origin": None},
        {"alert": "RoomHot", "value": "2m", "meaning": "how long.", "origin": None},
    ]


def test_an_alert_without_a_signal_stands_for_itself(spikewatch, files):
    assert [(row["signal"], row["alerts"], row["at"], row["response"]) for row in listed(spikewatch, *files)[1:]] == [
        (None, ["Lonely"], None, None),
        (None, ["Alone"], None, None),
    ]


def test_the_table_has_a_row_for_each_signal(spikewatch, files):
    rows = spikewatch("rules", "list", *files).stdout.splitlines()
    assert rows[0].split() == ["signal", "layer", "at", "alerts", "response"]
    assert re.split(r"\s{2,}", rows[1].strip()) == [
        "room_hot",
        "rooms",
        "cluster",
        "RoomHot, RoomsHot",
        "annotate_only (observe)",
    ]
    assert len(rows) == 4


def test_the_shipped_rules_are_the_signals(spikewatch):
    rows = listed(spikewatch)
    assert sorted(row["signal"] for row in rows) == sorted(SIGNALS)
    for row in rows:
        assert set(row) == {"signal", "layer", "at", "alerts", "thresholds", "metrics", "response"}
        assert row["layer"] in ("infrastructure", "scheduling", "data_pipeline", "observability", "training")
        assert row["at"] in ("pod", "job", "cluster"), row["signal"]
        assert row["alerts"]
        assert row["thresholds"], row["signal"]
        assert [t for t in row["thresholds"] if not t["origin"] and t["value"] != "0"] == []
        assert row["metrics"]
        assert not [metric for metric in row["metrics"] if ":" in metric], "recording rules are followed to the end"
        assert row["response"]["mode"] in ("observe", "suggest")


def test_what_ships_beyond_the_signals_is_listed_on_request(spikewatch):
    extra = {row["signal"] for row in listed(spikewatch, "--extra")}
    assert "gpu_below_baseline" in extra - set(SIGNALS)


def test_show_takes_a_signal_or_an_alert(spikewatch, files):
    names = [d["alert"] for d in json.loads(spikewatch("rules", "show", "room_hot", *files, "--json").stdout)]
    assert names == ["RoomHot", "RoomsHot"]
    (one,) = json.loads(spikewatch("rules", "show", "RoomHot", *files, "--json").stdout)
    assert one["expr"] == "room:calm:ratio < 0.5 and count_of_people > 5"
    assert one["for"] == "2m"
    assert list(one["recorded"]) == ["room:calm:ratio", "room:busy:ratio"], "what it reads, then what is below"
    assert one["file"] == f"{files[0]}:12"
    assert one["runbook"] == "https://wiki/RoomHot"
    text = spikewatch("rules", "show", "room_hot", *files).stdout
    for said in (
        "The room is hot",
        "in every sidecar",
        "in the cluster's own process",
        "Open a window",
        "1 - room:busy",
    ):
        assert said in text


def test_a_name_that_is_none_is_refused_with_the_nearest(spikewatch, files):
    result = spikewatch("rules", "show", "RoomHott", *files)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "spikewatch: no alert and no signal is called 'RoomHott'; did you mean RoomHot?\n"
    assert "`spikewatch rules list` tells" in spikewatch("rules", "explain", "Xyzzy", *files).stderr


@pytest.mark.parametrize("command", [("list",), ("show", "A"), ("explain", "A")])
def test_a_file_that_would_be_refused_is_told_with_its_places(spikewatch, tmp_path, command):
    bad, worse = tmp_path / "bad.yaml", tmp_path / "worse.yaml"
    bad.write_text("groups: [{name: a, rules: [{alert: A, expr: raet(x[1m])}]}]")
    worse.write_text("groups: [{nam: a}]")
    result = spikewatch("rules", *command, bad, worse)
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"{bad}:1:" in result.stderr
    assert f"{worse}:1:" in result.stderr


def test_responses_that_would_be_refused_are_told(spikewatch, tmp_path):
    (tmp_path / "r.yaml").write_text("responses: [{name: x, match: [a=b], remediation: nothing}]")
    result = spikewatch("rules", "list", "--responses", tmp_path / "r.yaml")
    assert result.exit_code == 1
    assert "unknown remediation 'nothing'" in result.stderr


def test_explain_asks_a_sidecar_for_both_sides_of_every_comparison(spikewatch, files, sidecar_over):
    store = Store()
    for metric, labels, value in (
        ("room:calm:ratio", {"room": "1"}, 0.25),
        ("room:calm:ratio", {"room": "2"}, 0.75),
        ("count_of_people", {}, 7.0),
        ("ALERTS", {"alertname": "RoomHot", "alertstate": "firing", "room": "1", "signal": "room_hot"}, 1.0),
        ("temperature", {"room": "1"}, 30.0),
    ):
        handle = store.series(metric, labels, metric + str(labels))
        store.push(handle.block, T0, {handle.column: value})
    url = sidecar_over(store, T0)
    (told,) = json.loads(spikewatch("rules", "explain", "RoomHot", *files, "--url", url, "--json").stdout)
    assert told["now"]["state"] == [{"alert": '{room="1"}', "state": "firing"}]
    values = {v["expr"]: [x["value"] for x in v["values"]] for v in told["now"]["values"]}
    assert values == {"room:calm:ratio": ["0.25", "0.75"], "count_of_people": ["7"]}
    text = spikewatch("rules", "explain", "room_hot", *files, "--url", url).stdout
    assert 'alert: firing {room="1"}' in text
    assert re.search(r'room:calm:ratio +0\.25 \(alerts < 0\.5\) +room:calm:ratio\{room="1"\}', text)
    assert re.search(r"^limit +no data", text, re.M), "the other side of a comparison that has no number"
    assert "alert: inactive" in text


def test_explain_tells_the_rest_where_nobody_answers(spikewatch):
    result = spikewatch("rules", "explain", "TrainerStarvedOfData", "--url", "http://127.0.0.1:1")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "no values: no answer from http://127.0.0.1:1" in result.stdout
    assert "Time the training loop waited for its loader" in result.stdout
    told = json.loads(
        spikewatch("rules", "explain", "TrainerStarvedOfData", "--url", "http://127.0.0.1:1", "--json").stdout
    )
    assert told[0]["now"] is None
    assert told[0]["catalogue"]["spikewatch_trainer_data_wait_seconds_total"]["kind"] == "counter"


@pytest.mark.parametrize(
    ("expr", "silences"),
    [
        ("a > 1 unless b == 1", {"b"}),
        ("a > 1 unless (b > 2 and c < 3)", {"b", "c"}),
        ("a > 1 and b <= 2", set()),
        ("a == 1 or (b > 3 unless a == 1)", set()),
        ("(a unless b > 1) > 3", {"b"}),
    ],
)
def test_a_comparison_behind_unless_is_one_that_silences(expr, silences):
    assert {c.left for c in comparisons(expr) if c.silences} == silences


def test_comparisons_are_found_wherever_they_stand():
    expr = 'max without (rank) (\n  a:b{x="y  z"} > bool 0.25\n    and max_over_time((c < d)[1m:5s]) == 1) > -3'
    assert comparisons(expr) == (
        Comparison('a:b{x="y  z"}', ">", "0.25", 0.25),
        Comparison("c", "<", "d", None),
        Comparison("max_over_time((c < d)[1m:5s])", "==", "1", 1.0),
        Comparison(
            'max without (rank) (a:b{x="y  z"} > bool 0.25 and max_over_time((c < d)[1m:5s]) == 1)', ">", "-3", -3.0
        ),
    )
