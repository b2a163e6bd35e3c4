"""Finds the first piece of an expression that cannot stand where it stands, for parsers that only say `invalid`."""

from __future__ import annotations

from sidecar.promql.text import Token, tokens

_BINARY = frozenset({"+", "-", "*", "/", "%", "^", "==", "!=", ">", "<", ">=", "<="})
_SET = frozenset({"and", "or", "unless", "atan2"})
_MATCHING = frozenset({"on", "ignoring", "group_left", "group_right"})
_GROUPING = frozenset({"by", "without"})
_CLOSES = {"(": ")", "[": "]", "{": "}"}


def misplaced(expr: str) -> tuple[str, int] | None:
    """What is wrong and at which offset; None when the order of things gives no clue."""
    return _Walk(expr).problem()


class _Walk:
    """Alternates between waiting for an operand and waiting for an operator."""

    def __init__(self, expr: str) -> None:
        self._end = len(expr)
        self._tokens = _joined([t for t in tokens(expr) if t.kind not in ("space", "comment")])
        self._at = 0
        self._open: list[Token] = []
        self._last = Token("start", "", 0)

    def _next(self) -> Token:
        token = self._tokens[self._at] if self._at < len(self._tokens) else Token("end", "", self._end)
        self._at += 1
        return token

    def problem(self) -> tuple[str, int] | None:
        wants_operand = True
        while True:
            token = self._next()
            if token.kind == "end":
                if wants_operand:
                    return "unexpected end of input", token.offset
                return ("unclosed bracket", self._open[-1].offset) if self._open else None
            verdict = self._operand(token) if wants_operand else self._operator(token)
            if verdict is None:
                return f"unexpected {token.text!r}", token.offset
            wants_operand, self._last = verdict, token

    def _operand(self, token: Token) -> bool | None:
        """Whether an operand is still wanted after `token`; None when it cannot stand here."""
        word = token.text.lower()
        if token.kind in ("number", "string", "raw"):
            return False
        if token.kind == "word":
            if self._last.text in _BINARY or self._last.text.lower() in _SET | {"bool"}:
                if word == "bool":
                    return True
                if word in _MATCHING:
                    self._skip_list()
                    self._last = Token("other", "+", 0)
                    return True
            return None if word in _SET else False
        if token.text == "(":
            self._open.append(token)
            return True
        if token.text == ")" and self._last.text == "(" and self._open:
            self._open.pop()
            return False
        if token.text == "{":
            return self._skip("{")
        return True if token.text in ("+", "-") else None

    def _operator(self, token: Token) -> bool | None:
        word = token.text.lower()
        if token.kind == "word":
            if word in _SET:
                return True
            if word in _GROUPING:
                self._skip_list()
                return False
            return self._skip_time() if word == "offset" else None
        if token.text == "@":
            return self._skip_time()
        if token.text in _BINARY:
            return True
        if token.text == "," and self._open:
            return True
        if token.text == ")" and self._open:
            self._open.pop()
            return False
        return self._bracket(token)

    def _bracket(self, token: Token) -> bool | None:
        if token.text == "(" and (self._last.kind == "word" or self._last.text == ")"):
            self._open.append(token)
            return True
        if token.text == "[" or (token.text == "{" and self._last.kind == "word"):
            return self._skip(token.text)
        return None

    def _skip(self, opening: str) -> bool:
        """Past the closing bracket; what is inside is the parser's business."""
        while (token := self._next()).kind != "end" and token.text != _CLOSES[opening]:
            pass
        return False

    def _skip_list(self) -> None:
        if self._at < len(self._tokens) and self._tokens[self._at].text == "(":
            self._next()
            self._skip("(")

    def _skip_time(self) -> bool | None:
        token = self._next()
        if token.text in ("+", "-"):
            token = self._next()
        if token.kind == "word" and token.text in ("start", "end"):
            self._skip_list()
            return False
        return False if token.kind == "number" else None


def _joined(found: list[Token]) -> list[Token]:
    """Comparison operators of two characters as one piece."""
    out: list[Token] = []
    for token in found:
        before = out[-1] if out else None
        if (
            before is not None
            and before.kind == token.kind == "other"
            and before.offset + 1 == token.offset
            and before.text + token.text in ("==", "!=", ">=", "<=", "=~", "!~")
        ):
            out[-1] = Token("other", before.text + token.text, before.offset)
        else:
            out.append(token)
    return out
