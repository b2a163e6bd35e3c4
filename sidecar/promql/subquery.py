"""Subqueries: an expression evaluated at absolute multiples of a step, and a function over the results."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from sidecar.model import Labels
from sidecar.promql.frame import Frame, Vec
from sidecar.promql.operator import Context, Operator, Value, checked, scalar, vector
from sidecar.promql.plan import Subquery
from sidecar.promql.rangefuncs import range_function
from sidecar.promql.select import moment
from sidecar.promql.window import over_matrix
from sidecar.store import cells
from sidecar.store.cells import F64, I64

_STEP = 32  # samples that take as much memory as a step itself does, whatever its result


class Steps(Protocol):
    """Where the values of a subquery's expression come from."""

    def at(self, times: I64) -> list[Vec]:
        """The value at each of the times, which ascend."""
        ...


class EvaluatedSteps:
    """Every step evaluated each time it is asked for."""

    def __init__(self, context: Context, inner: Operator) -> None:
        self._context, self._inner = context, inner

    def at(self, times: I64) -> list[Vec]:
        values, context = [], self._context
        held = context.held()
        for t in times.tolist():
            values.append(vector(self._inner.at(t)))
            held += len(values[-1].frame)
            context.release(held)  # of what the step needed, only its result stays
            context.glance(0)
        return values


class OverSubquery(Operator):
    """A range function over `expr[range:step]`."""

    def __init__(
        self, context: Context, name: str, node: Subquery, steps: Steps, parameters: tuple[Operator, ...]
    ) -> None:
        super().__init__(context, parameters)
        self._name, self._node, self._steps = name, node, steps

    def compute(self, t_ms: int, inputs: tuple[Value, ...]) -> Value:
        held = self.context.held()
        times, start_ms, end_ms = steps_of(self.context, self._node, t_ms)
        frame, matrix = stacked(self._steps.at(times))
        self.context.release(held)
        function = range_function(self._name, t_ms, *map(scalar, inputs))
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


def stacked(steps: list[Vec]) -> tuple[Frame, F64]:
    """The vectors as rows over all label sets that occur; cells without a value are missing.

    Steps mostly share a frame: label sets are looked up once a frame, numbers are copied a row at a time.
    """
    columns: dict[Labels, int] = {}
    places: dict[Frame, I64] = {}
    for step in steps:
        if step.frame not in places:
            found = [columns.setdefault(labels, len(columns)) for labels in step.frame.labels]
            places[step.frame] = np.array(found, np.int64)
    matrix = cells.empty((len(steps), len(columns)))
    for row, step in zip(matrix, steps, strict=True):
        at = places[step.frame]
        if step.mask is None:
            row[at] = step.values
        else:
            row[at[step.mask]] = step.values[step.mask]
    frame = steps[0].frame if len(places) == 1 and not steps[0].frame.has_twins() else Frame(tuple(columns))
    return frame, matrix
