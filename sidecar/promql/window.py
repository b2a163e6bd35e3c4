"""Reading the ring directly: the newest sample, and all samples of a time range. The slow face, and the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from sidecar.promql.selection import Part
from sidecar.store import cells
from sidecar.store.cells import F64, I64, Bools

_CELLS = 100_000  # how many are worked on between two pauses: a few milliseconds of the dearest function


@dataclass(frozen=True, slots=True)
class Samples:
    """Every sample of some series in a left-open range: `values[i, j]` of series j at `times[i]`; at least one row."""

    values: F64
    times: I64  # milliseconds
    start_ms: int
    end_ms: int


Result = tuple[F64, Bools | None]
RangeFunction = Callable[[Samples], Result | None]


def newest(part: Part, t_ms: int, lookback_ms: int) -> tuple[F64, I64, Bools]:
    """Per series its newest sample in (t - lookback, t]: value, time, and whether there is one that is not stale."""
    block, size = part.block, len(part.labels)
    high = block.upto(t_ms)
    low = max(block.upto(t_ms - lookback_ms), block.first)
    values = cells.empty(size)
    times = np.zeros(size, np.int64)
    if high <= low or not size:
        return values, times, np.zeros(size, bool)
    values[:] = part.row(high - 1)
    times[:] = block.times[(high - 1) % len(block.times)]
    gaps = np.flatnonzero(cells.missing(values))
    if len(gaps) and high - low > 1:
        older = np.ascontiguousarray(part.rows(low, high - 1)[::-1, gaps])
        written = ~cells.missing(older)
        back = written.argmax(axis=0)
        found = written[back, np.arange(len(gaps))]
        values[gaps[found]] = older[back[found], np.flatnonzero(found)]
        times[gaps[found]] = block.times[(high - 2 - back[found]) % len(block.times)]
    return values, times, ~cells.absent(values)


def reach(part: Part, start_ms: int, end_ms: int) -> tuple[int, int]:
    """The slots [low, high) in (start, end]; high is never below low."""
    block = part.block
    low = max(block.upto(start_ms), block.first)
    return low, max(low, block.upto(end_ms))


def between(part: Part, start_ms: int, end_ms: int) -> tuple[F64, I64]:
    """The cells [slot, series] of all slots in (start, end] and the slots' times; possibly views."""
    low, high = reach(part, start_ms, end_ms)
    return np.ascontiguousarray(part.rows(low, high)), part.block.times_of(low, high)


def over_range(
    part: Part, start_ms: int, end_ms: int, function: RangeFunction, glance: Callable[[int], None]
) -> tuple[F64, Bools]:
    """`function` over the samples of each series in (start, end]; stale markers are no samples.

    Many series are taken some at a time: `glance` is told how many cells come next, and may pause or raise.
    """
    width = len(part.labels)
    low, high = reach(part, start_ms, end_ms)
    some = max(1, _CELLS // max(1, high - low))
    if width <= some:
        glance(width * (high - low))
        return over_matrix(*between(part, start_ms, end_ms), start_ms, end_ms, function)
    values, mask = np.full(width, np.nan), np.zeros(width, bool)
    for left in range(0, width, some):
        right = min(left + some, width)
        glance((right - left) * (high - low))
        low, high = reach(part, start_ms, end_ms)  # the ring may have moved on
        matrix = np.ascontiguousarray(part.rows(low, high)[:, left:right])
        times = part.block.times_of(low, high)
        values[left:right], mask[left:right] = over_matrix(matrix, times, start_ms, end_ms, function)
    return values, mask


def over_matrix(matrix: F64, times: I64, start_ms: int, end_ms: int, function: RangeFunction) -> tuple[F64, Bools]:
    """`function` over the columns of `matrix`; cells that hold no sample are left out."""
    size = matrix.shape[1]
    out = np.full(size, np.nan)
    mask = np.zeros(size, bool)
    if not len(matrix) or not size:
        return out, mask
    for rows, columns in _patterns(~cells.absent(matrix)):
        picked = matrix if rows is None else matrix[np.ix_(rows, columns)]
        when = times if rows is None else times[rows]
        if not len(when):
            continue
        result = function(Samples(picked, when, start_ms, end_ms))
        if result is not None:
            out[columns] = result[0]
            mask[columns] = True if result[1] is None else result[1]
    return out, mask


def _patterns(present: Bools) -> Iterator[tuple[I64 | None, I64]]:
    """Groups the columns by which rows they have: (rows, columns), rows None for all of everything."""
    if present.all():
        yield None, np.arange(present.shape[1])
        return
    groups: dict[bytes, list[int]] = {}
    packed = np.ascontiguousarray(np.packbits(present, axis=0).T)
    for column, bits in enumerate(packed):
        groups.setdefault(bits.tobytes(), []).append(column)
    for columns in groups.values():
        yield np.flatnonzero(present[:, columns[0]]), np.array(columns, np.int64)
