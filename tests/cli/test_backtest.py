"""`spikewatch backtest`: alerts of the past, from OpenMetrics files and from a real Prometheus."""

import json
import random
import re
import time

import pytest
import yaml

RULES = """
groups:
- name: g
  rules:
  - record: work:rate
    expr: rate(work_total[2m])
  - alert: Starved
    expr: wait > 0.5
    for: 1m
    labels: {severity: warning}
    annotations: {summary: "{{ $value }} on {{ $labels.rank }}"}
  - alert: Stalled
    expr: work:rate == 0
    keep_firing_for: 30s
    labels: {severity: critical}
  - alert: Never
    expr: wait > 7
"""
T0 = 1_700_000_000 - 1_700_000_000 % 60  # a whole minute


@pytest.fixture
def rule_file(tmp_path):
    path = tmp_path / "rules.yaml"
    path.write_text(RULES)
    return path


def openmetrics(path, series, every=15):
    """Writes {series as text: values, None where there is none}, one value each `every` seconds from T0 on."""
    lines = [
        f"{name} {value} {T0 + every * n}\n"
        for name, values in series.items()
        for n, value in enumerate(values)
        if value is not None
    ]
    path.write_text("".join(lines) + "# EOF\n")
    return path


def at(seconds):
    """The time of the file's start and so much, as it is printed."""
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(T0 + seconds))


@pytest.fixture
def data(tmp_path):
    """Ten minutes at 15 s. Rank 0 waits in [60, 240) s; work stands still from 300 s on, until 420 s."""
    wait0 = [0.9 if 60 <= 15 * n < 240 else 0.1 for n in range(41)]
    work = [15 * n if n <= 20 else 300 if n <= 28 else 300 + 15 * (n - 28) for n in range(41)]
    return openmetrics(
        tmp_path / "data.om", {'wait{rank="0"}': wait0, 'wait{rank="1"}': [0.2] * 41, 'work_total{rank="0"}': work}
    )


