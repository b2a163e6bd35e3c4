"""Numbers, times and label sets spelled as Prometheus spells them."""

import json
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sidecar.api import prometheus_json as wire


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.0, "-0"),
        (1.0, "1"),
        (0.1, "0.1"),
        (0.1 + 0.2, "0.30000000000000004"),
        (1e-5, "0.00001"),
        (1e-6, "0.000001"),
        (9.999e-7, "9.999e-07"),
        (-1.5e-6, "-0.0000015"),
        (1e15, "1000000000000000"),
        (1e16, "10000000000000000"),
        (12345678901234567.0, "12345678901234568"),
        (1.2345678901234567e19, "12345678901234567000"),
        (9.99e20, "999000000000000000000"),
        (1e21, "1e+21"),
        (-1.25e300, "-1.25e+300"),
        (5e-324, "5e-324"),
        (float("nan"), "NaN"),
        (float("inf"), "+Inf"),
        (float("-inf"), "-Inf"),
    ],
)
def test_a_value_is_written_with_the_fewest_digits_and_no_exponent_where_it_stays_readable(value, text):
    assert wire.number(value) == text


@given(st.floats(allow_nan=False))
@example(1e-6)
@example(math.nextafter(1e-6, 0))
@example(math.nextafter(1e21, 0))
def test_every_value_reads_back_as_itself(value):
    text = wire.number(value)
    assert float(text) == value
    assert ("e" in text) == (value != 0 and math.isfinite(value) and not 1e-6 <= abs(value) < 1e21)


@pytest.mark.parametrize(
    ("t_ms", "text"),
    [(0, "0"), (1500, "1.500"), (1_700_000_000_000, "1700000000"), (1_700_000_000_005, "1700000000.005"),
     (-5250, "-5.250"), (-1, "-0.001")],
)  # fmt: skip
def test_a_time_has_three_digits_after_the_point_or_none(t_ms, text):
    assert wire.seconds(t_ms) == text


@pytest.mark.parametrize(
    ("t_ms", "text"),
    [
        (None, "0001-01-01T00:00:00Z"),
        (1_700_000_000_000, "2023-11-14T22:13:20Z"),
        (1_700_000_000_500, "2023-11-14T22:13:20.5Z"),
        (1_700_000_000_007, "2023-11-14T22:13:20.007Z"),
    ],
)
def test_a_moment_has_no_trailing_zeros(t_ms, text):
    assert wire.moment(t_ms) == text


def test_text_that_could_be_taken_for_html_is_escaped_but_not_in_label_sets():
    assert wire.document(["a<b>&\u2028"]) == '["a\\u003cb\\u003e\\u0026\\u2028"]'
    assert wire.labels((("l", "<&>\u2028é\n"),)) == '{"l":"<&>\u2028é\\n"}'


LABELS = st.lists(st.tuples(st.sampled_from("abcd"), st.text(st.characters(exclude_categories=["Cs"]))), max_size=3)


@given(st.lists(st.tuples(LABELS, st.lists(st.floats(), min_size=1, max_size=12)), max_size=4), st.integers(1, 200))
def test_a_body_in_pieces_of_any_size_is_one_document(found, size):
    wanted = [(tuple(sorted(dict(labels).items())), list(range(len(values))), values) for labels, values in found]
    before, wire.PIECE = wire.PIECE, size * 32
    try:
        pieces = list(wire.success(wire.matrix(wanted), ["w<"]))
    finally:
        wire.PIECE = before
    body = json.loads(b"".join(pieces))
    assert body["warnings"] == ["w<"]
    assert body["data"]["result"] == [
        {"metric": dict(labels), "values": [[t / 1000, wire.number(v)] for t, v in zip(times, values, strict=True)]}
        for labels, times, values in wanted
    ]


def test_pieces_are_about_as_large_as_they_should_be():
    series = [((("i", str(i)),), range(1000), [0.5] * 1000) for i in range(50)]
    sizes = [len(piece) for piece in wire.success(wire.matrix(series))]
    assert len(sizes) > 10
    assert max(sizes) < 2 * wire.PIECE
    assert min(sizes[:-1]) >= wire.PIECE
