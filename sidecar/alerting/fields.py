"""Reading YAML as Prometheus does: text where text is wanted, unknown keys refused, every finding kept with its place.

Works on YAML nodes, not on values: `for: 5` must not become a number first, and each complaint needs its position.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from sidecar import durations
from sidecar.errors import Problem, QueryError

_TAG = "tag:yaml.org,2002:"
_INT = re.compile(r"[+-]?(?:0x[0-9a-fA-F_]+|0o?[0-7_]+|0b[01_]+|[0-9][0-9_]*)$")
_FLOAT = re.compile(r"[+-]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$")
_SPECIAL = re.compile(r"([+-]?)\.(inf|Inf|INF|nan|NaN|NAN)$")
_INT64 = 1 << 63


@dataclass(slots=True)
class Findings:
    """What is wrong with one file, in the order found."""

    file: str
    problems: list[Problem] = field(default_factory=list)

    def error(self, node: yaml.Node | None, message: str, *, offset: int = 0) -> None:
        """A problem at a node's start, `offset` characters further on."""
        line, column = (node.start_mark.line + 1, node.start_mark.column + 1 + offset) if node is not None else (0, 0)
        self.problems.append(Problem(self.file, line, column, message))

    def warning(self, node: yaml.Node | None, message: str) -> None:
        """As `error`, for what Prometheus accepts and is probably not meant."""
        line, column = (node.start_mark.line + 1, node.start_mark.column + 1) if node is not None else (0, 0)
        self.problems.append(Problem(self.file, line, column, message, "warning"))


def is_null(node: yaml.Node | None) -> bool:
    """Absent, empty, `~` or `null`: all the same to Prometheus."""
    return node is None or (isinstance(node, yaml.ScalarNode) and node.tag == _TAG + "null")


@dataclass(frozen=True, slots=True)
class Mapped:
    """One mapping: keys to value nodes, merge keys (`<<`) resolved, and where the mapping stood."""

    node: yaml.Node
    values: Mapping[str, yaml.Node]
    found: Findings
    what: str  # names the thing in messages: `rule`, `group`

    @classmethod
    def of(cls, node: yaml.Node, found: Findings, what: str, known: frozenset[str] | None) -> Mapped | None:
        """None, with the finding noted, where `node` is no mapping. `known` None takes any key."""
        if not isinstance(node, yaml.MappingNode):
            found.error(node, f"{_named(what)} must be a mapping, not {kind(node)}")
            return None
        values: dict[str, yaml.Node] = {}
        for key, value in _pairs(node, found):
            if is_null(key):  # Go's reader passes over it with all that is under it
                continue
            if known is not None and key.value not in known:
                found.error(key, f"unknown key {key.value!r} in {what} (known: {', '.join(sorted(known))})")
                continue
            values.setdefault(key.value, value)
        return cls(node, values, found, what)

    def place(self, key: str) -> yaml.Node:
        """The node to point at when complaining about `key`."""
        return self.values.get(key, self.node)

    def text(self, key: str) -> str:
        """The scalar as written; empty where absent."""
        return text(self.values.get(key), self.found, key)

    def duration(self, key: str) -> int:
        """Milliseconds; 0 where absent."""
        node = self.values.get(key)
        if is_null(node):
            return 0
        if not isinstance(node, yaml.ScalarNode):
            self.found.error(node, f"{key} must be a duration, not {kind(node)}")
            return 0
        try:
            return durations.parse(text(node, self.found, key))
        except ValueError as e:
            self.found.error(node, f"{key}: {e}")
            return 0

    def integer(self, key: str) -> int:
        """A whole number; a fraction is cut off, as in Prometheus; 0 where absent."""
        node = self.values.get(key)
        if is_null(node):
            return 0
        value = _integer(node)
        if value is None:
            self.found.error(node, f"{key} must be a whole number")
            return 0
        return value

    def number(self, key: str) -> float:
        """A float, `.inf` and `.nan` included; 0 where absent."""
        node = self.values.get(key)
        if is_null(node):
            return 0.0
        value = text(node, self.found, key)
        if special := _SPECIAL.match(value):
            return float(special[1] + special[2])
        try:
            return float(value.replace("_", "")) if value[-1:].isdigit() or value.endswith(".") else float("")
        except ValueError:
            self.found.error(node, f"{key} must be a number, not {value!r} (YAML writes .inf, -.inf and .nan)")
            return 0.0

    def flag(self, key: str) -> bool:
        """`true` or `false`; false where absent."""
        node = self.values.get(key)
        if is_null(node):
            return False
        value = text(node, self.found, key).lower()
        if value not in ("true", "false"):
            self.found.error(node, f"{key} must be true or false")
        return value == "true"

    def texts(self, key: str) -> dict[str, tuple[yaml.Node, str]]:
        """A mapping of text to text, each with its value's node."""
        node = self.values.get(key)
        if node is None or is_null(node):
            return {}
        mapped = Mapped.of(node, self.found, f"{key} mapping", None)
        return {} if mapped is None else {k: (v, text(v, self.found, f"{key}.{k}")) for k, v in mapped.values.items()}

    def items(self, key: str) -> Iterator[yaml.Node]:
        """The elements of a sequence, without the empty ones (Prometheus drops `- null`)."""
        node = self.values.get(key)
        if node is None or is_null(node):
            return
        if not isinstance(node, yaml.SequenceNode):
            self.found.error(node, f"{key} must be a list, not {kind(node)}")
            return
        yield from (child for child in node.value if not is_null(child))


