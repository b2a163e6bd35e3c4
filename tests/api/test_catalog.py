"""Series, label names and values, metadata."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar import promql
from sidecar.api import catalog
from sidecar.api.parameters import EARLIEST_MS, LATEST_MS, Parameters
from sidecar.api.services import Data
from sidecar.errors import RequestError
from sidecar.model import STALE, MetricInfo
from sidecar.store import Store

T0 = 1_700_000_000_000


def filled():
    """Two metrics of which `b_total` has a sample at 0 s and `a` at 0 s and 600 s, but for `gone`, which ended."""
    made = Store()
    for metric, labels in (
        ("b_total", {"x": "1", "y": "2"}),
        ("a", {"x": "1"}),
        ("a", {"x": "gone"}),
        ("a", {"z": "ä <"}),
    ):
        made.series(metric, labels)
    for second, values in ((0, {("b_total", 0): 1, ("a", 0): 1, ("a", 1): 1}), (1, {("a", 1): STALE}),
                           (600, {("a", 0): 2, ("a", 2): 3})):  # fmt: skip
        for metric in ("b_total", "a"):
            row = {column: float(value) for (name, column), value in values.items() if name == metric}
            if row:
                made.push(made.blocks(metric)[0].index, T0 + second * 1000, row)
    return made


@pytest.fixture
def get(serve):
    client = serve(data=Data(filled()))
    return lambda path, **params: client.get(f"/api/v1/{path}", params=params)


def names(answer):
    assert answer.status_code == 200, answer.text
    return [(s["__name__"], s.get("x", s.get("z"))) for s in answer.json()["data"]]


def test_series_are_those_a_selector_picks(get):
    assert names(get("series", **{"match[]": 'a{x!="gone"}'})) == [("a", "1"), ("a", "ä <")]
    assert names(get("series", **{"match[]": '{x="1"}'})) == [("b_total", "1"), ("a", "1")]
    assert names(get("series", **{"match[]": '{__name__=~"b.*|c"}'})) == [("b_total", "1")]
    assert names(get("series", **{"match[]": "nothing"})) == []


def test_several_selectors_give_each_series_once_in_order_of_its_labels(get):
    both = get("series", **{"match[]": ["b_total", '{x="1"}', "a"]})
    assert names(both) == [("a", "1"), ("a", "gone"), ("a", "ä <"), ("b_total", "1")]


@pytest.mark.parametrize(
    ("start", "end", "found"),
    [
        (599, 601, ["1", "ä <"]),
        (0, 0, ["1", "gone"]),
        (0.001, 599, []),
        (601, 700, []),
        (-5, 700, ["1", "gone", "ä <"]),
    ],
)
def test_only_series_with_a_sample_in_the_time_asked_for_count(get, start, end, found):
    start, end = T0 / 1000 + start, T0 / 1000 + end
    answer = get("series", **{"match[]": "a"}, start=start, end=end)
    assert [x for _, x in names(answer)] == found


def test_label_names_are_sorted_and_those_of_the_series_asked_for(get):
    assert get("labels").json()["data"] == ["__name__", "x", "y", "z"]
    assert get("labels", **{"match[]": "a"}).json()["data"] == ["__name__", "x", "z"]
    assert get("labels", end=T0 // 1000 + 500).json()["data"] == ["__name__", "x", "y"]


def test_label_values_are_sorted_and_those_of_the_series_asked_for(get):
    assert get("label/__name__/values").json()["data"] == ["a", "b_total"]
    assert get("label/x/values").json()["data"] == ["1", "gone"]
    assert get("label/x/values", start=T0 // 1000 + 500).json()["data"] == ["1"]
    assert get("label/z/values").json()["data"] == ["ä <"]
    assert get("label/nothing/values").json()["data"] == []
    assert get("label/x/values", **{"match[]": "b_total"}).json()["data"] == ["1"]


@pytest.mark.parametrize(("path", "match"), [("series", "a"), ("labels", "a"), ("label/__name__/values", '{x="1"}')])
def test_a_limit_cuts_the_list_and_says_so(get, path, match):
    whole = get(path, **{"match[]": match}).json()
    cut = get(path, **{"match[]": match}, limit=1).json()
    assert cut["data"] == whole["data"][:1]
    assert cut["warnings"] == ["results truncated due to limit"]
    assert "warnings" not in get(path, **{"match[]": match}, limit=len(whole["data"])).json()


def test_series_of_everything_are_not_given_away_by_leaving_the_selector_out(get):
    answer = get("series")
    assert (answer.status_code, answer.json()["error"]) == (400, "no match[] parameter provided")


@pytest.mark.parametrize("match", ["sum(a)", "a[5m]", "a offset 1m", "a @ 5", "a[5m:]", "1", '"a"', "{", "", '{x=~""}'])
@pytest.mark.parametrize("path", ["series", "labels", "label/x/values"])
def test_what_is_no_plain_selector_is_refused(get, path, match):
    answer = get(path, **{"match[]": match})
    assert answer.status_code == 400
    assert answer.json()["errorType"] == "bad_data"


def test_a_list_that_takes_too_long_is_cut_off():
    def expired():
        raise RequestError("query timed out in query execution", 503, "timeout")

    wanted = catalog.Wanted((), T0 - 10_000, T0 + 10_000, 0)
    with pytest.raises(RequestError):
        catalog.label_names(filled(), wanted, expired)


# what each of three series has in a slot: nothing, a sample, or its end
SLOTS = st.lists(st.integers(0, 26), max_size=70)


@settings(max_examples=60)
@given(SLOTS, st.integers(-10, 500), st.integers(-10, 500))
def test_a_series_is_alive_exactly_when_it_has_a_sample_in_the_time(slots, start, end):
    made = Store(min_keep_ms=60_000)
    handles = [made.series("m", {"i": str(i)}) for i in range(3)]
    for slot, pattern in enumerate(slots):
        what = {column: (None, 1.0, STALE)[pattern // 3**column % 3] for column in range(3)}
        if values := {column: value for column, value in what.items() if value is not None}:
            made.push(handles[0].block, T0 + slot * 7000, values)
    start_ms, end_ms = T0 + start * 1000, T0 + end * 1000
    selector = promql.compile(["m"]).node("m")
    found = catalog.series(made, catalog.Wanted((selector,), start_ms, end_ms, 0), lambda: None)
    query = f"m[{end_ms - start_ms + 1}ms]"
    expected = () if end < start else promql.compile([query]).bind(made, "naive").matrix(query, end_ms)
    assert sorted(found) == [series.labels for series in expected]


# --- metadata --------------------------------------------------------------------------------------------------------

CATALOGUE = [MetricInfo("z_total", "counter", "", "How many <z>."), MetricInfo("a_seconds", "gauge", "seconds", "A.")]


@pytest.fixture
def metadata(serve):
    client = serve(catalogue=lambda: CATALOGUE)
    return lambda **params: client.get("/api/v1/metadata", params=params)


def test_metadata_tells_what_each_metric_means(metadata):
    assert metadata().json()["data"] == {
        "a_seconds": [{"type": "gauge", "unit": "seconds", "help": "A."}],
        "z_total": [{"type": "counter", "unit": "", "help": "How many <z>."}],
    }


def test_metadata_of_one_metric_and_of_a_few(metadata):
    assert list(metadata(metric="z_total").json()["data"]) == ["z_total"]
    assert metadata(metric="nothing").json()["data"] == {}
    assert list(metadata(limit=1).json()["data"]) == ["a_seconds"]
    assert metadata(limit=0).json()["data"] == {}
    assert len(metadata(limit_per_metric=1).json()["data"]) == 2


@pytest.mark.parametrize("name", ["limit", "limit_per_metric"])
def test_a_limit_that_is_no_number_is_refused(metadata, name):
    answer = metadata(**{name: "x"})
    assert (answer.status_code, answer.json()["error"]) == (400, f"{name} must be a number")


def test_without_limits_of_time_a_series_needs_only_a_sample_that_is_still_kept():
    wanted = catalog.Wanted.read(Parameters([]))
    assert (wanted.start_ms, wanted.end_ms) == (EARLIEST_MS, LATEST_MS)
