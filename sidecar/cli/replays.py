"""What a backtest found, as tables or as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sidecar import durations
from sidecar.alerting.backtest import Firing, Replay, Total
from sidecar.cli.answers import SPECIAL, clock_time, terminal
from sidecar.model import JSON, Labels
from sidecar.outputs.timestamps import rfc3339

if TYPE_CHECKING:
    from rich.console import Console

_HOUR_MS = 3_600_000
_MOST_FIRINGS = 50


@contextmanager
def watched(start_ms: int, end_ms: int) -> Iterator[Callable[[int], object]]:
    """A bar on the terminal's error stream that moves with the time replayed; nothing where that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = TextColumn("replaying"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=max(end_ms - start_ms, 1))
        yield lambda t_ms: bar.update(task, completed=max(t_ms - start_ms, 0))


def cost(firing_ms: int, usd_per_hour: float | None) -> float | None:
    """None where no price is known."""
    return None if usd_per_hour is None else firing_ms / _HOUR_MS * usd_per_hour


def as_data(replay: Replay, usd_per_hour: float | None) -> JSON:
    """For programs: times as RFC 3339, durations in seconds."""
    return {
        "start": rfc3339(replay.start_ms),
        "end": rfc3339(replay.end_ms),
        "step_seconds": replay.step_ms / 1000,
        "samples": replay.samples,
        "evaluations": replay.evaluations,
        "refused_samples": replay.refused,
        "alerts": [_total(total, usd_per_hour) for total in replay.totals],
        "firings": [_firing(firing, replay) for firing in replay.firings],
        "broken_rules": [
            {"rule": b.rule, "group": b.group, "failures": b.failures, "error": b.error} for b in replay.broken
        ],
    }


def _total(total: Total, usd_per_hour: float | None) -> JSON:
    return {
        "alert": total.alert,
        "group": total.group,
        "severity": total.severity,
        "fired": total.fired,
        "cleared_before_firing": total.cleared,
        "firing_seconds": total.firing_ms / 1000,
        "longest_seconds": total.longest_ms / 1000,
        "first": None if total.first_ms is None else rfc3339(total.first_ms),
        "last": None if total.last_ms is None else rfc3339(total.last_ms),
        "usd": cost(total.firing_ms, usd_per_hour),
    }


def _firing(firing: Firing, replay: Replay) -> JSON:
    since, until = firing.within(replay.start_ms, replay.end_ms)
    return {
        "labels": dict(firing.alert.labels),
        "annotations": dict(firing.alert.annotations),
        "value": number_or_text(firing.alert.value),
        "active": rfc3339(firing.alert.active_at_ms),
        "fired": rfc3339(firing.alert.fired_at_ms),
        "resolved": None if firing.resolved_at_ms is None else rfc3339(firing.resolved_at_ms),
        "seconds": (until - since) / 1000,
    }


def number_or_text(value: float) -> float | str:
    """JSON has no NaN and no infinity: those are text, as in Prometheus's API."""
    return value if math.isfinite(value) else SPECIAL[repr(value)]


def show(replay: Replay, usd_per_hour: float | None, console: Console | None = None) -> None:
    """To the terminal: one line an alert, then when it fired."""
    from rich.table import Table

    console = console or terminal()
    console.print(
        f"{clock_time(replay.start_ms)} to {clock_time(replay.end_ms)}, "
        f"{replay.samples} samples, {replay.evaluations} evaluations",
        markup=False,
    )
    table = Table("alert", "severity", box=None, pad_edge=False, header_style="bold")
    for name in ("fired", "only pending", "firing for", "longest", *(["USD"] if usd_per_hour is not None else [])):
        table.add_column(name, justify="right")
    for total in replay.totals:
        usd = cost(total.firing_ms, usd_per_hour)
        spans = (durations.text(ms) if total.fired else "" for ms in (total.firing_ms, total.longest_ms))
        counts = (str(count or "") for count in (total.fired, total.cleared))
        table.add_row(total.alert, total.severity, *counts, *spans, *([] if usd is None else [f"{usd:.2f}"]))
    console.print(table)
    for firing in replay.firings[:_MOST_FIRINGS]:
        console.print(_line(firing, replay), markup=False, soft_wrap=True)
    if len(replay.firings) > _MOST_FIRINGS:
        console.print(f"… and {len(replay.firings) - _MOST_FIRINGS} more: --json gives all", style="dim")
    for broken in replay.broken:
        console.print(f"{broken.group}/{broken.rule} failed {broken.failures} times: {broken.error}", markup=False)
    if replay.refused:
        console.print(f"{replay.refused} samples left out: more series than are held at once", markup=False)


def _line(firing: Firing, replay: Replay) -> str:
    since, until = firing.within(replay.start_ms, replay.end_ms)
    end = "still firing" if firing.resolved_at_ms is None else clock_time(firing.resolved_at_ms)
    labels = _labels(firing.alert.labels)
    return (
        f"{clock_time(firing.alert.fired_at_ms)} → {end} ({durations.text(until - since)}) {firing.alert.name} {labels}"
    )


def _labels(labels: Labels) -> str:
    return "{" + ", ".join(f"{name}={value}" for name, value in labels if name != "alertname") + "}"
