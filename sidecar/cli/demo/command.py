"""Plays a scenario for the person at the terminal and says how it ended: behind `spikewatch demo` and `drill`."""

from __future__ import annotations

import io
import os
import signal
import tempfile
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.table import Table

from sidecar.cli.demo.drilling import Drill
from sidecar.cli.demo.launch import Options, missing
from sidecar.cli.demo.orchestrate import Demo, Result
from sidecar.cli.demo.scenarios import SCENARIOS, Pace, Scenario
from sidecar.cli.demo.story import changed
from sidecar.cli.demo.timeline import LiveTimeline, PlainTimeline
from sidecar.errors import ConfigError, SpikewatchError

ENDED_AS_IT_SHOULD, DIFFERED, INTERRUPTED = 0, 1, 130


def play(
    name: str,
    options: Options,
    *,
    json_file: Path | None = None,
    picture: Path | None = None,
    keep: Path | None = None,
    plain: bool = False,
    pace: Pace | None = None,
    console: Console | None = None,
) -> int:
    """The exit code: 0 ended as it should, 1 did not, 130 interrupted. Leaves no process behind in any case."""
    console = console or Console()
    timeline = _timeline(console, SCENARIOS[name], plain)
    if picture is not None and not isinstance(timeline, LiveTimeline):
        console.print("no picture will be saved: this is no terminal, or --plain", highlight=False)
    result = _played(Demo, name, options, pace or Pace(), timeline, console, keep)
    if not isinstance(result, Result):
        return result
    if json_file is not None:
        result.report.write(json_file)
    summary(console, result, options)
    if picture is not None and isinstance(timeline, LiveTimeline):
        shot = Console(record=True, width=console.width, file=io.StringIO(), force_terminal=True)
        shot.print(timeline.screen())
        summary(shot, result, options)
        shot.save_svg(str(picture), title="spikewatch demo")
    return DIFFERED if result.differences else ENDED_AS_IT_SHOULD


def play_drill(
    name: str,
    options: Options,
    *,
    keep: Path | None = None,
    plain: bool = False,
    pace: Pace | None = None,
    console: Console | None = None,
) -> int:
    """The exit code of a drill: 0 the path came to its end, 1 it did not, 130 interrupted."""
    console = console or Console()
    result = _played(Drill, name, options, pace or Pace(), _timeline(console, SCENARIOS[name], plain), console, keep)
    if not isinstance(result, Result):
        return result
    ending(console, result)
    return DIFFERED if result.differences else ENDED_AS_IT_SHOULD


def _timeline(console: Console, scenario: Scenario, plain: bool) -> LiveTimeline | PlainTimeline:
    return LiveTimeline(console, scenario.title) if console.is_terminal and not plain else PlainTimeline(console)


def _played(
    kind: type[Demo],
    name: str,
    options: Options,
    pace: Pace,
    timeline: LiveTimeline | PlainTimeline,
    console: Console,
    keep: Path | None,
) -> Result | int:
    """The result, or where there is none the exit code."""
    if absent := missing():
        console.print(f"The demo trains a real model and needs {', '.join(absent)}: pip install 'spikewatch\\[demo]'")
        return DIFFERED
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
    # A new one each time: the state of an earlier run would have its cooldowns and its journal in it.
    directory = Path(tempfile.mkdtemp(prefix=f"spikewatch-{name}-", dir=keep)).absolute()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        with timeline:
            return kind(SCENARIOS[name], options, pace, timeline, directory).play()
    except KeyboardInterrupt:
        console.print(f"interrupted; what there is is in {directory}", highlight=False, soft_wrap=True)
        return INTERRUPTED
    except ConfigError as e:
        console.print(str(e), style="red", markup=False, highlight=False, soft_wrap=True)
    except SpikewatchError as e:
        console.print(f"the demo broke off: {e}", style="red", markup=False, highlight=False, soft_wrap=True)
    return DIFFERED


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def summary(console: Console, result: Result, options: Options) -> None:
    """The end in numbers."""
    report = result.report
    table = Table(title="By the training script's own log", title_justify="left", show_header=False, box=None)
    table.add_column(style="bold")
    table.add_column()
    before, after = report.samples_per_s_before, report.samples_per_s_after
    table.add_row("starved", _rate(before))
    gain = f" ({after - before:+.1f})" if before is not None and after is not None else ""
    table.add_row("under the change", _rate(after) + gain)
    table.add_row("best", f"{_rate(report.samples_per_s_best)}, had the settings been so from the start")
    if report.detection_s is not None:
        table.add_row("detected", f"after {report.detection_s:.1f} s of starvation and the rule's own `for`")
    end = "rolled back" if report.rolled_back else "kept" if report.verdict == "helped" else "not kept"
    verdict = f"{report.verdict}, {end}" if report.verdict else "none"
    table.add_row("verdict", f"{verdict}: {changed(report.knobs_before, report.knobs_after)}")
    counts = result.accounting
    table.add_row("samples", f"{counts.consumed} used, {counts.lost} lost, {counts.repeated} repeated")
    table.add_row("money", _money(result, options))
    console.print()
    console.print(table)
    # Apart from the table, which would break a long path into pieces that nobody can copy.
    console.print(f"Journal: {result.directory / 'state' / 'state.db'}", highlight=False, soft_wrap=True)
    console.print(f"Logs:    {result.directory}", highlight=False, soft_wrap=True)
    console.print()
    if result.differences:
        console.print("It did not end as it should:", style="bold red")
        for line in result.differences:
            console.print(f"  {line}", style="red", markup=False, highlight=False)
        if hint := _busy(os.getloadavg()[0], len(os.sched_getaffinity(0))):
            console.print(hint, highlight=False, soft_wrap=True)
    else:
        console.print("It ended as it should.", style="bold green")


def _busy(load: float, cores: int) -> str:
    """Why it may have differed: the demo's own processes make a load of some two to four."""
    if load <= 2 * cores + 2:
        return ""
    return (
        f"This machine is busy with other work (load {load:.0f} on {cores} cores), which slows the training like the"
        " trouble does: try again when it is quiet."
    )


def ending(console: Console, result: Result) -> None:
    """Where a drill's path ended."""
    report = result.report
    verdict = report.verdict or "no experiment"
    console.print()
    console.print(f"The end: {verdict}; {changed(report.knobs_before, report.knobs_after)}", markup=False)
    counts = result.accounting
    console.print(f"Samples: {counts.consumed} used, {counts.lost} lost, {counts.repeated} repeated", highlight=False)
    database = result.directory / "state" / "state.db"
    console.print(f"Journal: {database}", highlight=False, soft_wrap=True)
    for line in result.differences:
        console.print(f"It is not as it should be: {line}", style="red", markup=False, highlight=False)


def _rate(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.1f} samples/s"


def _money(result: Result, options: Options) -> str:
    report, price = result.report, options.usd_per_gpu_hour
    assumed = f"at an assumed {price:.2f} $/h a GPU"
    gain = report.usd_per_hour(options.nproc, price)
    if gain is None:
        return "not measured"
    if report.rolled_back and gain < 0:
        return f"undone: it would have wasted {-gain:.2f} $/h {assumed}"
    if report.rolled_back:
        return f"undone: it changed {gain:+.2f} $/h {assumed}"
    return f"{gain:.2f} $/h no longer wasted, {assumed}"
