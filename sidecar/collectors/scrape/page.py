"""A page of metrics, in Prometheus's text format or in OpenMetrics → samples.

Types, help and exemplars are passed over, and so are timestamps: a sample counts as of the moment it was scraped, as
under Prometheus's `honor_timestamps: false`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_QUOTED = r'"(?:[^"\\]|\\.)*"'
_HEAD = re.compile(rf"\s*(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)?[ \t]*(?P<labels>\{{(?:[^\"}}]|{_QUOTED})*\}})?[ \t]*")
_PAIR = re.compile(
    rf"\s*(?:(?P<name>[a-zA-Z_][a-zA-Z0-9_.:]*)|(?P<quoted>{_QUOTED}))\s*(?:=\s*(?P<value>{_QUOTED}))?\s*(,|$)"
)
_ESCAPE = re.compile(r"\\(.)", re.S)
_ESCAPED = {"n": "\n", "\\": "\\", '"': '"'}
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|[iI]nf(?:inity)?|[nN]a[nN])\Z")


class PageError(ValueError):
    """A line is no sample. `line` counts from 1."""

    def __init__(self, line: int, text: str) -> None:
        self.line = line
        super().__init__(f"line {line}: not a sample: {text[:120]!r}")


def parse(text: str) -> Iterator[tuple[dict[str, str], float]]:
    """(labels with `__name__`, value) of every sample. Raises PageError, as Prometheus refuses the whole page."""
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip(" \t\r")
        if not stripped or stripped.startswith("#"):
            if stripped == "# EOF":
                return
            continue
        found = _sample(stripped)
        if found is None:
            raise PageError(number, stripped)
        yield found


def _sample(line: str) -> tuple[dict[str, str], float] | None:
    head = _HEAD.match(line)
    if head is None or not (head["name"] or head["labels"]):
        return None
    labels = _labels((head["labels"] or "{}")[1:-1])
    words = line[head.end() :].partition(" # ")[0].split()
    if labels is None or not 1 <= len(words) <= 2 or not _NUMBER.match(words[0]):
        return None
    if len(words) == 2 and not _NUMBER.match(words[1]):
        return None
    if head["name"]:
        if "__name__" in labels:
            return None
        labels["__name__"] = head["name"]
    return (labels, float(words[0])) if labels.get("__name__") else None


def _labels(text: str) -> dict[str, str] | None:
    labels: dict[str, str] = {}
    at = 0
    while at < len(text):
        if not text[at:].strip():
            break
        pair = _PAIR.match(text, at)
        if pair is None:
            return None
        at = pair.end()
        name = pair["name"] or _unquoted(pair["quoted"])
        if pair["value"] is None:  # a quoted metric name inside the braces
            if not pair["quoted"] or "__name__" in labels:
                return None
            labels["__name__"] = name
        elif name in labels:
            return None
        else:
            labels[name] = _unquoted(pair["value"])
    return labels


def _unquoted(text: str) -> str:
    return _ESCAPE.sub(lambda m: _ESCAPED.get(m[1], m[0]), text[1:-1]) if "\\" in text else text[1:-1]