def test_an_alert_fires_and_resolves_at_the_evaluations_at_which_it_would_have(spikewatch, rule_file, data):
    result = spikewatch("backtest", rule_file, "--data", data, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    starved, stalled = found["firings"]
    assert starved == {
        "labels": {"alertname": "Starved", "rank": "0", "severity": "warning"},
        "annotations": {"summary": "0.9 on 0"},
        "value": 0.9,
        "active": at(60),
        "fired": at(120),
        "resolved": at(240),
        "seconds": 120,
    }
    # a window leaves out its own start: at 405 s it begins after the sample at 285 s, and nothing was done since
    assert (stalled["fired"], stalled["resolved"]) == (at(405), at(465))
    assert (found["start"], found["end"], found["broken_rules"]) == (at(0), at(600), [])


def test_totals_say_how_often_how_long_and_at_what_cost(spikewatch, rule_file, data):
    result = spikewatch("backtest", rule_file, "--data", data, "--json", "--usd-per-hour", "30")
    totals = {total.pop("alert"): total for total in json.loads(result.stdout)["alerts"]}
    assert totals["Starved"] == {
        "group": "g",
        "severity": "warning",
        "fired": 1,
        "cleared_before_firing": 0,
        "firing_seconds": 120,
        "longest_seconds": 120,
        "first": at(120),
        "last": at(120),
        "usd": 1.0,
    }
    assert (totals["Never"]["fired"], totals["Never"]["first"], totals["Never"]["usd"]) == (0, None, 0)


def test_two_instances_at_once_cost_no_more_than_one(spikewatch, rule_file, tmp_path):
    waits = {f'wait{{rank="{rank}"}}': [0.9] * 21 for rank in range(2)}
    data = openmetrics(tmp_path / "two.om", waits)
    found = json.loads(spikewatch("backtest", rule_file, "--data", data, "--json", "--usd-per-hour", "60").stdout)
    (total,) = [t for t in found["alerts"] if t["alert"] == "Starved"]
    assert (total["fired"], total["firing_seconds"], total["usd"]) == (2, 240, 4.0)
    assert [f["resolved"] for f in found["firings"]] == [None, None]


def test_a_later_start_counts_from_there_but_remembers_what_was_before(spikewatch, rule_file, data):
    found = json.loads(
        spikewatch(
            "backtest",
            rule_file,
            "--data",
            data,
            "--json",
            "--start",
            T0 + 180,
            "--end",
            T0 + 500,
            "--usd-per-hour",
            60,
        ).stdout
    )
    starved, stalled = found["firings"]
    assert (starved["fired"], starved["seconds"]) == (at(120), 60)
    assert stalled["fired"] == at(405)
    assert [t["firing_seconds"] for t in found["alerts"]] == [60, 60, 0]


def test_waiting_that_ended_before_it_fired_is_told(spikewatch, rule_file, tmp_path):
    data = openmetrics(tmp_path / "short.om", {'wait{rank="0"}': [0.1, 0.9, 0.9, 0.1, 0.9, 0.1]})
    (starved, *_) = json.loads(spikewatch("backtest", rule_file, "--data", data, "--json").stdout)["alerts"]
    assert (starved["fired"], starved["cleared_before_firing"]) == (0, 2)


def test_the_table_names_every_alert_and_when_it_fired(spikewatch, rule_file, data):
    lines = spikewatch("backtest", rule_file, "--data", data, "--usd-per-hour", "30").stdout.splitlines()
    assert [line.split() for line in lines[1:5]] == [
        ["alert", "severity", "fired", "only", "pending", "firing", "for", "longest", "USD"],
        ["Starved", "warning", "1", "2m", "2m", "1.00"],
        ["Stalled", "critical", "1", "1m", "1m", "0.50"],
        ["Never", "0.00"],
    ]
    assert any("→" in line and "(2m) Starved {rank=0, severity=warning}" in line for line in lines)


def test_a_rule_that_fails_is_named_with_what_it_said(spikewatch, tmp_path, data):
    rules = tmp_path / "bad.yaml"
    rules.write_text("groups: [{name: g, rules: [{record: r, expr: 'wait * on () work_total'}]}]")
    found = json.loads(spikewatch("backtest", rules, "--data", data, "--json").stdout)
    (broken,) = found["broken_rules"]
    assert broken["rule"] == "r"
    assert broken["failures"] == 41
    assert "many" in broken["error"]


def test_metrics_that_the_rules_record_are_not_taken_from_the_past(spikewatch, rule_file, tmp_path):
    data = openmetrics(tmp_path / "own.om", {"work:rate": [0] * 21, 'wait{rank="0"}': [0.1] * 21})
    assert json.loads(spikewatch("backtest", rule_file, "--data", data, "--json").stdout)["firings"] == []


def test_a_regular_expression_for_the_name_reads_every_metric(spikewatch, tmp_path, data):
    rules = tmp_path / "any.yaml"
    rules.write_text("""groups: [{name: g, rules: [{alert: Some, expr: 'count({__name__=~"wai.+"}) == 2'}]}]""")
    (firing,) = json.loads(spikewatch("backtest", rules, "--data", data, "--json").stdout)["firings"]
    assert firing["fired"] == at(0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--data FILE or --prometheus URL"),
        (["--data", "x", "--prometheus", "http://h"], "--data FILE or --prometheus URL"),
        (["--data", "DATA", "--start", "2000-01-02", "--end", "2000-01-01"], "ends before it starts"),
        (["--data", "DATA", "--step", "0s"], "longer than nothing"),
        (["--data", "DATA", "--start", "tomorrow"], "not a time: 'tomorrow'"),
        (["--data", "DATA", "--usd-per-hour", "nan"], "not a price: 'nan'"),
        (["--data", "DATA", "--usd-per-hour", "-1"], "not a price: '-1'"),
        (["--data", "DATA", "--usd-per-hour", "much"], "not a number: 'much'"),
    ],
)
def test_wrong_usage_says_what_is_right(spikewatch, rule_file, data, arguments, said):
    result = spikewatch("backtest", rule_file, *[data if a == "DATA" else a for a in arguments])
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())


def test_a_past_that_would_take_days_to_replay_is_refused_with_what_to_look_at(spikewatch, rule_file, tmp_path):
    # the second sample's time is in milliseconds, where seconds are meant
    (tmp_path / "span.om").write_text("wait 1 1700000000\nwait 1 1700000000000\n# EOF\n")
    result = spikewatch("backtest", rule_file, "--data", tmp_path / "span.om")
    assert result.exit_code == 2
    assert "look at the times of the samples" in " ".join(result.stderr.split())


