"""Answers of a query API in the terminal: a table, a line of bars a series, or one chart."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sidecar.cli.chart import plot, sparkline

if TYPE_CHECKING:
    from rich.console import Console

    from sidecar.history.api import Answer, Points
    from sidecar.model import Labels

SPECIAL = {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}
"""What Python calls the values that are no numbers, and what Prometheus does."""

_MOST_ROWS = 200
_BARS, _HEIGHT = 40, 12
_NARROWEST = 20
_PIPE = 160


@dataclass(frozen=True, slots=True)
class Grid:
    """The steps of a range query."""

    start_ms: int
    end_ms: int
    step_ms: int


def terminal() -> Console:
    """Where answers are printed. A pipe has no width: then lines are as long as they have to be, within reason."""
    from rich.console import Console

    found = Console(highlight=False)
    if not found.is_terminal:
        found.width = _PIPE
    return found


def show(answer: Answer, grid: Grid | None = None, console: Console | None = None) -> None:
    """Prints an answer; with the steps asked for, what is missing among them shows as a gap."""
    console = console or terminal()
    if answer.kind == "string":
        console.print(answer.text, markup=False)
    elif answer.kind == "scalar":
        console.print(number(answer.series[0].points[0][1]), markup=False)
    elif not answer.series:
        console.print("no data", style="dim")
    elif answer.kind == "vector":
        _table(console, answer.series)
    elif len(answer.series) == 1:
        _chart(console, answer.series[0], grid)
    else:
        _sparklines(console, answer.series, grid)
    if len(answer.series) > _MOST_ROWS:
        console.print(f"… and {len(answer.series) - _MOST_ROWS} more series: --json gives all", style="dim")


def number(value: float) -> str:
    """The shortest text that is this value; whole numbers without a point, the rest as Prometheus writes it."""
    if not math.isfinite(value):
        return SPECIAL[repr(value)]
    return str(int(value)) if abs(value) < 1e15 and value == int(value) else repr(value)


def named(labels: Labels) -> str:
    """`name{label="value"}`."""
    name = dict(labels).get("__name__", "")
    rest = ", ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in labels if key != "__name__")
    return f"{name}{{{rest}}}" if rest or not name else name


def clock_time(t_ms: int) -> str:
    """UTC, to the second."""
    return datetime.fromtimestamp(t_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _table(console: Console, series: Sequence[Points]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table("series", box=None, pad_edge=False, header_style="bold")
    table.add_column("value", justify="right")
    for one in series[:_MOST_ROWS]:
        table.add_row(Text(named(one.labels), overflow="fold"), number(one.points[0][1]))
    console.print(table)


def _values(points: Points, grid: Grid | None) -> list[float | None]:
    if grid is None:
        return [value for _, value in points.points]
    there = dict(points.points)
    return [there.get(t) for t in range(grid.start_ms, grid.end_ms + 1, grid.step_ms)]


def _sparklines(console: Console, series: Sequence[Points], grid: Grid | None) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table("series", "", box=None, pad_edge=False, header_style="bold")
    for name in ("min", "max", "last"):
        table.add_column(name, justify="right")
    for one in series[:_MOST_ROWS]:
        values = [value for _, value in one.points]
        known = [value for value in values if value == value]
        limits = (f"{min(known):.6g}", f"{max(known):.6g}") if known else ("", "")
        bars = Text(sparkline(_values(one, grid), _BARS), no_wrap=True)
        table.add_row(Text(named(one.labels), overflow="fold"), bars, *limits, f"{values[-1]:.6g}" if values else "")
    console.print(table)
    if grid is not None:
        console.print(f"{clock_time(grid.start_ms)} to {clock_time(grid.end_ms)}", style="dim")


def _chart(console: Console, series: Points, grid: Grid | None) -> None:
    console.print(named(series.labels), markup=False, style="bold")
    lines = plot(_values(series, grid), max(console.width - 16, _NARROWEST), _HEIGHT)
    for line in lines:
        console.print(line, markup=False, no_wrap=True, overflow="crop")
    start, end = (series.points[0][0], series.points[-1][0]) if grid is None else (grid.start_ms, grid.end_ms)
    margin = lines[0].index("┤")
    console.print(f"{'':{margin}} └ {clock_time(start)} to {clock_time(end)}", markup=False, style="dim")
