"""Samples of the past come in order of time, whole, and in bounded memory."""

import json
import math
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar import durations
from sidecar.errors import ConfigError, QueryError, RemoteError
from sidecar.history.api import QueryApi
from sidecar.history.openmetrics import OpenMetricsHistory
from sidecar.history.remote import RemoteHistory
from sidecar.history.sorting import Sorter
from sidecar.history.source import SILENT_MS, Feed
from sidecar.model import STALE
from sidecar.promql import evaluate
from sidecar.store import Store


def labels(name, **rest):
    return tuple(sorted({"__name__": name, **rest}.items()))


# --- order -----------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(-50, 50), st.integers(0, 5), st.floats(allow_nan=False)), max_size=60),
    st.integers(1, 70),
)
def test_samples_come_out_by_time_however_many_fit_into_memory(samples, run):
    sorter = Sorter(run)
    for sample in samples:
        sorter.add(*sample)
    sorter.finish()
    assert list(sorter) == sorted(samples, key=lambda sample: sample[0])
    assert list(sorter) == list(sorter)  # it can be read again
    times = [t for t, _, _ in samples]
    assert (sorter.first_ms, sorter.last_ms) == ((min(times), max(times)) if times else (None, None))
    sorter.close()


# --- OpenMetrics -----------------------------------------------------------------------------------------------------


def history(tmp_path, text, metrics=None, run=1000):
    path = tmp_path / "data.om"
    path.write_text(text)
    return OpenMetricsHistory(path, metrics, run)


def test_labels_values_and_times_are_read_as_they_stand(tmp_path):
    text = (
        "# HELP x what it is\n# TYPE x gauge\n# UNIT x seconds\n"
        'x{a="q\\"} ",b="1 # {",n="\\n"} -1.5e3 1.001\n'
        "x +Inf 1\n"
        'y_total 1 0.5 # {trace="a"} 1 2\n'
        'y_bucket{le="0.5"} NaN 2.25\n'
        "# EOF\n"
    )
    with history(tmp_path, text) as found:
        rows = list(found.rows(0, 10_000))
        assert found.extent() == (500, 2250)
    assert rows[:3] == [
        (500, labels("y_total"), 1.0),
        (1000, labels("x"), math.inf),
        (1001, labels("x", a='q"} ', b="1 # {", n="\n"), -1500.0),
    ]
    assert rows[3][:2] == (2250, labels("y_bucket", le="0.5"))
    assert math.isnan(rows[3][2])


def test_only_what_was_asked_for_is_kept_and_only_of_that_time(tmp_path):
    text = "".join(f"{name} {t} {t}\n" for name in ("a", "b", "aa") for t in range(5)) + "# EOF\n"
    with history(tmp_path, text, {"a"}, run=2) as found:
        assert list(found.rows(1000, 3000)) == [(t * 1000, labels("a"), float(t)) for t in (1, 2, 3)]


def test_a_metric_may_come_back_later_in_the_file(tmp_path):
    with history(tmp_path, 'a{x="1"} 1 1\nb 1 2\na{x="1"} 2 3\n# EOF\n') as found:
        assert [(t, name) for t, ((_, name), *_), _ in found.rows(0, 9000)] == [(1000, "a"), (2000, "b"), (3000, "a")]


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("a 1 1\n", 0, "not complete"),
        ("", 0, "not complete"),
        ("a 1\n# EOF\n", 1, "without a timestamp"),
        ("a 1 1\na x 2\n# EOF\n", 2, "not a number: x"),
        ("a 1 1\n\n# EOF\n", 2, "not OpenMetrics"),
        ("a 1 nan\n# EOF\n", 1, "not a time"),
        ("a 1 1e300\n# EOF\n", 1, "not a time"),
        ("a 1_0 1\n# EOF\n", 1, "not a number"),
        ('a{x="1" 1 1\n# EOF\n', 1, "without a closing brace"),
        ("a 1 soon\n# EOF\n", 1, "not a time in seconds: soon"),
        ('a{x="1} 1 1\n# EOF\n', 1, ""),
        ("a-b 1 1\n# EOF\n", 1, "invalid metric name"),
        ("# EOF\na 1 1\n", 2, "after # EOF"),
    ],
)
def test_what_is_no_openmetrics_is_refused_with_its_line(tmp_path, text, line, said):
    with pytest.raises(ConfigError) as e:
        history(tmp_path, text)
    (problem,) = e.value.problems
    assert problem.line == line
    assert said in problem.message


def test_a_file_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        OpenMetricsHistory(tmp_path / "binary")
    with pytest.raises(ConfigError, match="cannot be read"):
        OpenMetricsHistory(Path("/nowhere/at/all"))


# --- into the store --------------------------------------------------------------------------------------------------


def test_nothing_is_pushed_before_its_time_or_read_ahead_of_it():
    read = []

    def rows():
        for t in range(10):
            read.append(t)
            yield t * 1000, labels("x"), float(t)

    store = Store()
    feed = Feed(store, rows())
    feed.until(4500)
    assert read == [0, 1, 2, 3, 4, 5]  # one ahead: that is how it knows the time has not come
    assert dict(evaluate(store, "x", 9000)) == {labels("x"): 4.0}
    feed.until(9000)
    assert dict(evaluate(store, "count_over_time(x[1m])", 9000)) == {(): 10.0}
    assert feed.samples == 10


def test_an_end_is_seen_and_the_series_may_come_back():
    rows = [(1000, labels("x"), 1.0), (2000, labels("x"), STALE), (2500, labels("x"), STALE), (4000, labels("x"), 2.0)]
    store = Store()
    feed = Feed(store, iter(rows))
    for t, values in ((1500, [1.0]), (3000, []), (5000, [2.0])):
        feed.until(t)
        assert [value for _, value in evaluate(store, "x", t)] == values


