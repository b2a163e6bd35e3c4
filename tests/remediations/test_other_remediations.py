"""Micro batch for accumulation, loss scale, bf16, webhook, notes: what each plans, within which bounds."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from remediations.annotate_only import AnnotateOnly
from remediations.loss_scale import LossScale
from remediations.micro_batch_tradeoff import MicroBatchTradeoff
from remediations.precision_bf16 import PrecisionBf16
from remediations.webhook import Webhook
from sidecar.model import Alert, AlertState, Change, Skip


@pytest.fixture(scope="module")
def plan(situation):
    def make(plugin, params=None, who=situation.WHO, alert=situation.ALERT, **knobs):
        return plugin().plan(alert, situation.view(who, **knobs), plugin.params.model_validate(params or {}))

    return make


# --- micro batch for accumulation -------------------------------------------------------------------------------------


@given(
    micro=st.integers(1, 1024),
    accumulation=st.integers(1, 256),
    least=st.integers(1, 64),
    most=st.integers(2, 256),
    bounds=st.tuples(st.integers(1, 64), st.integers(1, 256)),
)
def test_half_the_samples_twice_as_often_is_exactly_the_same_step_or_nothing(
    plan, micro, accumulation, least, most, bounds
):
    answer = plan(
        MicroBatchTradeoff,
        {"minimum": least, "max_accumulation": most},
        micro_batch_size=(micro, bounds[0], 2048),
        accumulation_steps=(accumulation, 1, bounds[1]),
    )
    if isinstance(answer, Skip):
        odd, small = micro % 2 == 1, micro // 2 < max(least, bounds[0])
        assert odd or small or accumulation * 2 > min(most, bounds[1])
        assert answer.reason == ("odd_micro_batch" if odd else "at_limit")
        return
    half, twice = answer.values["micro_batch_size"], answer.values["accumulation_steps"]
    assert (half * 2, twice) == (micro, accumulation * 2)
    assert half * twice == micro * accumulation
    assert half >= max(least, bounds[0])
    assert twice <= min(most, bounds[1])


# --- loss scale -------------------------------------------------------------------------------------------------------


@given(
    scale=st.floats(1e-12, 1e9),
    interval=st.integers(1, 1_000_000),
    factor=st.floats(0.01, 1),
    floor=st.floats(1, 65536),
    longer=st.floats(1.5, 64),
    most=st.integers(1, 10_000_000),
)
def test_the_scale_falls_to_its_floor_at_most_and_the_interval_only_grows(
    plan, scale, interval, factor, floor, longer, most
):
    params = {"factor": factor, "floor": floor, "interval_factor": longer, "max_interval": most}
    answer = plan(LossScale, params, loss_scale=(scale, 1e-30, 1e12), loss_scale_growth_interval=interval)
    if isinstance(answer, Skip):
        assert answer.reason == "at_limit"
        return
    new = answer.values.get("loss_scale", scale)
    assert new >= floor
    assert new <= max(scale, floor)
    assert answer.values.get("loss_scale_growth_interval", interval) >= interval
    assert answer.values.get("loss_scale_growth_interval", interval) <= max(most, interval)


def test_a_scale_that_has_collapsed_comes_up_to_the_floor_of_1(plan):
    change = plan(LossScale, loss_scale=(1.5e-5, 1e-30, 1e9), loss_scale_growth_interval=2000)
    assert change.values["loss_scale"] == 1.0


def test_at_the_floor_only_the_interval_grows_and_then_nothing(plan):
    at_floor = plan(LossScale, loss_scale=1.0, loss_scale_growth_interval=2000)
    assert at_floor.values == {"loss_scale_growth_interval": 8000}
    assert plan(LossScale, loss_scale=1.0, loss_scale_growth_interval=20_000).reason == "at_limit"


def test_without_the_knob_of_the_interval_the_scale_alone_is_lowered(plan):
    assert plan(LossScale, loss_scale=1024.0).values == {"loss_scale": 256.0}


@pytest.mark.parametrize("params", [{"floor": 0.5}, {"factor": 2}, {"factor": 1, "interval_factor": 1}])
def test_a_floor_below_1_a_larger_scale_and_no_change_at_all_are_refused(params):
    with pytest.raises(ValidationError):
        LossScale.params.model_validate(params)


# --- precision --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "answer"),
    [("fp16", {"precision": "bf16"}), ("bf16", "at_limit"), ("fp32", "not_fp16"), (None, "knob_missing")],
)
def test_only_fp16_becomes_bf16(plan, now, answer):
    given = plan(PrecisionBf16, **({} if now is None else {"precision": now}))
    assert (given.values if isinstance(given, Change) else given.reason) == answer


# --- all that change the trainer --------------------------------------------------------------------------------------


@pytest.mark.parametrize("plugin", [MicroBatchTradeoff, LossScale, PrecisionBf16])
def test_without_a_trainer_or_its_knobs_nothing_is_planned(plan, plugin):
    assert plan(plugin, who=None).reason == "no_trainer"
    assert plan(plugin).reason == "knob_missing"


# --- webhook ----------------------------------------------------------------------------------------------------------


def test_a_request_says_which_alert_it_is_about(plan):
    alert = Alert("StoreSlow", (("bucket", "a"),), (), AlertState.FIRING, 0.25, 0)
    change = plan(Webhook, {"url": "https://x.example/a", "body": {"tier": 1}}, alert=alert, request=("", None, None))
    assert change.actuator == "http"
    assert json.loads(change.values["request"]) == {
        "url": "https://x.example/a",
        "undo_url": "https://x.example/a",
        "body": {"alert": "StoreSlow", "labels": {"bucket": "a"}, "value": 0.25, "extra": {"tier": 1}},
    }


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_no_json_is_null(plan, value):
    alert = Alert("StoreSlow", (), (), AlertState.FIRING, value, 0)
    change = plan(Webhook, {"url": "https://x.example/a"}, alert=alert, request=("", None, None))
    assert json.loads(change.values["request"])["body"]["value"] is None


def test_where_no_egress_is_allowed_nothing_is_planned(plan):
    assert plan(Webhook, {"url": "https://x.example/a"}).reason == "egress_denied"


@pytest.mark.parametrize(
    "url",
    ["ftp://x/", "x.example", "https://", "https://u:p@x.example/", "https://x.example/a b", "http://x:0/", "http://[::1"],
)  # fmt: skip
def test_what_is_no_address_is_refused(url):
    with pytest.raises(ValidationError, match="not an http"):
        Webhook.params.model_validate({"url": url})


@pytest.mark.parametrize("body", [{"a": "x" * 17_000}, {"a": math.nan}])
def test_a_body_that_is_large_or_no_json_is_refused(body):
    with pytest.raises(ValidationError, match=r"larger than|cannot be written"):
        Webhook.params.model_validate({"url": "https://x.example/", "body": body})


# --- notes ------------------------------------------------------------------------------------------------------------


def test_a_note_is_a_decision_and_never_a_change(plan):
    answer = plan(AnnotateOnly, {"note": "ask #ml-platform"}, who=None)
    assert (answer.reason, answer.detail) == ("annotated", "ask #ml-platform")


def test_while_the_scaler_moves_the_scale_the_plan_stays_the_same(situation):
    plans = []
    for scale in (512.0, 1024.0, 512.0):
        series = {"scale": [(0, 1024.0), (1, 512.0), (2, 1024.0)]}
        seen = situation.view(series=series, loss_scale=scale, loss_scale_growth_interval=100)
        plans.append(LossScale().plan(situation.ALERT, seen, LossScale.params()).values)
    assert plans == [{"loss_scale": 128.0, "loss_scale_growth_interval": 400}] * 3
