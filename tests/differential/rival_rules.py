"""Forty rules over the exporter's metrics, and two more in each group that tell which samples its evaluation saw."""

from __future__ import annotations

import yaml

SEEN = ("seen:before", "seen:after")
"""First and last rule of each group: the time of the newest scrape visible then. Equal, unless one came in between."""


def _record(name, expr, **labels):
    return {"record": name, "expr": expr, **({"labels": labels} if labels else {})}


def _alert(name, expr, **more):
    return {"alert": name, "expr": expr, **more}


WINDOWS = [
    _record("rank:requests:rate", "sum without (code) (rate(requests_total[1s]))"),
    _record("code:requests:increase", "sum by (code) (increase(requests_total[2s]))"),
    _record("requests:irate", "irate(requests_total[1s])"),
    _record("load:avg", "avg_over_time(load[3s])", window="3s"),
    _record("load:q90", "quantile_over_time(0.9, load[2s])"),
    _record("requests:peak", 'max_over_time(rate(requests_total{code="200"}[1s])[3s:400ms])'),
    _record("load:change", "load - load offset 2s"),
    _record("load:slope", "deriv(load[2s])"),
    _record("load:soon", "predict_linear(load[2s], 10)"),
    _record("latency:p90", "histogram_quantile(0.9, sum by (le) (rate(latency_seconds_bucket[2s])))"),
]

VECTORS = [
    _record("load:team", "load * on (rank) group_left (team) team_info"),
    _record("either", "load > 60 or temperature < 0"),
    _record("calm:temperature", "temperature unless on (rank) flaky"),
    _record("load:highest", "topk(2, load)"),
    _record("load:spread", "stddev(load) + stdvar by () (load)"),
    _record("load:kinds", 'count_values("step", round(load, 25))'),
    _record("load:node", 'label_replace(load, "node", "n$1", "rank", "(.*)")'),
    _record("flaky:gone", "absent_over_time(flaky[600ms])"),
    _record("load:age", "time() - timestamp(load) + scalar(count(load))"),
    # an error whenever more than one flaky series is there: what was recorded before then stays until it is stale
    _record("sometimes:wrong", "load * on (job) group_left () flaky"),
]

ALERTS = [
    _alert("Now", 'burst{kind="short"} == 1', annotations={"summary": "{{ $labels.kind }} is {{ $value }}"}),
    _alert("AfterASecond", 'burst{kind="long"} == 1', **{"for": "1s"}, labels={"severity": "warning"}),
    _alert("KeepsFiring", 'burst{kind="short"} == 1', **{"for": "400ms", "keep_firing_for": "1s"}),
    _alert(
        "HighLoad",
        "load > 70",
        **{"for": "600ms"},
        labels={"severity": "{{ if gt $value 85.0 }}critical{{ end }}"},
        annotations={"description": 'rank {{ $labels.rank }} at {{ printf "%.3f" $value }} on {{ $labels.instance }}'},
    ),
    _alert(
        "FlakyGone",
        "absent(flaky) and on () load",
        keep_firing_for="600ms",
        annotations={"summary": "none of {{ $labels }}"},
    ),
    _alert("ValueInLabel", "round(load, 30) > 30", labels={"step": "{{ $value }}"}),
    _alert(
        "SlowP90",
        "histogram_quantile(0.9, sum by (le) (rate(latency_seconds_bucket[2s]))) > 0.3",
        **{"for": "200ms"},
        annotations={"summary": "{{ $value | humanizeDuration }}, {{ humanize 12345.678 }}"},
    ),
    _alert("NoNumber", "temperature != temperature", annotations={"summary": "{{ $value }} of {{ $labels.__name__ }}"}),
    _alert("TwoFire", 'count(ALERTS{alertstate="firing", alertname=~"Now|AfterASecond"}) >= 2'),
    _alert(
        "Asks",
        'burst{kind="long"} == 1',
        annotations={"load": '{{ with query "sum(load)" }}{{ . | first | value | humanize }}{{ end }}'},
    ),
]

LATE = [
    _record("late:load", "sum by (rank) (load)"),
    _record("late:twice", "late:load * 2"),
    _record("late:sub", "avg_over_time(late:load[1s])"),
    _alert("LateHigh", "late:load > 55", **{"for": "800ms", "keep_firing_for": "400ms"}),
    _alert("LateRate", "sum(rate(requests_total[1s])) > 100", annotations={"summary": "{{ $externalLabels.cluster }}"}),
    _alert("LateJump", "abs(delta(load[1s])) > 25", labels={"owner": "rule", "empty": ""}),
    _alert("LateReset", "resets(requests_total[2s]) > 0", annotations={"u": "{{ $externalURL }}"}),
    _alert("LateCold", "temperature < -5 or temperature > 15", **{"for": "200ms"}),
    _alert("LateStill", "changes(burst[2s]) == 0"),
    _alert("LateTogether", "load > 40 and on (rank) temperature > 0", **{"for": "400ms"}),
]


def document(interval="200ms"):
    """The rule file as data."""
    groups = [
        {"name": "windows", "rules": WINDOWS},
        {"name": "vectors", "rules": VECTORS, "labels": {"source": "group"}},
        {"name": "alerts", "rules": ALERTS, "limit": 3},
        {"name": "late", "rules": LATE, "query_offset": "600ms", "labels": {"owner": "group", "team": "infra"}},
    ]
    for group in groups:
        marks = [_record(name, "max(timestamp(up)) or vector(0)", group=group["name"]) for name in SEEN]
        group["interval"] = interval
        group["rules"] = [marks[0], *group["rules"], marks[1]]
    return {"groups": groups}


def text():
    """The rule file."""
    return yaml.safe_dump(document(), sort_keys=False)