def kind(node: yaml.Node | None) -> str:
    """What a node is, in words."""
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    return "a mapping" if isinstance(node, yaml.MappingNode) else "text"


def text(node: yaml.Node | None, found: Findings, what: str) -> str:
    """Any scalar is text: `5`, `true` and `2024-01-01` as written. Absent and null are empty."""
    if node is None or is_null(node):
        return ""
    if not isinstance(node, yaml.ScalarNode):
        found.error(node, f"{what} must be text, not {kind(node)}")
        return ""
    if node.tag == _TAG + "binary":
        try:
            return base64.b64decode(node.value, validate=False).decode()
        except (binascii.Error, UnicodeDecodeError):
            found.error(node, f"{what}: not base64 of UTF-8 text")
            return ""
    return str(node.value)


def column_of(node: yaml.Node, offset: int) -> int:
    """How far right of the node's start character `offset` of its text stands; 0 where the two do not line up.

    They do in a scalar on one line without escapes: the marks then span the text, and the quotes if there are any.
    """
    if offset < 0 or not isinstance(node, yaml.ScalarNode) or node.start_mark.line != node.end_mark.line:
        return 0
    quotes = node.end_mark.column - node.start_mark.column - len(node.value)
    return offset + quotes // 2 if quotes == (2 if node.style in ("'", '"') else 0) else 0


def parse_error(error: QueryError, expr: str) -> str:
    """What is wrong with an expression, with the line and column in it where the parser knows, as Prometheus says it.

    The problem itself is placed at the value in the file: an expression of several lines keeps its own count.
    """
    if error.offset < 0:
        return f"could not parse expression: {error}"
    before = expr[: error.offset]
    column = error.offset - (before.rfind("\n") + 1) + 1
    return f"could not parse expression: {before.count(chr(10)) + 1}:{column}: {error}"


def _pairs(node: yaml.MappingNode, found: Findings) -> Iterator[tuple[Any, yaml.Node]]:
    """Own keys first, then those merged in: the first one wins."""
    merged: list[yaml.Node] = []
    for key, value in node.value:
        if key.tag == _TAG + "merge":
            merged.extend(value.value if isinstance(value, yaml.SequenceNode) else [value])
        else:
            yield key, value
    for source in merged:
        if isinstance(source, yaml.MappingNode):
            yield from _pairs(source, found)
        else:
            found.error(source, "a merge key (<<) takes a mapping or a list of mappings")


def _said_to_be_text(node: yaml.ScalarNode) -> bool:
    """`!!str 5`, where a plain `5` would be a number."""
    plain = yaml.SafeLoader.yaml_implicit_resolvers.get(node.value[:1], ())
    return node.tag == _TAG + "str" and not node.style and any(pattern.match(node.value) for _, pattern in plain)


def _integer(node: yaml.Node | None) -> int | None:
    if not isinstance(node, yaml.ScalarNode) or (node.style and node.tag != _TAG + "int") or _said_to_be_text(node):
        return None
    digits = node.value.replace("_", "")
    if _INT.match(node.value):
        sign, body = (-1, digits[1:]) if digits[0] == "-" else (1, digits.lstrip("+"))
        octal = len(body) > 1 and body[0] == "0" and body[1].isdigit()
        value = sign * (int(body, 8) if octal else int(body, 0))
    elif _FLOAT.match(node.value):
        number = float(digits)
        value = int(number) if abs(number) < _INT64 else _INT64
    else:
        return None
    return value if -_INT64 <= value < _INT64 else None


def _named(what: str) -> str:
    """`a rule`, but only `annotations` of an `annotations mapping`."""
    return what.removesuffix(" mapping") if what.endswith(" mapping") else f"a {what}"
