"""The engine's parts on their own: sums, histograms, calendar, templates, numbers as text."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from sidecar.model import STALE
from sidecar.promql import calendar, exact, histogram, rangefuncs
from sidecar.promql.labelfuncs import expanded
from sidecar.promql.plan import Matcher, Op
from sidecar.promql.ranked import best, plain
from sidecar.promql.regex import check, compiled, predicate
from sidecar.promql.window import Samples, over_matrix
from sidecar.store import cells

any_float = st.floats(allow_nan=True, allow_infinity=True, width=64)
matrices = arrays(np.float64, array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=12), elements=any_float)


def kahan(values):
    """Prometheus's sum, one number after the other."""
    total, rest = 0.0, 0.0
    for value in values:
        total, rest = exact.kahan(value, total, rest)
    return total, rest


@pytest.fixture(autouse=True)
def quiet():
    with np.errstate(all="ignore"):
        yield


@given(matrices)
def test_running_sums_are_prometheuss_bit_for_bit(matrix):
    with np.errstate(all="ignore"):
        sums, rest = exact.running(matrix)
    for j in range(matrix.shape[1]):
        total, correction = kahan(matrix[:, j].tolist())
        assert np.array([sums[-1, j]]).tobytes() == np.array([total]).tobytes() or math.isnan(total)
        assert rest[-1, j] == correction or math.isnan(correction) or not math.isfinite(total)


@given(st.lists(st.floats(-1e15, 1e15), min_size=1, max_size=30))
def test_totals_are_right_to_the_last_digits(values):
    with np.errstate(all="ignore"):
        total = float(exact.total(np.array(values)[:, None])[0])
    truth = sum((Fraction(v) for v in values), Fraction(0))
    size = sum((abs(Fraction(v)) for v in values), Fraction(0))
    assert abs(Fraction(total) - truth) <= abs(truth) * Fraction(1, 2**52) + size * Fraction(1, 2**90)


def test_a_mean_whose_sum_overflows_is_still_a_mean():
    assert exact.mean(np.array([[1.7e308], [1.6e308], [1.5e308]]))[0] == pytest.approx(1.6e308)


def bucket_rows(draw):
    size = draw(st.integers(2, 8))
    bounds = sorted(draw(st.sets(st.integers(-5, 40), min_size=size - 1, max_size=size - 1)))
    counts = draw(st.lists(st.integers(0, 20), min_size=size, max_size=size))
    fuzz = draw(st.sampled_from([0.0, 0.0, 1e-14, -1e-14]))
    cumulative = np.cumsum(counts).astype(float)
    if draw(st.booleans()):
        cumulative = np.array(counts, float)  # not even rising
    return [*map(float, bounds), math.inf], [float(c) * (1 + fuzz * i) for i, c in enumerate(cumulative.tolist())]


@given(st.data(), st.floats(0, 1))
def test_many_histograms_at_once_are_many_histograms(data, phi):
    """The array path gives what the one-by-one path gives."""
    bounds, counts = bucket_rows(data.draw)
    other = data.draw(st.lists(st.integers(0, 9), min_size=len(bounds), max_size=len(bounds)))
    rows = [counts, np.cumsum(other).astype(float).tolist(), [0.0] * len(bounds)]
    with np.errstate(all="ignore"):
        found = histogram.quantiles(phi, np.array([bounds] * 3), np.array(rows))
        expected = [histogram.quantile(phi, bounds, row) for row in rows]
    assert found.tolist() == pytest.approx(expected, rel=1e-12, nan_ok=True)


@given(st.data())
def test_a_quantile_and_its_fraction_are_each_others_inverse(data):
    bounds, counts = bucket_rows(data.draw)
    counts = np.cumsum(np.abs(counts)).tolist()
    phi = data.draw(st.floats(0.01, 0.99))
    with np.errstate(all="ignore"):
        value = histogram.quantile(phi, bounds, counts)
        share = histogram.fraction(-math.inf, value, bounds, counts)
    if counts[-1] and bounds[0] < value < bounds[-2] and value not in bounds:
        assert share == pytest.approx(phi, rel=1e-9)


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("1", 1.0),
        ("+Inf", math.inf),
        ("0x1p1", 2.0),
        ("1e3", 1000.0),
        (" 1", None),
        ("1_0", None),
        ("", None),
        ("١", None),
    ],
)
def test_bucket_bounds_are_read_as_go_reads_them(text, bound):
    assert histogram._bound(text) == bound


