"""Windows of hundreds of samples over shapes that real series have, right after many renewals of their state."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sidecar import promql
from sidecar.promql.incremental.finish import USES
from sidecar.promql.incremental.pile import Pile
from sidecar.store import Store

WINDOW, TICKS, SERIES = 400, 1100, 5
PHIS = (0.0, 0.25, 0.5, 0.99, 1.0)

_NOISE = np.random.default_rng(5).normal(0, 1, (TICKS, SERIES))
_TIME = np.arange(TICKS)[:, None] + np.arange(SERIES) * 10

SHAPES = {
    "noise": 60 + 3 * _NOISE,
    "all rise together": _TIME * 1.5 + _NOISE,
    "all fall together": -_TIME * 1.5 + _NOISE,
    "a wave": 100 * np.sin(_TIME / 150) + _NOISE,
    "a step in all at once": np.where(_TIME > 600, 5.0, 500.0) + _NOISE,
    "few distinct values": np.floor(np.abs(_NOISE) * 2),
    "constant": np.full((TICKS, SERIES), 42.1),
    "a far offset": 1e9 + np.round(_NOISE * 4),
    "a counter that restarts": (_TIME * 3 % 701).astype(float),
    "holes": np.where(np.abs(_NOISE) > 1.5, np.nan, 7 + _NOISE),
}


def exprs():
    plain = [n for n in USES if n not in ("quantile_over_time", "predict_linear")]
    out = [f"{name}(m[{WINDOW}s])" for name in plain] + [f"predict_linear(m[{WINDOW}s], 60)"]
    return out + [f"quantile_over_time({phi}, m[{WINDOW}s])" for phi in PHIS]


def close(a, b, scale):
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    return a == b or abs(a - b) <= 1e-9 * max(abs(a), abs(b), scale)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_moving_window_is_the_window(shape):
    """Compared with a fresh look at the ring every few dozen ticks; holes are samples that are missing."""
    values = SHAPES[shape]
    store = Store()
    program = promql.compile(exprs())
    moving, reading = program.bind(store, "incremental"), program.bind(store, "naive")
    handles = [store.series("m", {"i": str(i)}) for i in range(SERIES)]
    for k in range(TICKS):
        row = {h.column: float(v) for h, v in zip(handles, values[k], strict=True) if not math.isnan(v)}
        store.push(handles[0].block, k * 1000, row)
        compare = k > WINDOW and k % 83 == 0
        for expr in program.exprs:
            ours = moving.at(expr, k * 1000)
            if not compare:
                continue
            theirs = dict(reading.at(expr, k * 1000))
            # a slope or variance of almost nothing is rounding: what counts is how it compares with the values
            scale = 1e-6 * float(np.nanmax(np.abs(values))) if shape == "a far offset" else 1e-6
            assert len(ours) == len(theirs)
            for labels, value in ours:
                assert close(value, theirs[labels], scale), (expr, k, value, theirs[labels])


def test_a_pile_keeps_plain_numbers_plain_and_gives_back_what_was_put_in():
    pile = Pile()
    for i in range(50):
        pile.append((i, np.array([i, 2.0 * i])))
        if i % 3 == 2:
            pile.drop_oldest()
    numbers, arrays = pile.all()
    assert pile.plain(0)
    assert not pile.plain(1)
    assert numbers[:, 0].tolist() == list(range(16, 50))
    assert arrays[:, 1].tolist() == [2.0 * i for i in range(16, 50)]


def test_a_pile_whose_series_no_longer_agree_spreads_its_plain_numbers():
    pile = Pile()
    pile.append((7, np.array([1.0, 2.0])))
    pile.append((np.array([1, 0]), np.array([3.0, 4.0])))
    assert not pile.plain(0)
    assert pile.all()[0].tolist() == [[7, 7], [1, 0]]
    pile.drop_youngest()
    assert [component.tolist() for component in pile.only()] == [[7, 7], [1.0, 2.0]]


def test_the_only_partial_of_a_pile_of_one_series_is_still_an_array_where_it_was_one():
    pile = Pile()
    pile.append((3, np.array([1.5])))
    number, array = pile.only()
    assert type(number) is int
    assert array.tolist() == [1.5]


def test_an_emptied_pile_starts_afresh():
    pile = Pile()
    pile.append((1, np.array([1.0])))
    pile.drop_oldest()
    pile.append((np.array([1, 2]), np.array([1.0, 2.0])))
    assert [c.shape for c in pile.all()] == [(1, 2), (1, 2)]
