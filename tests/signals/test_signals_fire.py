"""Signals on real sources, through a whole sidecar with the shipped rules and responses: two that take seconds.

All of them are provoked by `make proof ARGS=tests/signals`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from signals_of_serving import cold_start
from signals_of_training import reading, timed_out
from signals_rows import LONGEST_FOR_MS, pod_on, shipped, shortened
from signals_stage import Stage

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def rows():
    """Both stories under one sidecar, told at the same time: most of each is waiting."""
    with Stage() as stage, ThreadPoolExecutor(2) as pool:
        pod = pod_on(stage, collectors=reading(stage))
        told = pool.map(lambda story: story(stage, None, pod), (cold_start, timed_out))
        return {row.alert: row for rows in told for row in rows}


@pytest.mark.parametrize(
    ("alert", "signal", "severity", "against", "response"),
    [
        ("ColdStartSlow", "cold_start_slow", "warning", "device", "note-cold-start-slow"),
        ("CollectiveTimedOut", "allreduce_wait", "critical", "fake", "note-allreduce-wait"),
    ],
)
def test_a_signal_fires_from_its_cause_and_the_shipped_response_answers(
    rows, alert, signal, severity, against, response
):
    row = rows[alert]
    assert (row.signal, row.severity, row.against, row.at) == (signal, severity, against, "pod")
    assert 0 <= row.detection_s <= row.seconds
    (answer,) = row.responses
    assert (answer["response"], answer["decision"], answer["verdict"]) == (response, "annotated", "")


def test_a_slow_start_is_told_with_its_length(rows):
    assert rows["ColdStartSlow"].value >= 1.2


def test_only_what_would_take_too_long_to_wait_for_is_shortened():
    alerts = shipped()
    assert {name for name, (rule, _) in alerts.items() if rule.for_ms > LONGEST_FOR_MS} == set(shortened())
    assert "TrainerStarvedOfData" not in shortened()
    assert "GpuHeldIdle" in shortened()
