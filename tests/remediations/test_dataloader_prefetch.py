"""The loader remediation: what it plans within which limits, and when it declines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from remediations.dataloader_prefetch import WORKER_BYTES, DataloaderPrefetch, Params
from sidecar.hooks import Remediation, View
from sidecar.model import Alert, AlertState, Change, Knob, Skip, TrainerIdentity

ALERT = Alert("TrainerStarvedOfData", (), (), AlertState.FIRING, 0.6, 0)
WHO = TrainerIdentity("job", "1", ("a",), (0,), 1)
PLENTY = {"memory_available_bytes": 1 << 40}
MIB = 1 << 20


def view(workers=2, prefetch=2, *, who=WHO, facts=None, batch_bytes=None, most_workers=64.0, most_prefetch=64.0):
    knobs = {
        "num_workers": Knob("num_workers", workers, 0, most_workers),
        "prefetch_factor": Knob("prefetch_factor", prefetch, 1, most_prefetch),
    }
    series = {}
    if batch_bytes is not None:
        series = {"steps": [(0, 2.0), (1, 4.0)], "input_bytes": [(0, 2.0 * batch_bytes), (1, 4.0 * batch_bytes)]}
    return View(knobs, who, {**PLENTY, **(facts or {})}, series)


def plan(seen, **params):
    return DataloaderPrefetch().plan(ALERT, seen, Params(**params))


def test_it_is_a_remediation_whose_example_is_valid():
    plugin = DataloaderPrefetch()
    assert isinstance(plugin, Remediation)
    assert plugin.params.model_validate(plugin.example)


@pytest.mark.parametrize(
    ("seen", "params", "expected"),
    [
        (view(2, 2), {}, {"num_workers": 4, "prefetch_factor": 4}),
        (view(0, 2), {}, {"num_workers": 1, "prefetch_factor": 4}),  # from loading in the training process to a worker
        (view(1, 1), {"factor": 1.2}, {"num_workers": 2, "prefetch_factor": 2}),  # by one at least
        (view(6, 12), {}, {"num_workers": 8, "prefetch_factor": 16}),  # to the limits of the response
        (view(8, 4), {}, {"prefetch_factor": 8}),  # one is there already
        (view(20, 4), {}, {"prefetch_factor": 8}),  # above its limit, and not pushed down to it
        (view(2, 2, most_workers=3, most_prefetch=3), {}, {"num_workers": 3, "prefetch_factor": 3}),
        (view(2, 2, facts={"cpu_quota": 0.5}), {}, {"prefetch_factor": 4}),
        (view(2, 2, facts={"cpu_quota": 0.9}), {}, {"num_workers": 3, "prefetch_factor": 4}),
        (view(2, 2, facts={"cpu_quota": 2}), {"factor": 8}, {"num_workers": 8, "prefetch_factor": 16}),
        (view(2, 2, facts={"memory_available_bytes": 2 * WORKER_BYTES}), {}, {"num_workers": 3, "prefetch_factor": 4}),
        (view(2, 2, facts={"memory_available_bytes": 0}), {}, {"prefetch_factor": 4}),
        (view(2, 2, facts={"memory_available_bytes": 4000, "worker_memory_bytes": 1000}), {"factor": 8},
         {"num_workers": 4, "prefetch_factor": 16}),
        # A batch of 64 MiB: 1 GiB is room for a worker (256 MiB, two batches) and 10 batches beside it.
        (view(2, 2, facts={"memory_available_bytes": 2048 * MIB}, batch_bytes=64 * MIB), {"factor": 8},
         {"num_workers": 4, "prefetch_factor": 3}),
        (view(2, 2, facts={"memory_available_bytes": 640 * MIB}, batch_bytes=64 * MIB), {"factor": 8},
         {"prefetch_factor": 4}),
        (view(4, 8), {"factor": 0.5}, {"num_workers": 2, "prefetch_factor": 4}),
        (view(2, 1), {"factor": 0.25}, {"num_workers": 1}),
        (view(20, 60), {"factor": 0.5}, {"num_workers": 10, "prefetch_factor": 30}),
    ],
)  # fmt: skip
def test_plans(seen, params, expected):
    change = plan(seen, **params)
    assert isinstance(change, Change)
    assert (change.actuator, change.values) == ("trainer", expected)
    assert "->" in change.why


def test_where_free_memory_is_not_known_no_worker_is_added():
    knobs = view(2, 2).knobs
    change = plan(View(knobs, WHO, {"cpu_quota": 8}))
    assert change.values == {"prefetch_factor": 4}
    assert "not known" in change.why


def test_the_ranks_of_a_pod_share_its_cores():
    two = TrainerIdentity("job", "1", ("a", "b"), (0, 1), 2)
    assert plan(view(2, 2, who=two, facts={"cpu_quota": 1.5}), factor=8).values["num_workers"] == 3


@pytest.mark.parametrize(
    ("seen", "params", "reason"),
    [
        (view(8, 16), {}, "at_limit"),
        (view(1, 1), {"factor": 0.5}, "at_limit"),
        (view(who=None), {}, "no_trainer"),
        (View({}, WHO, {}), {}, "knob_missing"),
        (View({"num_workers": Knob("num_workers", 2)}, WHO, {}), {}, "knob_missing"),
    ],
)
def test_it_declines_with_a_reason(seen, params, reason):
    skip = plan(seen, **params)
    assert isinstance(skip, Skip)
    assert skip.reason == reason


@pytest.mark.parametrize(
    "params",
    [{"factor": 0.2}, {"factor": 9}, {"factor": 1}, {"max_workers": 65}, {"max_prefetch": 0}, {"workers": 3}],
)
def test_parameters_outside_their_bounds_are_refused(params):
    with pytest.raises(ValidationError):
        Params(**params)


@given(
    workers=st.integers(0, 64),
    prefetch=st.integers(1, 64),
    factor=st.floats(0.25, 8).filter(lambda f: f != 1),
    most=st.integers(1, 64),
    quota=st.none() | st.floats(0.1, 64),
    memory=st.integers(0, 1 << 36),
    batch=st.none() | st.integers(1, 1 << 30),
)
def test_a_plan_goes_in_the_factors_direction_and_stays_within_every_limit(
    workers, prefetch, factor, most, quota, memory, batch
):
    facts = {"memory_available_bytes": float(memory)}
    if quota is not None:
        facts["cpu_quota"] = quota
    seen = view(workers, prefetch, facts=facts, batch_bytes=batch)
    change = plan(seen, factor=factor, max_workers=most, max_prefetch=most)
    assert change == plan(seen, factor=factor, max_workers=most, max_prefetch=most)
    if isinstance(change, Skip):
        assert change.reason == "at_limit"
        return
    for name, value in change.values.items():
        found = seen.knobs[name].value
        assert value != found
        assert (value > found) == (factor > 1)
        assert value <= max(most, found)
        assert value >= 1 or found == 0
    if quota is not None and factor > 1 and "num_workers" in change.values:
        assert change.values["num_workers"] <= max(1, 4 * quota)
    if factor > 1:
        more_workers, deeper = change.values.get("num_workers", workers), change.values.get("prefetch_factor", prefetch)
        held = (more_workers * deeper - workers * prefetch) * (batch or 0)
        assert (more_workers - workers) * WORKER_BYTES + held <= memory / 2 + 1
