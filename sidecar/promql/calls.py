"""Functions of instant vectors and scalars: mathematics, calendar, clamping, sorting, absence, conversion."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sidecar.model import Labels
from sidecar.promql.frame import NAME, Frame, Vec
from sidecar.promql.operator import Context, Operator, Value, checked, scalar, vector
from sidecar.promql.plan import Node, Op, Range, Selector
from sidecar.store.cells import F64

_NOTHING = np.zeros(0)


def _sign(values: F64) -> F64:
    return np.where(values == 0, values, np.sign(values))


MATHS: dict[str, Callable[[F64], F64]] = {
    "abs": np.abs,
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "ceil": np.ceil,
    "cos": np.cos,
    "cosh": np.cosh,
    "deg": lambda v: v * 180 / np.pi,
    "exp": np.exp,
    "floor": np.floor,
    "ln": np.log,
    "log10": np.log10,
    "log2": np.log2,
    "rad": lambda v: v * np.pi / 180,
    "sgn": _sign,
    "sin": np.sin,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
}


class Mapped(Operator):
    """A function of each value, which drops the metric name. Scalars beside the vector are further children."""

    def __init__(self, context: Context, children: tuple[Operator, ...], function: Callable[..., F64]) -> None:
        super().__init__(context, children)
        self._function = function

    def compute(self, t_ms: int, inputs: tuple[Value, ...]) -> Value:
        vec = vector(inputs[0])
        values = self._function(vec.values, *inputs[1:])
        return checked(Vec(vec.frame.nameless(), values, vec.mask, vec.order))


class Negated(Mapped):
    """Unary minus of a vector."""

    def __init__(self, context: Context, child: Operator) -> None:
        super().__init__(context, (child,), np.negative)


class NegatedScalar(Operator):
    """Unary minus of a number."""

    def compute(self, t_ms: int, inputs: tuple[Value, ...]) -> Value:
        return -scalar(inputs[0])


class Clamp(Operator):
    """clamp(v, min, max): nothing at all where min > max."""

    def compute(self, t_ms: int, inputs: tuple[Value, ...]) -> Value:
        vec, low, high = vector(inputs[0]), scalar(inputs[1]), scalar(inputs[2])
        if low > high:
            return Vec(Frame(()), _NOTHING)
        return checked(Vec(vec.frame.nameless(), clamped(vec.values, low, high), vec.mask, vec.order))


def clamped(values: F64, low: float, high: float) -> F64:
    """Go's math.Max(low, math.Min(high, v)): NaN wherever one is."""
    return np.maximum(low, np.minimum(high, values))


def rounded(values: F64, to: float = 1.0) -> F64:
    """To the nearest multiple of `to`, halves up."""
    inverse = np.float64(1.0) / np.float64(to)
    out: F64 = np.floor(values * inverse + 0.5) / inverse
    return out


class Constant(Operator):
    """A literal."""

    def __init__(self, context: Context, value: float | str) -> None:
        super().__init__(context)
        self._constant: Value = value

    def at(self, t_ms: int) -> Value:
        return self._constant

    def compute(self, t_ms: int, inputs: tuple[Value, ...]) -> Value:
        return self._constant


class Time(Operator):
    """time(): the evaluation time in seconds."""

    def compute(self, t_ms: int, inputs: tuple[Value, ...]) -> Value:
        return t_ms / 1000


class TimeVector(Operator):
    """The evaluation time as a vector of one element: what calendar functions without argument look at."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._frame = Frame(((),))

    def compute(self, t_ms: int, inputs: tuple[Value, ...]) -> Value:
        return Vec(self._frame, np.array([t_ms / 1000]))


class Timestamp(Operator):
    """timestamp() of anything but a plain selector: the evaluation time for each element."""

    def compute(self, t_ms: int, inputs: tuple[Value, ...]) -> Value:
        vec = vector(inputs[0])
        return checked(Vec(vec.frame.nameless(), np.full(len(vec.frame), t_ms / 1000), vec.mask, vec.order))


class ToVector(Operator):
    """vector(s)."""

    def __init__(self, context: Context, child: Operator) -> None:
        super().__init__(context, (child,))
        self._frame = Frame(((),))

    def compute(self, t_ms: int, inputs: tuple[Value, ...]) -> Value:
        return Vec(self._frame, np.array([scalar(inputs[0])]))


class ToScalar(Operator):
    """scalar(v): the value of the only element, NaN when there is not exactly one."""

    def compute(self, t_ms: int, inputs: tuple[Value, ...]) -> Value:
        vec = vector(inputs[0])
        present = vec.present()
        return float(vec.values[present[0]]) if len(present) == 1 else float("nan")


class Sorted(Operator):
    """sort and sort_desc: the order in which an instant query shows the elements; NaN last."""

    def __init__(self, context: Context, child: Operator, descending: bool) -> None:
        super().__init__(context, (child,))
        self._descending = descending

    def compute(self, t_ms: int, inputs: tuple[Value, ...]) -> Value:
        vec = vector(inputs[0])
        key = -vec.values if self._descending else vec.values
        before = np.arange(len(vec.frame)) if vec.order is None else np.argsort(vec.order)
        order = np.lexsort((before, np.where(np.isnan(key), np.inf, key), np.isnan(key)))
        return Vec(vec.frame, vec.values, vec.mask, order)


class Absent(Operator):
    """absent() and absent_over_time(): one element when the child has none."""

    def __init__(self, context: Context, child: Operator, argument: Node) -> None:
        super().__init__(context, (child,))
        self._frame = Frame((absent_labels(argument),))
        self._none = np.zeros(1, bool)

    def compute(self, t_ms: int, inputs: tuple[Value, ...]) -> Value:
        return Vec(self._frame, np.ones(1), self._none if len(vector(inputs[0])) else None)


def absent_labels(argument: Node) -> Labels:
    """What can be said of a series that is not there: its equality matchers, those given once."""
    selector = argument.selector if isinstance(argument, Range) else argument
    if not isinstance(selector, Selector):
        return ()
    found: dict[str, str] = {}
    contradicted = set()
    for matcher in selector.matchers:
        if matcher.name == NAME:
            continue
        if matcher.op is Op.EQUAL and matcher.name not in found and matcher.name not in contradicted:
            found[matcher.name] = matcher.value
        else:
            found.pop(matcher.name, None)
            contradicted.add(matcher.name)
    return tuple(sorted((name, value) for name, value in found.items() if value))


class Nothing(Operator):
    """A function that only sees native histograms: no float sample gives anything."""

    def __init__(self, context: Context, child: Operator) -> None:
        super().__init__(context, (child,))
        self._empty = Vec(Frame(()), _NOTHING)

    def compute(self, t_ms: int, inputs: tuple[Value, ...]) -> Value:
        return self._empty
