"""Subqueries: an expression evaluated at absolute multiples of a step, and a function over the results."""

from __future__ import annotations

import numpy as np

from sidecar.model import Labels
from sidecar.promql.frame import Frame, Vec
from sidecar.promql.operator import Context, Operator, Value, checked, vector
from sidecar.promql.plan import Subquery
from sidecar.promql.rangefuncs import range_function
from sidecar.promql.select import moment, parameter_of
from sidecar.promql.window import over_matrix
from sidecar.store import cells
from sidecar.store.cells import F64, I64

_STEP = 32  # samples that take as much memory as a step itself does, whatever its result


class OverSubquery(Operator):
    """A range function over `expr[range:step]`."""

    def __init__(
        self, context: Context, name: str, node: Subquery, inner: Operator, parameter: Operator | None
    ) -> None:
        super().__init__(context, () if parameter is None else (parameter,))
        self._name, self._node, self._inner = name, node, inner

    def compute(self, t_ms: int, inputs: tuple[Value, ...]) -> Value:
        held = self.context.held()
        times, start_ms, end_ms = steps_of(self.context, self._node, t_ms)
        frame, matrix = stacked(self.context, self._inner, times)
        self.context.release(held)
        function = range_function(self._name, t_ms, parameter_of(inputs))
        values, mask = over_matrix(matrix, times, start_ms, end_ms, function)
        if self._name != "last_over_time":
            frame = frame.nameless()
        return checked(Vec(frame, values, None if mask.all() else mask))


def steps_of(context: Context, node: Subquery, t_ms: int) -> tuple[I64, int, int]:
    """The times at which a subquery evaluates its expression, and the window they lie in."""
    end_ms = moment(context, t_ms, node.offset_ms, node.at)
    start_ms = end_ms - node.range_ms
    step = node.step_ms or context.interval_ms
    first = step * (start_ms // step + 1)
    context.charge(max(0, end_ms - first) // step * _STEP)
    return np.arange(first, end_ms + 1, step, dtype=np.int64), start_ms, end_ms


def stacked(context: Context, inner: Operator, times: I64) -> tuple[Frame, F64]:
    """The expression's values at each time as rows over all label sets that occur; cells without one are missing."""
    steps = []
    held = context.held()
    for t in times.tolist():
        steps.append(vector(inner.at(t)))
        held += len(steps[-1].frame)
        context.release(held)  # of what the step needed, only its result stays
        context.glance(0)
    if steps and all(step.frame is steps[0].frame for step in steps) and not steps[0].frame.has_twins():
        matrix = np.array([step.values for step in steps])
        for row, step in zip(matrix, steps, strict=True):
            if step.mask is not None:
                row[~step.mask] = cells.MISSING
        return steps[0].frame, matrix
    columns: dict[Labels, int] = {}
    entries: list[tuple[int, int, float]] = []
    for i, step in enumerate(steps):
        for labels, value in step.items():
            entries.append((i, columns.setdefault(labels, len(columns)), value))
    matrix = cells.empty((len(steps), len(columns)))
    for i, j, value in entries:
        matrix[i, j] = value
    return Frame(tuple(columns)), matrix
