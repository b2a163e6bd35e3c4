"""Of a recorded step, which operation is blamed: the first on the way that made what is not finite."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spikewatch.culprit import Operation, first_bad

FINITE, NEGATIVE, POSITIVE, NAN = (0.0, 1.0), (-math.inf, 1.0), (0.0, math.inf), (math.nan, math.nan)


def step(*rows):
    """Rows of (name, sources, limits)."""
    return [
        Operation(name, "", "outside" if name == "input" else "forward", sources, *limits)
        for name, sources, limits in rows
    ]


def name_of(operations, *arrived):
    found = first_bad(operations, arrived)
    return None if found is None else operations[found].name


def test_a_step_whose_gradients_are_finite_has_no_culprit():
    operations = step(("log", (), NEGATIVE), ("relu", (0,), FINITE))
    assert first_bad(operations, [1]) is None
    assert first_bad(operations, []) is None


def test_the_operation_that_made_the_first_infinity_is_blamed_not_those_that_passed_it_on():
    operations = step(("input", (), FINITE), ("exp", (0,), POSITIVE), ("mul", (1, 0), POSITIVE), ("sub", (2, 2), NAN))
    assert name_of(operations, 3) == "exp"


def test_what_is_not_finite_elsewhere_and_never_arrives_is_not_blamed():
    operations = step(("log", (), NAN), ("input", (), FINITE), ("div", (1,), POSITIVE), ("sum", (2,), POSITIVE))
    assert name_of(operations, 3) == "div"


@pytest.mark.parametrize("mask", ["full", "masked_fill", "input"])
def test_a_mask_of_minus_infinity_is_innocent_of_what_softmax_makes_of_a_row_without_anything_else(mask):
    operations = step((mask, (), NEGATIVE), ("add", (0,), NEGATIVE), ("_softmax", (1,), NAN), ("sum", (2,), NAN))
    assert name_of(operations, 3) == "_softmax"


def test_a_logarithm_of_zero_is_blamed_though_it_is_minus_infinity_that_arrives():
    operations = step(("input", (), FINITE), ("log", (0,), NEGATIVE), ("neg", (1,), POSITIVE))
    assert name_of(operations, 2) == "log"


def test_a_batch_that_came_with_a_nan_is_blamed_itself():
    operations = step(("input", (), NAN), ("mul", (0,), NAN))
    assert name_of(operations, 1) == "input"


def test_a_cast_to_half_precision_that_overflows_is_blamed():
    operations = step(("input", (), FINITE), ("_to_copy", (0,), POSITIVE), ("mm", (1,), NAN))
    assert name_of(operations, 2) == "_to_copy"


@st.composite
def steps(draw):
    rows = []
    for n in range(draw(st.integers(1, 12))):
        sources = tuple(draw(st.sets(st.integers(0, n - 1), max_size=3))) if n else ()
        rows.append(
            (
                draw(st.sampled_from(["add", "exp", "full", "where"])),
                sources,
                draw(st.sampled_from([FINITE, NEGATIVE, POSITIVE, NAN])),
            )
        )
    return step(*rows)


@given(steps(), st.data())
def test_the_culprit_is_always_not_finite_and_always_upstream_of_what_arrived(operations, data):
    arrived = data.draw(st.lists(st.integers(0, len(operations) - 1), max_size=3))
    found = first_bad(operations, arrived)
    assert (found is None) == all(not operations[n].grade for n in arrived)
    if found is None:
        return
    upstream, todo = set(), list(arrived)
    while todo:
        n = todo.pop()
        if n not in upstream:
            upstream.add(n)
            todo += operations[n].sources
    assert found in upstream
    assert operations[found].grade
