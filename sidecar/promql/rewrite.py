"""Expressions made from expressions: the canonical text, and the newest increment of every window."""

from __future__ import annotations

from typing import Any

import promql_parser as pp

from sidecar.promql.parse import parse, syntax_tree
from sidecar.promql.plan import walk
from sidecar.promql.spelling import respelled

_LAST = frozenset(
    f"{name}_over_time" for name in ("avg", "min", "max", "sum", "last", "quantile")
)  # each becomes the window's last value


def canonical(expr: str) -> str:
    """The expression in the parser's one way of writing it. Raises QueryError."""
    plan = parse(expr)
    if any(isinstance(at, int) and at < 0 for at in (getattr(node, "at", None) for node in walk(plan))):
        return respelled(expr).strip()  # the parser would write the epoch for every time before it
    text: str = syntax_tree(expr).prettify()
    return text


def increments(expr: str) -> str:
    """The expression with every window reduced to its newest increment, as text. Raises QueryError.

    `rate` becomes `irate`, `increase(x[R])` becomes `irate(x[R])` times R in seconds, `delta` and `deriv` become
    `idelta`, and the average, minimum, maximum, sum, quantile and last value over time become the last value, that
    of a subquery included. Evaluated at each sample time this gives increments that do not overlap; sums and
    differences come out in the scale of one sampling interval. Other window functions stay as they are.
    """
    parse(expr)
    tree = pp.transform(syntax_tree(expr), post_visit=_newest)
    text: str = tree.prettify()
    return text


def _newest(tree: Any) -> Any:
    if not isinstance(tree, pp.Call):
        return None
    name, args = tree.func.name, tree.args
    window = next((a for a in args if isinstance(a, pp.MatrixSelector | pp.SubqueryExpr)), None)
    if window is None:
        return None
    inside = window.prettify()
    if name in _LAST and isinstance(window, pp.SubqueryExpr) and window.offset is None and window.at is None:
        return pp.parse(f"({window.expr.prettify()})")
    if name in _LAST:
        return pp.parse(f"last_over_time({inside})")
    if name == "rate":
        return pp.parse(f"irate({inside})")
    if name == "increase":
        return pp.parse(f"(irate({inside}) * {_seconds(window):g})")
    if name in ("delta", "deriv"):
        return pp.parse(f"idelta({inside})")
    return None


def _seconds(window: Any) -> float:
    return float(window.range.total_seconds())
