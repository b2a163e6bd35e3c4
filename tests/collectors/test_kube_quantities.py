"""Quantities as Kubernetes writes them, and what is none."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.collectors.kube import quantity

FACTORS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18} | {
    f"{letter}i": 2.0 ** (10 * n) for n, letter in enumerate("KMGTPE", start=1)
}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("100m", 0.1), ("1Gi", 2**30), ("1e3", 1000), ("1E3", 1000), ("1E", 1e18), ("0.5", 0.5), (".5", 0.5),
        ("5.", 5), ("1.5Gi", 1.5 * 2**30), ("+2", 2), ("1E-3", 0.001), ("0", 0), (2, 2), (1.5, 1.5), ("16Ki", 16384),
    ],
)  # fmt: skip
def test_a_quantity_is_the_number_it_stands_for(text, number):
    assert quantity.parse(text) == pytest.approx(number, rel=1e-15)


@pytest.mark.parametrize(
    "text",
    ["", " 1", "1 Gi", "1ki", "1K", "1g", "1e", "Gi", "1Gi2", "1e3Ki", "1_000", "0x10", "1,5", "١", "--1", "1e9999",
     "nan", "inf", "9223372036854775808", "8Ei", "-1", "1" * 65, None, True, [], {}, float("nan")],
)  # fmt: skip
def test_what_the_api_server_would_refuse_or_no_pod_can_request_is_refused(text):
    with pytest.raises(ValueError, match=r"quantity|negative|64 bits"):
        quantity.parse(text)


@given(st.integers(0, 7), st.sampled_from(sorted(FACTORS)), st.integers(0, 999))
def test_every_suffix_multiplies_by_its_own_factor(whole, suffix, thousandths):
    written = f"{whole}.{thousandths:03}{suffix}"
    assert math.isclose(quantity.parse(written), (whole + thousandths / 1000) * FACTORS[suffix], rel_tol=1e-12)


@given(st.text(alphabet="0123456789.eE+-KMGTPinumk ", max_size=12))
def test_whatever_stands_there_is_a_number_that_counts_or_is_refused(text):
    try:
        found = quantity.parse(text)
    except ValueError:
        return
    assert 0 <= found <= 2**63
