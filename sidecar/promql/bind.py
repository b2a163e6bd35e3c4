"""From plan to operators: each node of the plan becomes one operator, shared by all expressions that contain it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

from sidecar.promql import calendar, calls
from sidecar.promql.aggregate import Folded
from sidecar.promql.binary import Scalars, SetOperator, VectorScalar, VectorVector
from sidecar.promql.functions import NATIVE_HISTOGRAM, RANGE_FUNCTIONS
from sidecar.promql.histogram import OfHistograms
from sidecar.promql.incremental.finish import USES
from sidecar.promql.incremental.sliding import SlidingInstant, SlidingRange, Windows
from sidecar.promql.incremental.steps import RememberedSteps, lead_ms
from sidecar.promql.labelfuncs import Relabelled, joiner, replacer
from sidecar.promql.operator import Context, Operator
from sidecar.promql.plan import (
    SET_OPERATORS,
    Aggregate,
    Binary,
    Call,
    Matcher,
    Negate,
    Node,
    Number,
    Range,
    Selector,
    Subquery,
    Text,
    kind,
    walk,
)
from sidecar.promql.ranked import CountValues, Ranked
from sidecar.promql.select import Instant, OverRange
from sidecar.promql.selection import Selection
from sidecar.promql.subquery import EvaluatedSteps, OverSubquery, Steps
from sidecar.store.cells import F64

Face = Literal["naive", "incremental"]


class Binder:
    """Makes operators of nodes; equal nodes get the same operator."""

    def __init__(self, context: Context, face: Face) -> None:
        self._context, self._face = context, face
        self._operators: dict[Node, Operator] = {}
        self._selections: dict[tuple[str, tuple[Matcher, ...]], Selection] = {}
        self._windows: dict[Range, Windows] = {}

    def operator(self, node: Node) -> Operator:
        """The operator of a node. Raises QueryError for constants that cannot work, such as a bad regex."""
        found = self._operators.get(node)
        if found is None:
            found = self._operators[node] = self._make(node)
            if self._context.watched:
                self._context.glance(0)
        return found

    def selection(self, selector: Selector) -> Selection:
        """The selection of a selector, whatever its offset."""
        key = (selector.metric, selector.matchers)
        if key not in self._selections:
            self._selections[key] = Selection.of(self._context.store, selector)
        return self._selections[key]

    def _make(self, node: Node) -> Operator:
        context = self._context
        match node:
            case Number(value=number):
                return calls.Constant(context, number)
            case Text(value=text):
                return calls.Constant(context, text)
            case Selector():
                return self._instant(node)
            case Negate(expr):
                if kind(expr) == "scalar":
                    return calls.NegatedScalar(context, (self.operator(expr),))
                return calls.Negated(context, self.operator(expr))
            case Binary():
                return self._binary(node)
            case Aggregate():
                return self._aggregate(node)
            case Call(name=name) if name in RANGE_FUNCTIONS:
                return self._over_range(node)
            case Call():
                return self._call(node)
            case Range() | Subquery():
                raise AssertionError("a range is bound by the function over it")

    def _binary(self, node: Binary) -> Operator:
        left, right = self.operator(node.left), self.operator(node.right)
        scalars = kind(node.left) == "scalar", kind(node.right) == "scalar"
        if all(scalars):
            return Scalars(self._context, node.op, left, right)
        if any(scalars):
            return VectorScalar(self._context, node, left, right, swapped=scalars[0])
        if node.op in SET_OPERATORS:
            return SetOperator(self._context, node, left, right)
        return VectorVector(self._context, node, left, right)

    def _aggregate(self, node: Aggregate) -> Operator:
        child = self.operator(node.expr)
        param = None if node.param is None else self.operator(node.param)
        if param is not None and node.op in ("topk", "bottomk"):
            return Ranked(self._context, node, child, param)
        if param is not None and node.op == "count_values":
            return CountValues(self._context, node, child, param)
        return Folded(self._context, node, child, param)

    def _over_range(self, node: Call) -> Operator:
        ranges = [arg for arg in node.args if isinstance(arg, Range | Subquery)]
        parameters = tuple(self.operator(arg) for arg in node.args if not isinstance(arg, Range | Subquery))
        over: Operator
        if isinstance(ranges[0], Range):
            over = self._over_samples(node.name, ranges[0], parameters)
        else:
            inner = self.operator(ranges[0].expr)
            name = "present_over_time" if node.name == "absent_over_time" else node.name
            over = OverSubquery(self._context, name, ranges[0], self._steps(ranges[0].expr, inner), parameters)
        return calls.Absent(self._context, over, ranges[0]) if node.name == "absent_over_time" else over

    def _steps(self, expr: Node, inner: Operator) -> Steps:
        lead = lead_ms(expr)
        if self._face == "naive" or lead is None:
            return EvaluatedSteps(self._context, inner)
        selections = [self.selection(node) for node in walk(expr) if isinstance(node, Selector)]
        return RememberedSteps(self._context, inner, selections, lead)

    def _instant(self, node: Selector, times: bool = False) -> Operator:
        selection = self.selection(node)
        if self._face == "incremental" and node.at is None:
            return SlidingInstant(self._context, node, selection, times)
        return Instant(self._context, node, selection, times)

    def _over_samples(self, name: str, node: Range, parameters: tuple[Operator, ...]) -> Operator:
        selection = self.selection(node.selector)
        name = "present_over_time" if name == "absent_over_time" else name
        moves = name in USES and (name != "quantile_over_time" or isinstance(parameters[0], calls.Constant))
        if self._face == "incremental" and node.selector.at is None and moves:
            windows = self._windows.setdefault(node, Windows(selection, node.range_ms))
            return SlidingRange(self._context, name, node, selection, windows, *parameters)
        return OverRange(self._context, name, node, selection, parameters)

    def _call(self, node: Call) -> Operator:
        context, name = self._context, node.name
        if name == "timestamp" and isinstance(node.args[0], Selector):
            return self._instant(node.args[0], times=True)
        args = tuple(self.operator(arg) for arg in node.args)
        if name in calls.MATHS:
            return calls.Mapped(context, args, calls.MATHS[name])
        if name in calendar.FUNCTIONS:
            return calls.Mapped(context, args or (calls.TimeVector(context),), calendar.FUNCTIONS[name])
        if name in NATIVE_HISTOGRAM:
            return calls.Nothing(context, args[0])
        return self._special(node, args)

    def _special(self, node: Call, args: tuple[Operator, ...]) -> Operator:
        context = self._context
        texts = tuple(arg.value for arg in node.args if isinstance(arg, Text))
        makers: dict[str, Callable[[], Operator]] = {
            "absent": lambda: calls.Absent(context, args[0], node.args[0]),
            "clamp": lambda: calls.Clamp(context, args),
            "clamp_max": lambda: calls.Mapped(context, args, _clamp_max),
            "clamp_min": lambda: calls.Mapped(context, args, _clamp_min),
            "histogram_fraction": lambda: OfHistograms(context, args[2], args[:2]),
            "histogram_quantile": lambda: OfHistograms(context, args[1], args[:1]),
            "label_join": lambda: Relabelled(context, args[0], partial(joiner, texts[0], texts[1], texts[2:])),
            "label_replace": lambda: Relabelled(context, args[0], partial(replacer, *texts)),
            "pi": lambda: calls.Constant(context, 3.141592653589793),
            "round": lambda: calls.Mapped(context, args, calls.rounded),
            "scalar": lambda: calls.ToScalar(context, args),
            "sort": lambda: calls.Sorted(context, args[0], descending=False),
            "sort_desc": lambda: calls.Sorted(context, args[0], descending=True),
            "time": lambda: calls.Time(context),
            "timestamp": lambda: calls.Timestamp(context, args),
            "vector": lambda: calls.ToVector(context, args[0]),
        }
        return makers[node.name]()


def _clamp_max(values: F64, high: float) -> F64:
    return calls.clamped(values, float("-inf"), high)


def _clamp_min(values: F64, low: float) -> F64:
    return calls.clamped(values, low, float("inf"))
