"""What an expression compiles to: frozen nodes, equal where they mean the same, so that rules share them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

LOOKBACK_MS = 300_000  # Prometheus's default: how long an instant selector sees a sample

Kind = Literal["scalar", "string", "vector", "matrix"]
At = int | Literal["start", "end"]


class Op(Enum):
    """How a matcher compares."""

    EQUAL = "="
    NOT_EQUAL = "!="
    MATCH = "=~"
    NO_MATCH = "!~"


@dataclass(frozen=True, slots=True)
class Matcher:
    """One condition on a label; a label that is not there is the empty string."""

    name: str
    op: Op
    value: str


@dataclass(frozen=True, slots=True)
class Number:
    """A literal. Equal by bit pattern, so that NaN equals itself and -0 is not 0."""

    value: float = field(compare=False)
    bits: bytes = b""

    @classmethod
    def of(cls, value: float) -> Number:
        return cls(value, struct.pack("<d", value))


@dataclass(frozen=True, slots=True)
class Text:
    """A string literal."""

    value: str


@dataclass(frozen=True, slots=True)
class Selector:
    """An instant selector; inside Range, the series to take the window of."""

    metric: str  # "" where the name is not given by equality
    matchers: tuple[Matcher, ...]  # without an equality on the name
    offset_ms: int = 0
    at: At | None = None


@dataclass(frozen=True, slots=True)
class Range:
    """`selector[range]`."""

    selector: Selector
    range_ms: int


@dataclass(frozen=True, slots=True)
class Subquery:
    """`expr[range:step]`; no step means the default interval of whoever evaluates."""

    expr: Node
    range_ms: int
    step_ms: int | None
    offset_ms: int = 0
    at: At | None = None


@dataclass(frozen=True, slots=True)
class Negate:
    """Unary minus."""

    expr: Node


class Card(Enum):
    """Which side may have several elements for one on the other side."""

    ONE_TO_ONE = "one-to-one"
    MANY_TO_ONE = "many-to-one"
    ONE_TO_MANY = "one-to-many"


@dataclass(frozen=True, slots=True)
class Matching:
    """How the elements of two vectors find each other."""

    labels: tuple[str, ...] = ()
    on: bool = False
    card: Card = Card.ONE_TO_ONE
    include: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Binary:
    """An operator between two expressions."""

    op: str
    left: Node
    right: Node
    matching: Matching = Matching()
    returns_bool: bool = False


@dataclass(frozen=True, slots=True)
class Aggregate:
    """`op by|without (labels) (param, expr)`."""

    op: str
    expr: Node
    param: Node | None
    labels: tuple[str, ...] = ()
    without: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """A function call."""

    name: str
    args: tuple[Node, ...]
    returns: Kind


Node = Number | Text | Selector | Range | Subquery | Negate | Binary | Aggregate | Call

COMPARISONS = frozenset({"==", "!=", ">", "<", ">=", "<="})
SET_OPERATORS = frozenset({"and", "or", "unless"})


def kind(node: Node) -> Kind:
    """The type of a node's value."""
    match node:
        case Number():
            return "scalar"
        case Text():
            return "string"
        case Range() | Subquery():
            return "matrix"
        case Selector() | Aggregate():
            return "vector"
        case Negate(expr):
            return kind(expr)
        case Binary(left=left, right=right):
            return "scalar" if kind(left) == kind(right) == "scalar" else "vector"
        case Call(returns=returns):
            return returns


def children(node: Node) -> tuple[Node, ...]:
    """The nodes directly below."""
    match node:
        case Range(selector=selector):
            return (selector,)
        case Subquery(expr=expr) | Negate(expr):
            return (expr,)
        case Binary(left=left, right=right):
            return left, right
        case Aggregate(expr=expr, param=param):
            return (expr,) if param is None else (expr, param)
        case Call(args=args):
            return args
        case _:
            return ()


def walk(node: Node) -> Iterator[Node]:
    """The node and everything below, parents first."""
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        stack.extend(reversed(children(current)))
