"""What an expression compares with what: the condition of an alert in parts that can be asked for one by one."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import promql_parser as pp

from sidecar.promql.parse import parse, syntax_tree
from sidecar.promql.plan import COMPARISONS

_INDENT, _OPENING, _CLOSING = re.compile(r"\n *"), re.compile(r"\(\n *"), re.compile(r"\n *\)")


@dataclass(frozen=True, slots=True)
class Comparison:
    """`left op right`; `limit` is the right side where it is a number. `silences`: what it is true for is left out, for
    it stands behind an `unless`.
    """

    left: str
    op: str
    right: str
    limit: float | None
    silences: bool = False


def comparisons(expr: str) -> tuple[Comparison, ...]:
    """Every comparison of two sides in an expression, from left to right, each once. Raises QueryError."""
    parse(expr)
    silencing: Counter[Comparison] = Counter()

    def visit(tree: Any) -> None:
        if isinstance(tree, pp.BinaryExpr) and str(tree.op) == "unless":
            silencing.update(_compared(tree.rhs))

    tree = syntax_tree(expr)
    pp.transform(tree, post_visit=visit)
    found = Counter(_compared(tree))
    return tuple(replace(one, silences=silencing[one] >= times) for one, times in found.items())


def _compared(tree: Any) -> list[Comparison]:
    found: list[Comparison] = []

    def visit(tree: Any) -> None:
        if isinstance(tree, pp.BinaryExpr) and str(tree.op) in COMPARISONS:
            limit = float(tree.rhs.val) if isinstance(tree.rhs, pp.NumberLiteral) else None
            found.append(Comparison(_one_line(tree.lhs), str(tree.op), _one_line(tree.rhs), limit))

    pp.transform(tree, post_visit=visit)
    return found


def _one_line(tree: Any) -> str:
    """Lines are joined where the parser broke them; what stands in quotes holds no line break."""
    text = str(tree.prettify()).strip()
    return _INDENT.sub(" ", _CLOSING.sub(")", _OPENING.sub("(", text)))
