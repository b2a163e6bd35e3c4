"""From window state to results: the closed list of functions that move with the window."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sidecar.promql.incremental.edges import Count, Resets
from sidecar.promql.incremental.folds import Extreme, Line, Moments, Total
from sidecar.promql.incremental.panes import Folded
from sidecar.promql.incremental.pile import Partial
from sidecar.promql.incremental.ranks import Ranks
from sidecar.promql.incremental.track import Accumulator, Track
from sidecar.promql.rangefuncs import extrapolation, range_function
from sidecar.promql.window import RangeFunction, over_matrix
from sidecar.store.cells import F64, Bools

MAKERS: dict[str, Callable[[Track], Accumulator]] = {
    "changes": lambda track: Count(track, resets=False),
    "line": lambda track: Folded(track, Line(), stagger=1),
    "lost": Resets,
    "max": lambda track: Folded(track, Extreme(largest=True), stagger=2),
    "min": lambda track: Folded(track, Extreme(largest=False), stagger=7),
    "moments": lambda track: Folded(track, Moments(), stagger=8),
    "resets": lambda track: Count(track, resets=True),
    "total": lambda track: Folded(track, Total(), stagger=13),
}
"""Window state by kind; `ranks:φ` is made for its φ."""


def make(kind: str, track: Track) -> Accumulator:
    """The named window state."""
    if kind.startswith("ranks:"):
        return Ranks(track, float(kind.removeprefix("ranks:")))
    return MAKERS[kind](track)


USES: dict[str, str] = {
    "avg_over_time": "total",
    "changes": "changes",
    "count_over_time": "",
    "delta": "",
    "deriv": "line",
    "idelta": "",
    "increase": "lost",
    "irate": "",
    "last_over_time": "",
    "max_over_time": "max",
    "min_over_time": "min",
    "predict_linear": "line",
    "present_over_time": "",
    "quantile_over_time": "ranks:",
    "rate": "lost",
    "resets": "resets",
    "stddev_over_time": "moments",
    "stdvar_over_time": "moments",
    "sum_over_time": "total",
}
"""Which state each function reads; every other function is evaluated from the ring."""

Finished = tuple[F64, Bools | None]


def finish(name: str, track: Track, start_ms: int, end_ms: int, t_ms: int, parameter: float) -> Finished:
    """The function's values and which series have one, None for all. The window is (start, end]."""
    least = 2 if name in _NEED_TWO else 1
    mask = track.having(least)
    if track.hi - track.lo < least:
        return np.full(track.width, np.nan), np.zeros(track.width, bool)
    values = _FINISHERS[name](track, name, start_ms, end_ms, t_ms, parameter)
    if USES[name] in _FOLDED_SUMS:
        strange = ~np.isfinite(values)
        if strange.any():
            if mask is not None:
                strange &= mask
            function = range_function(name, t_ms, parameter)
            for j in np.flatnonzero(strange).tolist():
                values[j] = _mended(track, start_ms, end_ms, function, j, values[j] if _adds(name) else np.nan)
    return values, mask


_FEW = 16
_FOLDED_SUMS = frozenset({"line", "moments", "total"})
_NEED_TWO = frozenset({"delta", "deriv", "idelta", "increase", "irate", "predict_linear", "rate"})


def _extrapolated(track: Track, name: str, start: int, end: int, t: int, p: float) -> F64:
    first, last = track.values_at(track.first_slot()), track.values_at(track.last_slot())
    counter = name != "delta"
    if counter:
        state = track.accumulators["lost"]
        assert isinstance(state, Resets)
        change = state.increase(first, last)
    else:
        change = last - first
    factor = extrapolation(
        change,
        first,
        track.count(),
        track.ms_at(track.first_slot()),
        track.ms_at(track.last_slot()),
        start,
        end,
        counter,
    )
    if name == "rate":
        factor = factor / ((end - start) / 1000)
    return change * factor


