"""PromQL as text: its pieces, how deep it nests, and where in the text a complaint belongs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""(?P<comment>\#[^\n]*)
      | (?P<raw>`[^`]*`)
      | (?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
      | (?P<open>[`"'])
      | (?P<word>[A-Za-z_:][A-Za-z0-9_:]*)
      | (?P<number>[0-9.][0-9A-Za-z_.]*)
      | (?P<bracket>[()\[\]{}])
      | (?P<space>\s+)
      | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Token:
    """One piece of an expression and where it starts."""

    kind: str
    text: str
    offset: int


def tokens(expr: str) -> Iterator[Token]:
    """The expression in pieces, comments and space included; joined they are the expression."""
    for match in _TOKEN.finditer(expr):
        yield Token(match.lastgroup or "other", match.group(), match.start())


def depth(expr: str) -> int:
    """An upper bound of how deeply the expression nests: brackets open at once plus operators outside braces."""
    level = deepest = braces = operators = 0
    for token in tokens(expr):
        if token.kind == "bracket":
            step = 1 if token.text in "([{" else -1
            level += step
            braces += step * (token.text in "{}")
            deepest = max(deepest, level)
        elif not braces and (
            (token.kind == "other" and token.text in "+-*/%^=<>!")
            or (token.kind == "word" and token.text.lower() in _WORD_OPERATORS)
        ):
            operators += 1
    return deepest + operators


_WORD_OPERATORS = frozenset({"and", "or", "unless", "atan2"})


def overflowing_number(expr: str) -> Token | None:
    """The first number literal too large for a float: the parser reads it as infinity."""
    for token in tokens(expr):
        if token.kind == "number":
            try:
                if float(token.text) == float("inf"):
                    return token
            except ValueError:
                continue  # hexadecimal, a duration, or the parser's to refuse
    return None


def locate(expr: str, message: str) -> int:
    """The offset a parser's message is about, -1 where it cannot be told."""
    if match := re.search(r"function (?:with name )?[`'\"]?(\w+)", message):
        return first_word(expr, match.group(1))
    if "unterminated" in message or "unclosed" in message or "unexpected end" in message:
        found = _unclosed(expr)
        return len(expr) if found < 0 and "end" in message else found
    if match := re.search(r"escape sequence '(.)'", message):
        return expr.find("\\" + match.group(1))
    if match := re.search(r"unexpected (?:character|right bracket|token)[^'\"`]*['\"`](.)['\"`]", message):
        return expr.find(match.group(1))
    if match := re.search(r"illegal regex for (.+)$|ParseFloatError\. (\S+)|: ([^:]+)$", message, re.DOTALL):
        piece = next(group for group in match.groups() if group)
        if piece in expr:
            return expr.find(piece)
    if match := re.search(r"'(\w+)'", message):
        return first_word(expr, match.group(1))
    marks = {"@ modifier": "@", "BOOL": "=<>!", "empty matcher": "{", "subquery": "[", "unexpected ','": ","}
    wanted = next((characters for words, characters in marks.items() if words in message), "")
    return next((t.offset for t in tokens(expr) if t.text in wanted and t.text), -1) if wanted else -1


def first_word(expr: str, word: str) -> int:
    """Where a word first stands on its own, -1 where it does not."""
    return next((t.offset for t in tokens(expr) if t.kind == "word" and t.text == word), -1)


def _unclosed(expr: str) -> int:
    stack: list[int] = []
    for token in tokens(expr):
        if token.kind == "open":
            return token.offset
        if token.kind == "bracket":
            if token.text in "([{":
                stack.append(token.offset)
            elif stack:
                stack.pop()
            else:
                return token.offset
    return stack[-1] if stack else -1
