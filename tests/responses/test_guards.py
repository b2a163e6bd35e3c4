"""A loss or a gradient norm that rises while a change is on trial breaks it off, whatever the speed says."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remediations.dataloader_prefetch import DataloaderPrefetch
from sidecar.errors import ConfigError
from sidecar.responses.loader import load_responses
from sidecar.responses.response import Guard
from sidecar.responses.statistics import RECENT, level_of
from sidecar.responses.store_measure import StoreMeasure
from sidecar.store import Store
from sidecar.yamlfile import Document

LOSS = "max(loss)"

finite = st.floats(-1e6, 1e6)


# --- the statistic ----------------------------------------------------------------------------------------------------


def test_z_counts_in_standard_deviations_of_normal_noise():
    rng = random.Random(7)
    level = level_of([rng.gauss(10, 2) for _ in range(2001)])
    assert abs(level.median - 10) < 0.2
    assert abs(level.scale - 2) < 0.15
    assert abs(level.z([14.0] * RECENT) - 2) < 0.3


def test_one_wild_value_moves_neither_baseline_nor_verdict():
    rng = random.Random(8)
    values = [rng.gauss(1, 0.01) for _ in range(180)]
    calm, wild = level_of(values), level_of([*values[:-1], 1e9])
    assert abs(wild.median - calm.median) < 0.001
    assert wild.scale < 2 * calm.scale
    assert calm.z([1.0, 1.0, 1e9, 1.0, 1e9]) < 3


def test_a_value_that_stood_still_may_move_a_little():
    level = level_of([2.0] * 50)
    assert level.z([2.1] * RECENT) == pytest.approx(5)
    assert level.z([2.0] * RECENT) == 0
    assert level_of([0.0] * 50).z([1e-9] * RECENT) > 6


def test_too_few_values_say_nothing_and_one_that_is_not_finite_says_it_all():
    level = level_of([1.0, 1.1, 0.9])
    assert level.z([5.0] * (RECENT - 1)) is None
    assert level.z([math.nan]) == math.inf
    assert level.z([1.0] * RECENT + [math.inf]) == math.inf
    assert level_of([1.0, math.nan]) is None


@given(values=st.lists(finite, min_size=1, max_size=60), shift=finite, recent=st.lists(finite, min_size=5, max_size=9))
def test_falling_is_never_worse_than_staying(values, shift, recent):
    level = level_of(values)
    lower = [v - abs(shift) for v in recent]
    assert level.z(lower) <= level.z(recent)


def test_a_store_gives_the_largest_element_at_each_sample():
    store = Store()
    ranks = [store.series("loss", {"rank": str(r)}) for r in range(2)]
    for t, pair in ((1000, (1.0, 2.0)), (2000, (3.0, math.nan)), (3000, (5.0, 4.0))):
        store.push(ranks[0].block, t, {h.column: v for h, v in zip(ranks, pair, strict=True)})
    found = StoreMeasure(store).values("loss", 0, 3000)
    assert [t for t, _ in found] == [1000, 2000, 3000]
    assert (found[0][1], found[2][1]) == (2.0, 5.0)
    assert math.isnan(found[1][1])
    assert StoreMeasure(store).values("loss > 100", 0, 3000) == []


# --- an experiment ----------------------------------------------------------------------------------------------------


@pytest.fixture
def training(world, kit):
    """A world with a loss: `training(after)` is what it is once four workers feed the trainer."""
    verify = replace(kit.response().verify, guards=(Guard(LOSS, 6.0),))
    world.responses = [kit.response(verify=verify)]
    rng = random.Random(9)
    second = world.pass_second

    def with_loss(after):
        def passes():
            second()
            mean = after if world.trainer.values()["workers"] == 4 else 2.0
            world.measure.losses.append((world.now, rng.gauss(mean, 0.02)))

        world.pass_second = passes
        world.start()
        world.fire()
        world.run(100, lambda: world.results() != [])
        return world

    return with_loss


@pytest.mark.parametrize("after", [2.0, 1.5, 2.05])
def test_a_loss_that_stays_or_falls_lets_the_speed_decide(training, after):
    assert training(after).verdicts() == [("helped", "gain_is_real")]


@pytest.mark.parametrize("after", [2.5, 1e9, math.inf])
def test_a_loss_that_rises_takes_the_change_back_at_once(training, after):
    world = training(after)
    assert world.verdicts() == [("inconclusive", "unsteady")]
    assert world.results() == ["rolled_back"]
    (verdict,) = world.kinds("verdict")
    assert verdict["detail"].startswith("max(loss): z = ")
    assert "6 allowed; it was 2.0" in verdict["detail"] or "6 allowed; it was 1.9" in verdict["detail"]
    applied = next(d["step"] for d in world.kinds("experiment") if d["phase"] == "settling")
    assert world.now // 1000 - applied < 10, "long before the window is full"


def test_a_loss_that_is_not_finite_before_the_change_holds_it_back(training, world):
    training(2.0)
    world.trainer.set_by_hand("workers", 2)
    world.clock.advance(400_000)
    world.fire()
    for _ in range(60):
        world.pass_second()
        world.measure.losses[-1] = (world.now, math.nan)
        world.responder.tick(world.now)
    assert [message for message, _ in world.trainer.sent].count("apply") == 1
    assert world.kinds("waiting")[-1]["reason"] == "guard_broken"


def test_a_guard_without_values_holds_the_beginning_back(world, kit):
    verify = replace(kit.response().verify, guards=(Guard(LOSS, 6.0),))
    world.responses = [kit.response(verify=verify)]
    world.start()
    world.fire()
    world.run(60)
    assert world.trainer.sent == []
    assert [d["reason"] for d in world.kinds("waiting")] == ["thin_baseline"]
    world.measure.unseen = True
    world.run(5)
    assert world.kinds("waiting")[-1]["reason"] == "guard_absent"


def test_guarded_expressions_are_evaluated_and_kept_for_as_long_as_a_baseline(world, kit):
    verify = replace(kit.response().verify, guards=(Guard(LOSS, 6.0),))
    world.responses = [kit.response(verify=verify)]
    responder = world.start()
    assert LOSS in responder.exprs()
    assert responder.spans()[LOSS] == responder.spans()[kit.EXPR]


# --- a file -----------------------------------------------------------------------------------------------------------

FILE = """\
responses:
- name: a
  match: [alertname=X]
  remediation: dataloader_prefetch
  verify:
    expr: sum(rate(x[10s]))
    goal: increase
    guards:
    - {expr: max(loss), z: 8}
    - expr: max(norm)
"""


def load(text):
    return load_responses(Document("r.yaml", text), {"dataloader_prefetch": DataloaderPrefetch()}).responses


def test_guards_are_read_as_written():
    (one,) = load(FILE)
    assert one.verify.guards == (Guard("max(loss)", 8.0), Guard("max(norm)", 6.0))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("z: 8", "z: 1", "9:28: error: responses.0.verify.guards.0.z: must be at least 3"),
        ("z: 8", "zz: 8", "unknown key 'zz' (did you mean z?)"),
        ("max(norm)", "max(norm", "10:13: error: "),
        ("max(norm)", "norm[5m]", "must give an instant vector"),
    ],
)
def test_a_mistake_in_a_guard_has_its_place(old, new, message):
    with pytest.raises(ConfigError) as caught:
        load(FILE.replace(old, new))
    assert message in str(caught.value)
