"""Queries that would run for minutes are cut off by their limits; meanwhile every rule keeps its tick."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import httpx
import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench._live import sidecar

EVERY_S = 0.2
HEAVY = {
    "more steps than memory allows": "count_over_time((count_over_time(({__name__=~'.+'})[1h:1ms]))[1h:1ms])",
    "more steps than time allows": "count_over_time((sum({__name__=~'.+'}))[1h:200ms])",
    "subquery in subquery": "max_over_time((sum(count_over_time(({__name__=~'spikewatch_.+'})[10m:1s])))[1h:1s])",
    "sorting again and again": "quantile_over_time(0.5, (sum(topk(1, sort({__name__=~'.+'}))))[1h:200ms])",
    "three hundred brackets": "sum_over_time((" + "(" * 280 + "sum({__name__=~'.+'})" + ")" * 280 + ")[1h:200ms])",
    "labels made up": "count_over_time((sum(label_replace({__name__=~'.+'}, 'x', '$1', 'le', '(.*)')))[1h:200ms])",
}


def rules():
    alerts = [
        {"alert": f"Quiet{n}", "expr": f"max_over_time(spikewatch_collector_up[{n + 1}m]) > {n + 2}"} for n in range(20)
    ]
    return {"groups": [{"name": "watched", "interval": "200ms", "rules": alerts}]}


def asked(url, expr, answers, name):
    """The answer to one heavy query, and how long it took."""
    started = time.monotonic()
    answer = httpx.post(f"{url}/api/v1/query", data={"query": expr}, timeout=60)
    body = answer.json()
    answers.append((name, answer.status_code, body.get("errorType", ""), time.monotonic() - started))


def evaluations(url):
    """When the watched rules were evaluated last, and how many slots their group has missed."""
    groups = httpx.get(f"{url}/api/v1/rules", timeout=30).json()["data"]["groups"]
    return [[e["time"] for e in rule["evaluations"]] for g in groups for rule in g["rules"] if g["name"] == "watched"]


def missed(url):
    page = httpx.get(f"{url}/metrics", timeout=30).text
    lines = [line for line in page.splitlines() if line.startswith("spikewatch_rule_group_iterations_missed_total")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


@pytest.mark.proof
@pytest.mark.timeout(300)
def test_heavy_queries_end_and_rules_keep_their_tick(tmp_path, record_proof):
    file = tmp_path / "watched.rules.yaml"
    file.write_text(yaml.safe_dump(rules()))
    with sidecar({"rules": [str(file)], "evaluation_interval": "200ms", "alertmanagers": []}) as live:
        time.sleep(5)
        before, started = missed(live.url), time.monotonic()
        answers, threads = [], []
        for name, expr in HEAVY.items():
            for _ in range(2):
                threads.append(threading.Thread(target=asked, args=(live.url, expr, answers, name)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        lasted = time.monotonic() - started
        skipped = missed(live.url) - before
        assert len(answers) == len(threads)
        assert all(code in (422, 503) for _, code, _, _ in answers), answers
        assert max(took for *_, took in answers) < 30
        assert all(times for times in evaluations(live.url)), "the rules are evaluated"
    slots = lasted / EVERY_S
    assert skipped <= slots * 0.01, f"{skipped} of {slots:.0f} slots missed"
    report = {
        "queries": {name: sorted({f"{code} {kind}" for n, code, kind, _ in answers if n == name}) for name in HEAVY},
        "at_a_time": len(threads),
        "slowest_answer_s": round(max(took for *_, took in answers), 2),
        "lasted_s": round(lasted, 1),
        "rules": 20,
        "slots_of_200_ms": round(slots),
        "slots_missed": skipped,
    }
    record_proof("heavy_queries", report)
