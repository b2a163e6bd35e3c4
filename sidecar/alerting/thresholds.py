"""The numbers of a rule file as their authors explain them: comment lines `# 0.30: what it means. Requirement.`"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Origin = Literal["requirement", "ours", ""]

_NUMBER = re.compile(r"(?P<value>\d[\w.]*(?:, \d[\w.]*)*):\s+(?P<meaning>\S.*)")
_ORIGIN = re.compile(r"\b(requirement|ours)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Threshold:
    """One number. `value` is as written above the alert, a number or a duration; `origin` "" where nobody says."""

    value: str
    meaning: str
    origin: Origin


def comments(text: str, starts: Sequence[int]) -> list[tuple[str, ...]]:
    """For the rules that start on these lines (from 1, ascending) the comment lines of each, without their `#`.

    A rule has those inside it, and those directly above it with no line in between.
    """
    lines = text.split("\n")
    bounds = [_above(lines, start) for start in starts] + [len(lines) + 1]
    found = []
    for start, end in zip(bounds, bounds[1:], strict=False):
        own = (line.strip() for line in lines[start - 1 : end - 1])
        found.append(tuple(line[1:] for line in own if line.startswith("#")))
    return found


def _above(lines: Sequence[str], start: int) -> int:
    """The first of the comment lines that end right above line `start`, or `start` itself."""
    while start > 1 and lines[start - 2].strip().startswith("#"):
        start -= 1
    return start


def thresholds(lines: Sequence[str]) -> tuple[Threshold, ...]:
    """The numbers among a rule's comment lines; a line that is indented further goes on with the one before.

    Whose number it is, is the first of the words `requirement` and `ours` in what is said about it.
    """
    found: list[tuple[str, list[str]]] = []
    goes_on = False
    for line in lines:
        match = _NUMBER.fullmatch(line.strip())
        if match is not None:
            found.append((match["value"], [match["meaning"]]))
            goes_on = True
        elif goes_on and line.startswith("  ") and line.strip():
            found[-1][1].append(line.strip())
        else:
            goes_on = False
    return tuple(_threshold(value, " ".join(parts)) for value, parts in found)


def _threshold(value: str, meaning: str) -> Threshold:
    match = _ORIGIN.search(meaning)
    said = match[1].lower() if match else ""
    origin: Origin = "requirement" if said == "requirement" else "ours" if said == "ours" else ""
    return Threshold(value, meaning, origin)
