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


class OverSubquery(Operator):
    """A range function over `expr[range:step]`."""

    def __init__(
        self, context: Context, name: str, node: Subquery, inner: Operator, parameter: Operator | None
    ) -> None:
        super().__init__(context, () if parameter is None else (parameter,))
        self._name = "present_over_time" if name == "absent_over_time" else name
        self._node, self._inner = node, inner

    def compute(self, t_ms: int, inputs: tuple[Value, ...]) -> Value:
        end_ms = moment(self.context, t_ms, self._node.offset_ms, self._node.at)
        start_ms = end_ms - self._node.range_ms
        step = self._node.step_ms or self.context.interval_ms
        times = np.arange(step * (start_ms // step + 1), end_ms + 1, step, dtype=np.int64)
        frame, matrix = self._results(times)
        values, mask = over_matrix(
            matrix, times, start_ms, end_ms, range_function(self._name, t_ms, parameter_of(inputs))
        )
        if self._name != "last_over_time":
            frame = frame.nameless()
        return checked(Vec(frame, values, None if mask.all() else mask))

    def _results(self, times: I64) -> tuple[Frame, F64]:
        steps = []
        for t in times.tolist():
            steps.append(vector(self._inner.at(t)))
            self.context.charge(len(steps[-1].frame))
        return stacked(steps)


def stacked(steps: list[Vec]) -> tuple[Frame, F64]:
    """The vectors as rows of one matrix over all label sets that occur; cells without a value are missing."""
    if steps and all(step.frame is steps[0].frame for step in steps) and not steps[0].frame.has_twins():
        matrix = np.array([step.values for step in steps])
        for row, step in zip(matrix, steps, strict=True):
            if step.mask is not None:
                row[~step.mask] = cells.MISSING
        return steps[0].frame, matrix.reshape(len(steps), len(steps[0].frame))
    columns: dict[Labels, int] = {}
    entries: list[tuple[int, int, float]] = []
    for i, step in enumerate(steps):
        for labels, value in step.items():
            entries.append((i, columns.setdefault(labels, len(columns)), value))
    matrix = cells.empty((len(steps), len(columns)))
    for i, j, value in entries:
        matrix[i, j] = value
    return Frame(tuple(columns)), matrix
