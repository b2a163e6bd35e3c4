"""The incremental face gives what the naive face gives, or something closer to the truth."""

from __future__ import annotations

import math
from dataclasses import dataclass

from exact_windows import at_least_as_good, close, exact, noise
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidecar import promql
from sidecar.model import STALE, Labels
from sidecar.store import Store

FUNCTIONS = (
    "avg_over_time changes count_over_time delta deriv idelta increase irate last_over_time max_over_time "
    "min_over_time present_over_time rate resets stddev_over_time stdvar_over_time sum_over_time"
).split()
WINDOWS = ("3s", "20s", "60s")
CALLS = [f"{name}(m[%s])" for name in FUNCTIONS] + ["quantile_over_time(0.7, m[%s])", "predict_linear(m[%s], 30)"]
CALLS += [
    "stddev_over_time((m * 2)[%s:1s])",
    "sum_over_time(max_over_time(m[5s])[%s:2s])",
    "last_over_time(m[%s:700ms])",
]

plain = st.sampled_from([0.0, 1.0, 2.0, 2.5, 3.0, 7.0, 100.0])
walk = st.integers(-1000, 1000).map(lambda n: n / 8)
large = st.integers(0, 50).map(lambda n: 1e12 + n)
odd = st.sampled_from([math.nan, math.inf, -math.inf, 1e300, -1e300, 1e-300, -0.0])
absent = st.sampled_from([None, None, STALE])


@st.composite
def series_of_values(draw, ticks):
    """One series: mostly of one kind, sometimes with holes or odd values in it."""
    body = draw(st.sampled_from([plain, walk, large]))
    spice = draw(st.sampled_from([None, None, absent, odd, st.one_of(absent, odd)]))
    first = draw(st.integers(0, ticks // 2)) if draw(st.booleans()) else 0
    base = draw(st.lists(body, min_size=8, max_size=8))
    out = [None] * first + [base[(i * 5 + i // 7) % 8] for i in range(first, ticks)]
    if draw(st.booleans()):  # a counter
        total = 0.0
        for i in range(first, ticks):
            total = abs(out[i]) if i % 23 == 22 else total + abs(out[i])
            out[i] = total
    if spice is not None:
        for i in draw(st.lists(st.integers(0, ticks - 1), max_size=12)):
            out[i] = draw(spice)
    return out


@dataclass
class Scenario:
    """Series of two producers with their own sample times, and when to evaluate."""

    values: list
    steps: list
    every: int
    late: list
    offset_ms: int
    exprs: list


@st.composite
def scenarios(draw):
    ticks = draw(st.integers(5, 110))
    values = draw(st.lists(series_of_values(ticks), min_size=1, max_size=4))
    kind = draw(st.sampled_from(["regular", "jitter", "gaps"]))
    pace = {"regular": [1000], "jitter": [990, 1000, 1013], "gaps": [200, 1000, 9000]}[kind]
    steps = [draw(st.sampled_from(pace)) for _ in range(ticks)] if len(pace) > 1 else pace * ticks
    late = draw(st.lists(st.integers(0, ticks - 1), max_size=4))
    offset = draw(st.sampled_from([0, 0, 1500]))
    shift = f" offset {offset}ms" if offset else ""
    chosen = draw(st.lists(st.sampled_from(CALLS), min_size=4, max_size=4, unique=True))
    exprs = [(call % window).replace("]", "]" + shift) for call in chosen for window in WINDOWS]
    exprs += [f"m{shift}", f"timestamp(m{shift})"]
    return Scenario(values, steps, draw(st.sampled_from([1, 1, 3, 17])), late, offset, exprs)


def samples_of(store: Store, labels: Labels, start_ms: int, end_ms: int) -> list[tuple[int, float]]:
    """The samples of one series in a window."""
    query = f"m[{end_ms - start_ms}ms]"
    found = promql.compile([query]).bind(store, "naive").matrix(query, end_ms)
    series = next(s for s in found if labels == tuple(p for p in s.labels if p[0] != "__name__"))
    return list(zip(series.times, series.values, strict=True))


def differences(store, program, moving, reading, t_ms, offset_ms):
    """Every expression whose two faces differ by more than they may."""
    found = []
    for expr in program.exprs:
        ours, theirs = dict(moving.at(expr, t_ms)), dict(reading.at(expr, t_ms))
        if ours.keys() != theirs.keys():
            found.append((expr, t_ms, ours, theirs))
            continue
        for labels, value in ours.items():
            if close(value, theirs[labels]):
                continue
            name, window = expr.split("(")[0], program.longest_range_ms(expr)
            if window and better(store, name, labels, t_ms - offset_ms, window, value, theirs[labels]):
                continue
            found.append((expr, t_ms, labels, value, theirs[labels]))
    return found


def better(store, name, labels, end_ms, window_ms, ours, theirs):
    """Whether `ours` is at least as close to the exact result as `theirs`."""
    samples = samples_of(store, tuple(p for p in labels if p[0] != "__name__"), end_ms - window_ms, end_ms)
    right = exact(name, samples, end_ms - window_ms, end_ms, 30.0)
    return at_least_as_good(ours, theirs, right, name == "stddev_over_time", noise(name, samples))


def run(scenario: Scenario) -> None:
    program = promql.compile(scenario.exprs)
    store = Store()
    moving, reading = program.bind(store, "incremental"), program.bind(store, "naive")
    t_ms = 1_700_000_000_000
    for tick, step in enumerate(scenario.steps):
        t_ms += step
        rows: dict[int, dict[int, float]] = {}
        held: list[tuple[int, int, float]] = []
        for i, values in enumerate(scenario.values):
            if values[tick] is not None:
                handle = store.series("m", {"i": str(i)}, producer=str(i % 2))
                if tick in scenario.late and i < 2:
                    held.append((handle.block, handle.column, values[tick]))
                else:
                    rows.setdefault(handle.block, {})[handle.column] = values[tick]
        for block, row in rows.items():
            store.push(block, t_ms + 7 * block, row)
        if tick % scenario.every == 0:
            found = differences(store, program, moving, reading, t_ms + 20, scenario.offset_ms)
            assert not found, found[:3]
        for block, column, value in held:  # the rest of the same instant, after it was read
            store.push(block, t_ms + 7 * block, {column: value})
    found = differences(store, program, moving, reading, t_ms + 20, scenario.offset_ms)
    assert not found, found[:3]


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(scenarios())
def test_both_faces_agree_over_any_history(scenario):
    """Gaps, staleness, resets, NaN, Inf, late samples, several producers, series that appear: all functions agree."""
    run(scenario)
