"""Parameters as Prometheus reads them."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.api.parameters import EARLIEST_MS, LATEST_MS, Parameters
from sidecar.errors import RequestError


def time_of(text, default=None):
    return Parameters([("time", text)]).time("time", default)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
        ("1700000000", 1_700_000_000_000),
        ("1700000000.5", 1_700_000_000_500),
        ("-5.25", -5_250),
        ("1e3", 1_000_000),
        ("1.0004", 1_000),
        ("1.0015", 1_002),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14T22:13:20.123456789Z", 1_700_000_000_123),
        ("2023-11-14T22:13:20.5Z", 1_700_000_000_500),
        ("2023-11-15T00:13:20+02:00", 1_700_000_000_000),
        ("2023-11-14T20:43:20-01:30", 1_700_000_000_000),
        ("1969-12-31T23:59:59.9Z", -100),
        ("-292273086-05-16T16:47:06Z", EARLIEST_MS),
        ("292277025-08-18T07:12:54.999999999Z", LATEST_MS),
    ],
)
def test_a_time_is_unix_seconds_or_rfc_3339(text, ms):
    assert time_of(text) == ms


@pytest.mark.parametrize(
    "text",
    ["x", "", " 1", "1 ", "0x10", "NaN", "Inf", "1e300", "1e17", "2023-11-14", "2023-13-14T00:00:00Z", "٣", "1.2.3",
     "2023-11-14 22:13:20Z", "2023-11-14T22:13:20", "2023-11-14T22:13:20+25:00", "0000-01-01T00:00:00Z"],
)  # fmt: skip
def test_anything_else_is_no_time_and_the_answer_says_which_parameter_it_was(text):
    with pytest.raises(RequestError, match='invalid parameter "time": cannot parse ".*" to a valid timestamp') as e:
        time_of(text)
    assert (e.value.status, e.value.kind) == (400, "bad_data")


@given(st.integers(-(10**12), 10**13))
def test_every_millisecond_survives_being_written_as_seconds(ms):
    assert time_of(f"{ms // 1000}.{ms % 1000:03d}" if ms >= 0 else f"-{-ms // 1000}.{-ms % 1000:03d}") == ms


@given(st.text(max_size=40))
def test_no_text_breaks_the_reading_of_a_parameter(text):
    parameters = Parameters([("time", text), ("limit", text)])
    for read in (lambda: parameters.time("time"), lambda: parameters.duration("time"), parameters.limit):
        with contextlib.suppress(RequestError):
            assert isinstance(read(), int | float)


def test_a_time_that_is_not_given_is_the_default_and_without_one_an_error():
    assert Parameters([]).time("time", 7) == 7
    assert time_of("", 7) == 7
    with pytest.raises(RequestError):
        Parameters([]).time("start")


def test_a_wrong_time_that_could_have_been_left_out_is_told_as_prometheus_tells_it():
    with pytest.raises(RequestError) as e:
        time_of("x", 7)
    assert str(e.value) == (
        'invalid parameter "time": invalid time value for \'time\': cannot parse "x" to a valid timestamp'
    )


@pytest.mark.parametrize(
    ("text", "ms"), [("5", 5000), ("0.25", 250), ("1m30s", 90_000), ("250ms", 250), ("-1", -1000), ("0", 0)]
)
def test_a_duration_is_seconds_or_a_prometheus_duration(text, ms):
    assert Parameters([("step", text)]).duration("step") == ms


@pytest.mark.parametrize(("text", "more"), [("x", ""), ("", ""), ("1x", ""), ("1e300", ". It overflows int64")])
def test_anything_else_is_no_duration(text, more):
    with pytest.raises(RequestError) as e:
        Parameters([("step", text)]).duration("step")
    assert str(e.value) == f'invalid parameter "step": cannot parse "{text}" to a valid duration{more}'


@pytest.mark.parametrize(("text", "limit"), [("", 0), ("0", 0), ("7", 7), ("+7", 7)])
def test_a_limit_is_a_number_and_none_means_all(text, limit):
    assert Parameters([("limit", text)]).limit() == limit


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x", 'strconv.Atoi: parsing "x": invalid syntax'),
        ("1.5", 'strconv.Atoi: parsing "1.5": invalid syntax'),
        ("9" * 30, f'strconv.Atoi: parsing "{"9" * 30}": value out of range'),
        ("-1", "limit must be non-negative"),
    ],
)
def test_a_wrong_limit_is_told_as_prometheus_tells_it(text, why):
    with pytest.raises(RequestError) as e:
        Parameters([("limit", text)]).limit()
    assert str(e.value) == f'invalid parameter "limit": {why}'


# --- over a connection ----------------------------------------------------------------------------------------------

FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def scalar(answer):
    return answer.json()["data"]["result"][1]


def test_a_form_in_the_body_counts_before_the_address(serve):
    answer = serve().post("/api/v1/query?query=1&time=5", content="query=2%2B2", headers=FORM)
    assert answer.json()["data"]["result"] == [5, "4"]


def test_a_body_that_is_no_form_is_not_read(serve):
    answer = serve().post("/api/v1/query?query=1", content="query=2", headers={"Content-Type": "text/plain"})
    assert scalar(answer) == "1"


def test_a_query_as_long_as_a_form_may_be_is_taken(serve):
    answer = serve().post("/api/v1/query", data={"query": "1" + " " * 20_000})
    assert scalar(answer) == "1"


def test_a_form_that_does_not_say_how_long_it_is_is_read_up_to_the_limit(serve):
    chunks = (b"query=" if n == 0 else b" " * 65536 for n in range(64))
    answer = serve().post("/api/v1/query", content=chunks, headers=FORM)
    assert answer.status_code == 413
    assert answer.json()["errorType"] == "bad_data"


def test_more_parameters_than_anybody_needs_are_refused(serve):
    answer = serve().post("/api/v1/query", content="a&" * 5000, headers=FORM)
    assert (answer.status_code, answer.json()["error"]) == (400, "more than 1000 parameters")
