"""What Prometheus reads and the parser does not, rewritten to what both read alike.

Back-quoted strings (the parser would process escapes in them), offsets of nothing, signs in a row before a duration,
and label names with colons.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sidecar.promql.text import Token, tokens

_LISTS = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right"})
_NOTHING = re.compile(r"0+(?:y|w|d|h|m|s|ms)?\Z")


def respelled(expr: str) -> str:
    """The expression as the parser wants it."""
    return "".join(_pieces(list(tokens(expr))))


def _pieces(found: list[Token]) -> Iterator[str]:
    at = 0
    before = ""  # the last piece that is neither space nor comment
    in_list = in_range = False
    while at < len(found):
        token = found[at]
        at += 1
        if token.kind == "raw":
            yield _quoted(token.text[1:-1])
        elif token.kind == "word" and token.text.lower() == "offset":
            at, text = _offset(found, at)
            yield text
        elif in_range and before in ("[", ":") and token.text == "+":
            continue
        elif in_list and token.kind == "word" and ":" in token.text:
            yield f'"{token.text}"'
        else:
            yield token.text
        if token.text == "(" and before.lower() in _LISTS:
            in_list = True
        elif token.text == ")":
            in_list = False
        elif token.text in ("[", "]"):
            in_range = token.text == "["
        if token.kind not in ("space", "comment"):
            before = token.text


def _offset(found: list[Token], at: int) -> tuple[int, str]:
    """The rest of an offset from `at` on, its signs made one: where it ends, and how to write it."""
    end, negative = at, False
    while end < len(found) and (found[end].kind in ("space", "comment") or found[end].text in ("+", "-")):
        negative ^= found[end].text == "-"
        end += 1
    if end == len(found) or found[end].kind != "number":
        return at, "offset"
    if _NOTHING.match(found[end].text):
        return end + 1, " "
    return end, "offset -" if negative else "offset "


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


def without_unary_plus(expr: str) -> str | None:
    """The expression with a minus for each plus sign that has no left side; None when there is none.

    The parser drops those signs unseen, so what they stand before has to be checked in another guise.
    """
    pieces = list(tokens(expr))
    changed = False
    before = Token("start", "(", 0)
    for i, token in enumerate(pieces):
        if token.kind in ("space", "comment"):
            continue
        starts_operand = before.text in tuple("([{,+-*/%^<>=") or before.text.lower() in (
            "and",
            "or",
            "unless",
            "atan2",
            "bool",
        )
        if token.text == "+" and starts_operand and before.text != "[":
            pieces[i] = Token(token.kind, "-", token.offset)
            changed = True
        before = token
    return "".join(piece.text for piece in pieces) if changed else None