def test_what_cannot_be_read_is_an_error_with_its_place(spikewatch, rule_file, data, tmp_path):
    for arguments, said in (
        ([rule_file, "--data", tmp_path / "none.om"], "none.om: error: cannot be read"),
        ([tmp_path / "none.yaml", "--data", data], "none.yaml: error: cannot be read"),
        ([rule_file, "--prometheus", "http://127.0.0.1:9"], "no answer from http://127.0.0.1:9"),
        ([rule_file, "--prometheus", "ftp://h"], "not an address"),
    ):
        result = spikewatch("backtest", *arguments)
        assert result.exit_code == 1
        assert said in result.stderr


# --- held against the real ones --------------------------------------------------------------------------------------

CASE = """
- name: g{n}
  rules:
  - record: rec{n}
    expr: max_over_time(x{n}[2m]) {threshold}
  - alert: A{n}
    expr: x{n} {threshold} or rec{n} > 1
    for: {hold}
    keep_firing_for: {keep}
    labels: {{value: "{label}"}}
    annotations: {{value: "{{{{ $value }}}} at {{{{ $labels.rank }}}}"}}
"""
MINUTES = 16


def random_case(seed):
    rng = random.Random(seed)
    rules, series = "groups:", {}
    for n in range(8):
        rules += CASE.format(
            n=n,
            threshold=rng.choice(["> 0", "> 1"]),
            hold=rng.choice(["0s", "1m", "3m"]),
            keep=rng.choice(["0s", "1m", "2m"]),
            label=rng.choice(["x", "{{ $labels.rank }}", "{{ $value }}"]),
        )
        for rank in range(3):
            series[f'x{n}{{rank="{rank}"}}'] = [rng.choice([0, 0, 1, 2, None]) for _ in range(MINUTES)]
            series[f'x{n}{{rank="{rank}"}}'][0] = 0  # so that the file begins at its first minute
    return rules, series


@pytest.mark.peers
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_promtool_finds_the_same_alerts_at_every_minute(spikewatch, promtool, tmp_path, seed):
    rules, series = random_case(seed)
    (tmp_path / "rules.yaml").write_text(rules)
    data = openmetrics(tmp_path / "data.om", series, every=60)
    out = spikewatch("backtest", tmp_path / "rules.yaml", "--data", data, "--step", "1m", "--json").stdout
    firings = json.loads(out)["firings"]
    assert len(firings) > 20
    checks = []
    for minute in range(MINUTES):
        for n in range(8):
            firing = [
                {"exp_labels": {k: v for k, v in f["labels"].items() if k != "alertname"}}
                for f in firings
                if f["labels"]["alertname"] == f"A{n}"
                and f["fired"] <= at(60 * minute)
                and (f["resolved"] is None or at(60 * minute) < f["resolved"])
            ]
            # annotations are those of each evaluation; a firing keeps those of its first
            checks.append({"eval_time": f"{minute}m", "alertname": f"A{n}", "exp_alerts": firing})
    stripped = re.sub(r"\n    annotations: .*", "", rules)
    (tmp_path / "rules.yaml").write_text(stripped)
    case = {
        "interval": "1m",
        "input_series": [
            {"series": name, "values": " ".join("_" if v is None else str(v) for v in values)}
            for name, values in series.items()
        ],
        "alert_rule_test": checks,
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": [case]}))
    promtool("test", "rules", tmp_path / "test.yaml")


@pytest.mark.peers
@pytest.mark.timeout(90)
def test_file_dump_and_server_give_the_same_replay(spikewatch, promtool, prometheus_over, tmp_path):
    rules, series = random_case(4)
    rule_file = tmp_path / "rules.yaml"
    rule_file.write_text(rules)
    data = openmetrics(tmp_path / "data.om", series, every=60)
    span = ["--step", "15s", "--start", T0, "--end", T0 + 60 * MINUTES, "--json"]

    def replay(*source):
        found = json.loads(spikewatch("backtest", rule_file, *source, *span).stdout)
        assert not found["broken_rules"]
        del found["evaluations"]  # a file tells where it begins; a server is also asked about the time before
        return found

    with prometheus_over(tmp_path, data) as url:
        from_server = replay("--prometheus", url)
    (tmp_path / "tsdb" / "wal").mkdir(exist_ok=True)
    dump = tmp_path / "dump.om"
    dump.write_text(promtool("tsdb", "dump-openmetrics", tmp_path / "tsdb"))
    from_file = replay("--data", data)
    assert len(from_file["firings"]) > 20
    assert replay("--data", dump) == from_file
    assert from_server == from_file
