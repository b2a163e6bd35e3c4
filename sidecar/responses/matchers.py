"""Alertmanager's label matchers: `name="value"`, `!=`, `=~`, `!~`, several in one string, with or without braces.

Regular expressions are RE2 and anchored on both sides; a label that is missing is the empty string; both as there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import re2

Operator = Literal["=", "!=", "=~", "!~"]

_OPERATOR = re.compile(r"=~|!~|!=|=")
_BARE = re.compile(r"""[^\s{}!=~,\\"'`]+""")
_ESCAPES = {"n": "\n", '"': '"', "\\": "\\"}
_SPACE = " \t\n\r"


@dataclass(frozen=True, slots=True)
class Matcher:
    """One condition on one label. Build with `parse`."""

    name: str
    operator: Operator
    value: str
    pattern: Any = None  # the compiled regular expression of =~ and !~

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the condition holds for these labels."""
        actual = labels.get(self.name, "")
        if self.pattern is None:
            return (actual == self.value) == (self.operator == "=")
        return (self.pattern.fullmatch(actual) is not None) == (self.operator == "=~")

    def __str__(self) -> str:
        escaped = self.value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'{self.name}{self.operator}"{escaped}"'


def parse(text: str) -> tuple[Matcher, ...]:
    """Every matcher of `text`. Raises ValueError saying what was expected where (characters count from 1)."""
    return _Parser(text).all()


def matcher(name: str, value: str, *, regex: bool, equal: bool) -> Matcher:
    """From its parts, as Alertmanager's API gives them. Raises ValueError for a bad regular expression."""
    operator: Operator = ("=~" if equal else "!~") if regex else ("=" if equal else "!=")
    return Matcher(name, operator, value, _compile(value) if regex else None)


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def all(self) -> tuple[Matcher, ...]:
        braces = self._take("{")
        out: list[Matcher] = []
        while not self._peek("}" if braces else ""):
            out.append(self._matcher())
            if not self._take(","):
                break
        if braces and not self._take("}"):
            raise self._expected("'}' or ','")
        self._space()
        if self.at < len(self.text):
            raise self._expected("',' or the end")
        if not out:
            raise ValueError('a matcher is missing (write it like alertname="TrainerStarvedOfData")')
        return tuple(out)

    def _matcher(self) -> Matcher:
        name = self._quoted() if self._peek('"') else self._pattern(_BARE, "a label name")
        if not name:
            raise ValueError("a label name is empty")
        self._space()
        operator: Any = self._pattern(_OPERATOR, "one of = != =~ !~")
        value = self._quoted() if self._peek('"') else self._bare()
        return Matcher(name, operator, value, _compile(value) if "~" in operator else None)

    def _bare(self) -> str:
        self._space()
        match = _BARE.match(self.text, self.at)
        if match is None:
            if self.at >= len(self.text) or self.text[self.at] in ",}":
                return ""
            raise self._expected("a value (put it in double quotes)")
        self.at = match.end()
        return match[0]

    def _quoted(self) -> str:
        self._space()
        start = self.at
        out: list[str] = []
        self.at += 1
        while self.at < len(self.text):
            c = self.text[self.at]
            self.at += 1
            if c == '"':
                return "".join(out)
            if c == "\\":
                # Any other escape stays as written, as in Alertmanager: `=~"x\.y"` means what its author meant.
                following = self.text[self.at : self.at + 1]
                c = _ESCAPES.get(following, "\\" + following)
                self.at += 1
            out.append(c)
        raise ValueError(f"character {start + 1}: the quoted text has no end")

    def _pattern(self, pattern: re.Pattern[str], what: str) -> str:
        self._space()
        match = pattern.match(self.text, self.at)
        if match is None:
            raise self._expected(what)
        self.at = match.end()
        return match[0]

    def _peek(self, token: str) -> bool:
        self._space()
        return self.at >= len(self.text) if token == "" else self.text.startswith(token, self.at)

    def _take(self, token: str) -> bool:
        if not self._peek(token):
            return False
        self.at += len(token)
        return True

    def _space(self) -> None:
        while self.at < len(self.text) and self.text[self.at] in _SPACE:
            self.at += 1

    def _expected(self, what: str) -> ValueError:
        found = repr(self.text[self.at : self.at + 10]) if self.at < len(self.text) else "the end"
        return ValueError(f"character {self.at + 1}: expected {what}, found {found}")


def _compile(value: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(value, options=options)
    except re2.error as e:
        detail = e.args[0].decode() if e.args and isinstance(e.args[0], bytes) else str(e)
        raise ValueError(f"not a valid RE2 regular expression {value!r}: {detail}") from None