def test_metrics_to_be_computed_anew_are_left_out():
    store = Store()
    Feed(store, iter([(1, labels("x"), 1.0), (1, labels("y"), 1.0)]), without={"y"}).until(1)
    assert store.metrics() == ["x"]


def test_series_that_fall_silent_make_room_for_others():
    """A thousand series one after the other, each for a minute, in a store that takes thirty at once."""
    rows = ((n * 60_000 + s * 15_000, labels("x", pod=str(n)), 1.0) for n in range(1000) for s in range(4))
    store = Store(max_series=30, min_keep_ms=0)
    feed = Feed(store, rows)
    for t in range(0, 1000 * 60_000, 60_000):
        feed.until(t)
    assert feed.refused == 0
    assert store.stats().series <= 30
    assert store.stats().bytes < 1_000_000


def test_samples_without_room_are_counted():
    feed = Feed(Store(max_series=1), iter([(1, labels("x", n=str(n)), 1.0) for n in range(3)]))
    feed.until(1)
    assert (feed.samples, feed.refused) == (1, 2)


# --- from a server ---------------------------------------------------------------------------------------------------


class Server:
    """Answers as Prometheus, from {labels: {time: value or STALE}}; more than `limit` samples are too many."""

    def __init__(self, series, limit=10**9):
        self.series, self.limit = series, limit
        self.asked = []

    def __call__(self, request):
        given = dict(request.url.params)
        self.asked.append((request.url.path, given))
        if request.url.path.endswith("query_range"):
            start, end, step = (round(float(given[name]) * 1000) for name in ("start", "end", "step"))
            found = {known: self._visible(points, range(start, end + 1, step)) for known, points in self.series.items()}
        else:
            window = durations.parse(given["query"].partition("[")[2].rstrip("]"))
            until = round(float(given["time"]) * 1000)
            found = {
                known: {t: v for t, v in points.items() if until - window < t <= until and v is not STALE}
                for known, points in self.series.items()
            }
            if sum(map(len, found.values())) > self.limit:
                return httpx.Response(422, json={"status": "error", "error": "too many samples"})
        result = [
            {"metric": dict(known), "values": [[t / 1000, str(v)] for t, v in sorted(points.items())]}
            for known, points in found.items()
            if points
        ]
        return httpx.Response(200, json={"status": "success", "data": {"resultType": "matrix", "result": result}})

    @staticmethod
    def _visible(points, steps):
        out = {}
        for step in steps:
            known = [t for t in points if step - SILENT_MS < t <= step]
            if known and points[max(known)] is not STALE:
                out[step] = points[max(known)]
        return out


def remote(server, start, end, step=15_000):
    with QueryApi("http://server", transport=httpx.MockTransport(server)) as api:
        return list(RemoteHistory(api, ["x"], step).rows(start, end))


def test_samples_keep_their_own_times_and_ends_come_with_the_next_step():
    steady = {t: 1.0 for t in range(7, 2_000_000, 15_000)}
    ending = {1000: 1.0, 16_000: 2.0, 31_000: STALE, 200_000: 3.0, 215_001: STALE, 216_000: 4.0}
    rows = remote(Server({labels("x"): steady, labels("x", r="1"): ending}), 0, 2_000_000)
    assert [(t, v) for t, known, v in rows if known == labels("x")] == list(steady.items())
    # an end between two samples and two steps cannot be seen, and no evaluation could have seen it
    assert [(t, v) for t, known, v in rows if known != labels("x")] == [
        (1000, 1.0),
        (16_000, 2.0),
        (45_000, STALE),
        (200_000, 3.0),
        (216_000, 4.0),
    ]
    assert [t for t, _, _ in rows] == sorted(t for t, _, _ in rows)


def test_an_end_in_a_later_chunk_is_found_too():
    rows = remote(Server({labels("x"): {599_000: 1.0, 601_000: STALE}}), 0, 1_000_000)
    assert rows == [(599_000, labels("x"), 1.0), (615_000, labels("x"), STALE)]


def test_what_grows_old_needs_no_end():
    assert remote(Server({labels("x"): {1000: 1.0}}), 0, 1_000_000) == [(1000, labels("x"), 1.0)]


def test_too_much_at_once_is_asked_for_in_smaller_pieces():
    points = {t: float(t) for t in range(0, 600_000, 1000)}
    rows = remote(Server({labels("x"): points}, limit=200), 0, 600_000)
    assert {t: v for t, _, v in rows} == points


def test_an_error_that_smaller_pieces_do_not_cure_is_told():
    with pytest.raises(QueryError, match="too many samples"):
        remote(Server({labels("x"): {t: 1.0 for t in range(0, 600_000, 100)}}, limit=5), 0, 600_000)


def test_chunks_follow_each_other_without_gap_or_overlap():
    server = Server({labels("x"): {t: 1.0 for t in range(0, 40_000_000, 60_000)}})
    rows = remote(server, 0, 40_000_000, 60_000)
    assert [t for t, _, _ in rows] == list(range(0, 40_000_000, 60_000))
    assert len(server.asked) < 30  # they grow while there is little in them


def test_a_server_that_is_slow_or_speaks_otherwise_is_named():
    def slow(request):
        raise httpx.ReadTimeout("", request=request)

    for transport, said in (
        (httpx.MockTransport(slow), "no answer from http://server within"),
        (httpx.MockTransport(lambda r: httpx.Response(502, text="bad gateway")), "HTTP 502 bad gateway"),
        (httpx.MockTransport(lambda r: httpx.Response(200, text=json.dumps([1]))), "has no Prometheus API"),
    ):
        with QueryApi("http://server", transport=transport) as api, pytest.raises(RemoteError, match=said):
            api.instant("x")
