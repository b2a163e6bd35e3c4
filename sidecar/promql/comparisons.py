"""What an expression compares with what: the condition of an alert in parts that can be asked for one by one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import promql_parser as pp

from sidecar.promql.parse import parse, syntax_tree
from sidecar.promql.plan import COMPARISONS

_INDENT, _OPENING, _CLOSING = re.compile(r"\n *"), re.compile(r"\(\n *"), re.compile(r"\n *\)")


@dataclass(frozen=True, slots=True)
class Comparison:
    """`left op right`; `limit` is the right side where it is a number."""

    left: str
    op: str
    right: str
    limit: float | None


def comparisons(expr: str) -> tuple[Comparison, ...]:
    """Every comparison of two sides in an expression, from left to right, each once. Raises QueryError."""
    parse(expr)
    found: dict[Comparison, None] = {}

    def visit(tree: Any) -> None:
        if isinstance(tree, pp.BinaryExpr) and str(tree.op) in COMPARISONS:
            limit = float(tree.rhs.val) if isinstance(tree.rhs, pp.NumberLiteral) else None
            one = Comparison(_one_line(tree.lhs), str(tree.op), _one_line(tree.rhs), limit)
            found[one] = None

    pp.transform(syntax_tree(expr), post_visit=visit)
    return tuple(found)


def _one_line(tree: Any) -> str:
    """Lines are joined where the parser broke them; what stands in quotes holds no line break."""
    text = str(tree.prettify()).strip()
    return _INDENT.sub(" ", _CLOSING.sub(")", _OPENING.sub("(", text)))
