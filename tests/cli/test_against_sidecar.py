"""The tools ask a sidecar's own API, over a real connection."""

import json

import pytest

from sidecar.model import STALE
from sidecar.store import Store

T0 = 1_700_000_000_000


@pytest.fixture
def url(sidecar_over):
    """Two ranks for five minutes; rank 1 waits too long in the third and fourth, and ends after 270 s."""
    store = Store()
    ranks = [store.series("wait", {"rank": str(rank)}) for rank in range(2)]
    for second in range(300):
        values = {ranks[0].column: 0.1, ranks[1].column: 0.9 if 120 <= second < 240 else 0.1}
        if second > 270:
            values = {ranks[0].column: 0.1} | ({ranks[1].column: STALE} if second == 271 else {})
        store.push(ranks[0].block, T0 + second * 1000, values)
    return sidecar_over(store, T0 + 299_000)


def test_a_query_shows_what_the_sidecar_holds_now(spikewatch, url):
    lines = spikewatch("query", "wait", "--url", url).stdout.splitlines()
    assert [line.split() for line in lines] == [["series", "value"], ['wait{rank="0"}', "0.1"]]


def test_a_range_shows_where_a_series_was(spikewatch, url):
    arguments = ("--start", T0 / 1000, "--end", T0 / 1000 + 299, "--step", "1s", "--json")
    data = json.loads(spikewatch("query", "wait > 0.5", "--url", url, *arguments).stdout)
    (series,) = data["result"]
    assert series["metric"] == {"__name__": "wait", "rank": "1"}
    assert len(series["values"]) == 120


def test_an_expression_it_refuses_is_told(spikewatch, url):
    result = spikewatch("query", "rate(wait)", "--url", url)
    assert result.exit_code == 1
    assert result.stderr.startswith("spikewatch: ")
    assert result.stderr.endswith("rate(wait)\n")


def test_bytes_that_are_no_text_are_refused_before_anybody_is_asked(spikewatch, url):
    for command in (("query", "\udcff", "--url", url), ("query", "1", "--url", url, "--header", "X: é")):
        result = spikewatch(*command)
        assert result.exit_code == 2
        assert "Invalid value" in result.stderr


def test_an_address_without_the_api_is_told(spikewatch, url):
    result = spikewatch("query", "1", "--url", f"{url}/elsewhere")
    assert result.exit_code == 1
    assert result.stderr == f"spikewatch: {url}/elsewhere has no Prometheus API: there is no /elsewhere/api/v1/query\n"


def test_rules_replay_over_what_the_sidecar_remembers(spikewatch, url, tmp_path):
    (tmp_path / "rules.yaml").write_text("""
groups:
- name: g
  rules:
  - {alert: Waits, expr: wait > 0.5, for: 30s}
  - {alert: RankGone, expr: count(wait) < 2}
""")
    arguments = ("--start", T0 / 1000, "--end", T0 / 1000 + 299, "--step", "1s", "--json")
    found = json.loads(spikewatch("backtest", tmp_path / "rules.yaml", "--prometheus", url, *arguments).stdout)
    waits, gone = found["firings"]
    assert (waits["labels"]["rank"], waits["seconds"]) == ("1", 90)
    # the end of the series is seen though the API gives samples without the marker of it
    assert (gone["seconds"], gone["resolved"]) == (28, None)
