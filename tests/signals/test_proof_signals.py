"""Provokes each of the 21 signals, on a real source where this machine has one, and notes how long it took to fire,
what was answered and how that ended. Results go to docs/proof/signals.json; docs/signals.md is made of it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import signals_of_bills as bills
import signals_of_data as data
import signals_of_gpus as gpus
import signals_of_services as services
import signals_of_serving as serving
import signals_of_training as training
from signals_rows import Row, as_data
from signals_stage import Stage

pytestmark = [pytest.mark.torch, pytest.mark.proof, pytest.mark.timeout(2400)]

AT_ONCE = 6  # nearly all of each is waiting
STORIES: tuple[Callable[..., Any], ...] = (
    training.overflow_storm,  # the long ones first
    training.starved,
    training.scale_collapse,
    training.late_rank,
    training.timed_out,
    serving.cold_start,
    serving.idle,
    gpus.full_and_idle,
    gpus.coupled,
    gpus.crowded,
    services.unseen,
    services.no_gpm,
    data.small_files,
    data.large_task,
    data.offload,
    bills.billed,
    bills.account,
    bills.dear_pods,
)


@pytest.fixture(scope="module")
def told(request, nvml_library):
    """What each story that was selected comes to; they play at the same time, a few at once."""
    library = nvml_library()
    pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="story")

    def play(story: Callable[..., list[Row]]) -> list[Row]:
        with Stage() as stage:
            return list(story(stage, library))

    params = [getattr(item, "callspec", None) for item in request.session.items if item.path == request.path]
    selected = {spec.params["story"] for spec in params if spec is not None}
    found: dict[Callable[..., Any], Future[list[Row]]] = {s: pool.submit(play, s) for s in STORIES if s in selected}
    yield found
    pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def kept(record_proof):
    """Rows by story, with what is on record of those that are not played this time."""
    file = Path(__file__).parents[2] / "docs" / "proof" / "signals.json"
    rows = json.loads(file.read_text())["stories"] if file.exists() else {}
    yield rows
    what = "each shipped signal provoked: where, how long it took to fire, what answered it"
    record_proof("signals", {"what": what, "cores": os.cpu_count(), "stories": rows})


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_each_signal_fires_when_its_cause_is_there_and_not_before(told, kept, story):
    rows = told[story].result()
    kept[story.__name__] = {"load": round(os.getloadavg()[0], 1), "rows": as_data(rows)}
    assert rows
