"""Series as pictures made of characters: one line of bars, or a field of dots with its axes."""

from __future__ import annotations

import math
from collections.abc import Sequence

_BARS = "▁▂▃▄▅▆▇█"
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of a braille cell, by row and column

Value = float | None
"""None, NaN and infinity leave a gap: what is not there is not drawn as zero."""


def sparkline(values: Sequence[Value], width: int) -> str:
    """At most `width` bars between the smallest and the largest value; a bar shows the mean of what falls on it."""
    cells = _columns(values, width)
    low, high = _range(cells)
    out = []
    for cell in cells:
        if cell is None:
            out.append(" ")
        else:
            out.append(_BARS[min(int((cell - low) / (high - low) * len(_BARS)), 7)] if high > low else _BARS[3])
    return "".join(out)


def plot(values: Sequence[Value], width: int, height: int) -> list[str]:
    """A line of dots, `height` rows, the limits of the scale at the left of the first and the last row."""
    cells = _columns(values, 2 * width)
    low, high = _range(cells)
    rows = 4 * height
    field = [[0] * -(-len(cells) // 2) for _ in range(height)]
    before: int | None = None
    for x, cell in enumerate(cells):
        if cell is None:
            before = None
            continue
        y = round((high - cell) / (high - low) * (rows - 1)) if high > low else rows // 2
        for dot in _from_to(before, y):
            field[dot // 4][x // 2] |= _DOTS[dot % 4][x % 2]
        before = y
    labels = [f"{high:.6g}", *[""] * (height - 2), f"{low:.6g}"]
    margin = max(len(label) for label in labels)
    return [
        f"{label:>{margin}} ┤" + "".join(chr(0x2800 + dots) for dots in line)
        for label, line in zip(labels, field, strict=True)
    ]


def _from_to(before: int | None, y: int) -> range:
    """The dots of one column: down or up from the one before, so that a jump is a line."""
    if before is None or before == y:
        return range(y, y + 1)
    return range(before + 1, y + 1) if before < y else range(y, before)


def _columns(values: Sequence[Value], width: int) -> list[Value]:
    """The values brought to at most `width` columns, each the mean of the finite ones in it."""
    count = min(len(values), max(width, 1))
    out: list[Value] = []
    for column in range(count):
        part = values[column * len(values) // count : (column + 1) * len(values) // count]
        finite = [value for value in part if value is not None and math.isfinite(value)]
        out.append(sum(finite) / len(finite) if finite else None)
    return out


def _range(cells: Sequence[Value]) -> tuple[float, float]:
    there = [cell for cell in cells if cell is not None]
    return (min(there), max(there)) if there else (0.0, 0.0)
