"""Durations are Prometheus's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar import durations


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
        ("30s", 30_000),
        ("1h30m", 5_400_000),
        ("250ms", 250),
        ("1d", 86_400_000),
        ("1y2w3d", (365 + 14 + 3) * 86_400_000),
    ],
)
def test_a_duration_reads_as_prometheus_reads_it(text, ms):
    assert durations.parse(text) == ms


@pytest.mark.parametrize("text", ["", "5", "1.5h", "-1s", "30m1h", "1 s", "s", "1h1h", "٣s", "999999999y"])
def test_what_prometheus_refuses_is_refused_with_advice(text):
    with pytest.raises(ValueError, match="duration"):
        durations.parse(text)


@pytest.mark.parametrize(
    ("ms", "text"), [(0, "0s"), (90_000, "1m30s"), (604_800_000, "1w"), (691_200_000, "8d"), (-5_000, "-5s")]
)
def test_a_duration_is_written_as_prometheus_writes_it(ms, text):
    assert durations.text(ms) == text


@given(st.integers(0, 9_223_372_036_854))
def test_writing_and_reading_are_inverse(ms):
    assert durations.parse(durations.text(ms)) == ms