@given(st.integers(-60_000_000_000, 250_000_000_000))
def test_the_calendar_is_the_calendar(seconds):
    when = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    value = np.array([float(seconds)])
    got = {name: float(function(value)[0]) for name, function in calendar.FUNCTIONS.items()}
    following = (when.replace(day=28) + timedelta(days=4)).replace(day=1)
    assert got == {
        "year": when.year,
        "month": when.month,
        "day_of_month": when.day,
        "hour": when.hour,
        "minute": when.minute,
        "day_of_week": when.isoweekday() % 7,
        "day_of_year": when.timetuple().tm_yday,
        "days_in_month": (following - timedelta(days=1)).day,
    }


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("$1", "node"),
        ("${1}-x", "node-x"),
        ("$1x", ""),  # the group is called 1x
        ("$n/$2", "7/7"),
        ("${n}${none}", "7"),
        ("$$1", "$1"),
        ("cost $", "cost $"),
        ("$-", "$-"),
        ("${", "${"),
        ("$9", ""),
        ("plain", "plain"),
    ],
)
def test_replacement_templates_are_gos(template, text):
    regex = compiled("(node)-(?P<n>[0-9])")
    assert expanded(template, regex.search("node-7"), regex.groupindex) == text


@pytest.mark.parametrize(
    ("op", "value", "text", "expected"),
    [
        (Op.EQUAL, "a", "a", True),
        (Op.NOT_EQUAL, "a", "a", False),
        (Op.MATCH, "a|b", "b", True),
        (Op.MATCH, "a|b", "ab", False),
        (Op.MATCH, "a.b", "a\nb", True),
        (Op.MATCH, "", "", True),
        (Op.NO_MATCH, ".+", "", True),
        (Op.NO_MATCH, "(?i)A", "a", False),
    ],
)
def test_matchers_are_anchored_and_dots_match_newlines(op, value, text, expected):
    assert predicate(Matcher("x", op, value))(text) is expected


def test_a_bad_regex_is_told_not_raised():
    assert "bad regular expression" in check("a**")
    assert check("a{1,3}") == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.0, "1"), (0.1, "0.1"), (1e21, "1" + "0" * 21), (1e-7, "0.0000001"), (math.inf, "+Inf"), (math.nan, "NaN")],
)
def test_values_as_labels_never_have_an_exponent(value, text):
    assert plain(value) == text


@given(st.lists(any_float, max_size=12), st.integers(0, 14))
def test_the_best_are_the_best(values, k):
    chosen = best(np.array(values), k).tolist()
    left = [v for i, v in enumerate(values) if i not in chosen]
    kept = [values[i] for i in chosen]
    assert len(kept) == min(k, len(values))
    assert all(math.isnan(b) or a >= b for a in kept for b in left if not math.isnan(a))
    assert not any(math.isnan(a) and not math.isnan(b) for a in kept for b in left)


@given(matrices, st.floats(-0.2, 1.2))
def test_quantiles_sort_nan_first(matrix, phi):
    with np.errstate(all="ignore"):
        found = rangefuncs.quantile(matrix, phi)
    for j, got in enumerate(found.tolist()):
        values = sorted(matrix[:, j].tolist(), key=lambda v: (not math.isnan(v), v))
        if not 0 <= phi <= 1:
            assert got == (-math.inf if phi < 0 else math.inf)
            continue
        rank = phi * (len(values) - 1)
        low = int(rank)
        weight = rank - low
        expected = values[low] * (1 - weight) + values[min(low + 1, len(values) - 1)] * weight
        assert got == expected or (math.isnan(got) and math.isnan(expected))


def test_columns_with_different_holes_are_each_taken_without_theirs():
    matrix = np.array([[1.0, cells.MISSING, 3.0], [STALE, 5.0, 6.0], [7.0, cells.MISSING, 9.0]])
    times = np.array([1000, 2000, 3000])
    seen = []

    def count(samples: Samples):
        seen.append(samples.times.tolist())
        return np.full(samples.values.shape[1], float(len(samples.times))), None

    values, mask = over_matrix(matrix, times, 0, 3000, count)
    assert values.tolist() == [2.0, 1.0, 3.0]
    assert mask.all()
    assert seen == [[1000, 3000], [2000], [1000, 2000, 3000]]