def _instant_change(track: Track, name: str, start: int, end: int, t: int, p: float) -> F64:
    before_slot, last_slot = track.before_slot(), track.last_slot()
    before, last = track.values_at(before_slot), track.values_at(last_slot)
    if name == "idelta":
        return last - before
    change = np.where(last < before, last, last - before)
    out: F64 = change / ((track.ms_at(last_slot) - track.ms_at(before_slot)) / 1000)
    return out


def _count(track: Track, name: str, start: int, end: int, t: int, p: float) -> F64:
    if name == "present_over_time":
        return np.ones(track.width)
    number = track.count()
    return np.full(track.width, float(number)) if isinstance(number, int) else number.astype(np.float64)


def _last(track: Track, name: str, start: int, end: int, t: int, p: float) -> F64:
    return np.array(track.values_at(track.last_slot()))


def _pairs(track: Track, name: str, start: int, end: int, t: int, p: float) -> F64:
    state = track.accumulators[name]
    assert isinstance(state, Count)
    return state.number


def _quantile(track: Track, name: str, start: int, end: int, t: int, p: float) -> F64:
    state = track.accumulators[f"ranks:{p!r}"]
    assert isinstance(state, Ranks)
    return state.quantile()


def _folded(track: Track, kind: str) -> Partial:
    state = track.accumulators[kind]
    assert isinstance(state, Folded)
    value = state.value()
    assert value is not None
    return value


def _extreme(track: Track, name: str, start: int, end: int, t: int, p: float) -> F64:
    out: F64 = _folded(track, name[:3])[0]
    return out


def _sum(track: Track, name: str, start: int, end: int, t: int, p: float) -> F64:
    if track.hi - track.lo <= _FEW:
        # adding up in Prometheus's own order costs no more, and is wrong in the same last digits
        rows = np.ascontiguousarray(track.part.rows(track.lo, track.hi))
        times = track.part.block.times_of(track.lo, track.hi)
        return over_matrix(rows, times, start, end, range_function(name, t, p))[0]
    total, rest = _folded(track, "total")
    # an infinite or undefined sum has no meaningful compensation
    rest = np.where(np.isfinite(total), rest, 0.0)
    number = 1 if name == "sum_over_time" else track.count()
    out: F64 = total / number + rest / number
    return out


def _spread(track: Track, name: str, start: int, end: int, t: int, p: float) -> F64:
    n, _, _, spread = _folded(track, "moments")
    variance: F64 = spread / n
    return np.sqrt(variance) if name == "stddev_over_time" else variance


def _line(track: Track, name: str, start: int, end: int, t: int, p: float) -> F64:
    _, base, x, sxx, anchor, mean, sxy = _folded(track, "line")
    slope: F64 = sxy / sxx
    if name == "predict_linear":
        slope = anchor + (mean + slope * ((t - base) / 1000 - x)) + slope * p
    return slope


def _adds(name: str) -> bool:
    return USES[name] == "total"


def _mended(track: Track, start_ms: int, end_ms: int, function: RangeFunction, series: int, odd: float) -> float:
    """What a series is worth whose state is not finite: `odd` when an infinite or NaN sample is inside.

    Else it has overflowed on the way, and is read from the ring: the one case in which a tick reads a whole window.
    """
    if track.odd_sample_inside(series):
        return odd
    rows = np.ascontiguousarray(track.part.rows(track.lo, track.hi)[:, series : series + 1])
    times = track.part.block.times_of(track.lo, track.hi)
    return float(over_matrix(rows, times, start_ms, end_ms, function)[0][0])


_FINISHERS: dict[str, Callable[[Track, str, int, int, int, float], F64]] = {
    "avg_over_time": _sum,
    "changes": _pairs,
    "count_over_time": _count,
    "delta": _extrapolated,
    "deriv": _line,
    "idelta": _instant_change,
    "increase": _extrapolated,
    "irate": _instant_change,
    "last_over_time": _last,
    "max_over_time": _extreme,
    "min_over_time": _extreme,
    "predict_linear": _line,
    "present_over_time": _count,
    "quantile_over_time": _quantile,
    "rate": _extrapolated,
    "resets": _pairs,
    "stddev_over_time": _spread,
    "stdvar_over_time": _spread,
    "sum_over_time": _sum,
}
