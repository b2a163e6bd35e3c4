"""Windows made longer in the text of an expression: all else stays as its author wrote it."""

from __future__ import annotations

from dataclasses import dataclass

from sidecar import durations
from sidecar.errors import QueryError
from sidecar.promql.parse import parse
from sidecar.promql.plan import Call, Range, Subquery, walk
from sidecar.promql.text import Token, tokens

GROWING = frozenset({"increase", "delta", "changes", "resets", "sum_over_time", "count_over_time"})
"""Functions whose value grows with their window: a threshold on them means something else over a longer one."""


@dataclass(frozen=True, slots=True)
class Widening:
    """An expression with longer windows. `was_ms` are the lengths that were too short, in order of appearance."""

    expr: str
    was_ms: tuple[int, ...]
    growing: tuple[str, ...]  # functions of GROWING over a window that was too short, each once


def widened(expr: str, least_ms: int) -> Widening:
    """The expression with every window, those of subqueries too, at least `least_ms` long. Raises QueryError."""
    root = parse(expr)
    out: list[str] = []
    was: list[int] = []
    inside = False  # right after an opening square bracket, where the length stands
    for token in tokens(expr):
        text = token.text
        if token.kind == "number" and inside:
            length = _milliseconds(token, expr)
            if length < least_ms:
                was.append(length)
                text = durations.text(least_ms)
        inside = token.text == "[" if token.kind == "bracket" else inside and token.kind == "space"
        out.append(text)
    growing = dict.fromkeys(
        node.name
        for node in walk(root)
        if isinstance(node, Call) and node.name in GROWING and any(_short(arg, least_ms) for arg in node.args)
    )
    return Widening("".join(out), tuple(was), tuple(growing))


def _short(node: object, least_ms: int) -> bool:
    return isinstance(node, Range | Subquery) and node.range_ms < least_ms


def _milliseconds(token: Token, expr: str) -> int:
    """A duration, or as Prometheus 3 allows a plain number of seconds."""
    for read in (durations.parse, lambda text: round(float(text) * 1000), lambda text: int(text, 0) * 1000):
        try:
            return read(token.text)
        except ValueError:
            continue
    raise QueryError(f"not the length of a window: {token.text}", expr, token.offset)
