"""Selectors as operators: the newest sample of each series, or a function over each series' recent samples."""

from __future__ import annotations

import numpy as np

from sidecar.promql.frame import Vec
from sidecar.promql.operator import Context, Operator, Value, checked, scalar
from sidecar.promql.plan import At, Range, Selector
from sidecar.promql.rangefuncs import range_function
from sidecar.promql.selection import Selection
from sidecar.promql.window import newest, over_range


def moment(context: Context, t_ms: int, offset_ms: int, at: At | None) -> int:
    """The time a selector looks at when it is evaluated at `t_ms`."""
    if at is None:
        return t_ms - offset_ms
    if at == "start":
        return context.start_ms - offset_ms
    return (context.end_ms if at == "end" else at) - offset_ms


class Instant(Operator):
    """An instant selector. With `times`, the samples' timestamps in seconds instead of their values."""

    def __init__(self, context: Context, selector: Selector, selection: Selection, times: bool = False) -> None:
        super().__init__(context)
        self._selector, self._selection, self._times = selector, selection, times
        self._key: tuple[int, int] | None = None

    def compute(self, t_ms: int, inputs: tuple[Value, ...]) -> Value:
        t_ms = moment(self.context, t_ms, self._selector.offset_ms, self._selector.at)
        self.context.glance(len(self._selection.frame))
        frame = self._selection.refresh()
        found = [newest(part, t_ms, self.context.lookback_ms) for part in self._selection.parts]
        if not found:
            return Vec(frame, np.zeros(0))
        values, times, mask = found[0] if len(found) == 1 else (np.concatenate(x) for x in zip(*found, strict=True))
        if self._times:
            return checked(Vec(frame.nameless(), times / 1000, None if mask.all() else mask))
        return Vec(frame, values, None if mask.all() else mask)


class OverRange(Operator):
    """A function over the samples of a plain range selector, read from the ring each time."""

    def __init__(
        self,
        context: Context,
        name: str,
        node: Range,
        selection: Selection,
        parameters: tuple[Operator, ...] = (),
    ) -> None:
        super().__init__(context, parameters)
        self._name, self._node, self._selection = name, node, selection

    def compute(self, t_ms: int, inputs: tuple[Value, ...]) -> Value:
        selector = self._node.selector
        end_ms = moment(self.context, t_ms, selector.offset_ms, selector.at)
        start_ms = end_ms - self._node.range_ms
        function = range_function(self._name, t_ms, *map(scalar, inputs))
        selection, glance = self._selection, self.context.glance
        frame = selection.refresh()
        results = [over_range(part, start_ms, end_ms, function, glance) for part in selection.parts]
        while any(part.overtaken() for part in selection.parts):  # by series made in a pause
            frame = selection.refresh()
            results = [over_range(part, start_ms, end_ms, function, glance) for part in selection.parts]
        if self._name != "last_over_time":
            frame = frame.nameless()
        if not results:
            return Vec(frame, np.zeros(0))
        values = np.concatenate([r[0] for r in results]) if len(results) > 1 else results[0][0]
        mask = np.concatenate([r[1] for r in results]) if len(results) > 1 else results[0][1]
        return checked(Vec(frame, values, None if mask.all() else mask))


def parameter_of(inputs: tuple[Value, ...]) -> float:
    """The scalar parameter of a range function, NaN where it has none."""
    return scalar(inputs[0]) if inputs else float("nan")
