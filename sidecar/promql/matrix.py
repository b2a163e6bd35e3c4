"""Range vectors as results: the samples themselves, for whoever asks for `x[5m]` or a subquery on its own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sidecar.model import Labels
from sidecar.promql.operator import Context, Operator
from sidecar.promql.plan import Range, Subquery
from sidecar.promql.select import moment
from sidecar.promql.selection import Selection
from sidecar.promql.subquery import EvaluatedSteps, stacked, steps_of
from sidecar.promql.window import between, reach
from sidecar.store import cells
from sidecar.store.cells import F64, I64


@dataclass(frozen=True, slots=True)
class Series:
    """The samples of one series: times in milliseconds, oldest first, and values."""

    labels: Labels
    times: tuple[int, ...]
    values: tuple[float, ...]


def samples(context: Context, node: Range, selection: Selection, t_ms: int) -> tuple[Series, ...]:
    """`selector[range]` at a time; series without samples are left out."""
    end_ms = moment(context, t_ms, node.selector.offset_ms, node.selector.at)
    start_ms = end_ms - node.range_ms
    selection.refresh()
    held = context.held()
    found = _all_series(context, selection, start_ms, end_ms)
    while any(part.overtaken() for part in selection.parts):  # by series made in a pause
        context.release(held)
        selection.refresh()
        found = _all_series(context, selection, start_ms, end_ms)
    return tuple(sorted(found, key=lambda series: series.labels))


def _all_series(context: Context, selection: Selection, start_ms: int, end_ms: int) -> list[Series]:
    found: list[Series] = []
    for part in selection.parts:
        low, high = reach(part, start_ms, end_ms)
        context.charge((high - low) * len(part.labels))
        found += _series(part.labels, *between(part, start_ms, end_ms))
    return found


def subquery_samples(context: Context, node: Subquery, inner: Operator, t_ms: int) -> tuple[Series, ...]:
    """`expr[range:step]` at a time; series without samples are left out."""
    times = steps_of(context, node, t_ms)[0]
    frame, matrix = stacked(EvaluatedSteps(context, inner).at(times))
    return tuple(sorted(_series(list(frame.labels), matrix, times), key=lambda series: series.labels))


def _series(labels: list[Labels], matrix: F64, times: I64) -> list[Series]:
    there = ~cells.absent(np.ascontiguousarray(matrix))
    return [
        Series(labels[j], tuple(times[there[:, j]].tolist()), tuple(matrix[there[:, j], j].tolist()))
        for j in range(matrix.shape[1])
        if there[:, j].any()
    ]
