"""What the person at the terminal sees: a live picture of the run, or one line an event where there is no terminal."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sidecar.cli.demo.traininglog import STARVED
from sidecar.model import KnobValue

BARS = "▁▂▃▄▅▆▇█"
SPARK_S = 2.0  # seconds a column of the throughput curve stands for
SPARK_COLUMNS = 48
EVENTS_SHOWN = 16


@dataclass(frozen=True, slots=True)
class Frame:
    """What is known at one moment, `at` seconds after the start. None and empty are not known (yet)."""

    at: float
    stage: str
    samples_per_s: float | None = None
    wait_share: float | None = None
    alert: str = ""
    knobs: Mapping[str, KnobValue] = field(default_factory=dict)
    progress: tuple[float, float] | None = None  # seconds done, seconds in all


class Timeline(Protocol):
    """A context manager that shows the run while it is open."""

    def __enter__(self) -> Timeline: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def event(self, at: float, text: str, style: str = "") -> None:
        """Something happened, `at` seconds after the start. `style` is a rich style."""
        ...

    def frame(self, frame: Frame) -> None:
        """The state now."""
        ...


class PlainTimeline:
    """One line an event; frames are left out."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __enter__(self) -> PlainTimeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is open."""

    def event(self, at: float, text: str, style: str = "") -> None:
        self._console.print(f"{at:6.1f} s  {text}", markup=False, highlight=False, soft_wrap=True)

    def frame(self, frame: Frame) -> None:
        """Left out."""


class LiveTimeline:
    """Redraws in place. Without a thread of its own: it is drawn when a frame arrives."""

    def __init__(self, console: Console, title: str) -> None:
        self._title = title
        self._events: deque[tuple[float, str, str]] = deque(maxlen=EVENTS_SHOWN)
        self._rates: deque[tuple[float, float]] = deque(maxlen=SPARK_COLUMNS)
        self._frame = Frame(0, "starting")
        self._live = Live(console=console, auto_refresh=False, get_renderable=self.screen)

    def __enter__(self) -> LiveTimeline:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def event(self, at: float, text: str, style: str = "") -> None:
        self._events.append((at, text, style))
        self._live.refresh()

    def frame(self, frame: Frame) -> None:
        self._frame = frame
        due = not self._rates or frame.at - self._rates[-1][0] >= SPARK_S
        if due and frame.samples_per_s is not None:
            self._rates.append((frame.at, frame.samples_per_s))
        self._live.refresh()

    def screen(self) -> RenderableType:
        """Everything there is to see now."""
        frame = self._frame
        state = Table.grid(padding=(0, 2))
        state.add_column(style="bold", no_wrap=True)
        state.add_column(no_wrap=True, min_width=14)
        state.add_column()
        rate = "–" if frame.samples_per_s is None else f"{frame.samples_per_s:6.1f} samples/s"
        state.add_row("throughput", rate, Text(sparkline([r for _, r in self._rates]), style="cyan"))
        state.add_row("data wait", *_wait(frame.wait_share))
        state.add_row("loader", ", ".join(f"{k}={v}" for k, v in sorted(frame.knobs.items())) or "–", "")
        styles = {"pending": "yellow", "firing": "bold red"}
        state.add_row("alert", Text(frame.alert or "none", style=styles.get(frame.alert, "green")), "")
        if frame.progress is None:
            state.add_row("now", frame.stage, "")
        else:
            done, total = frame.progress
            bar = ProgressBar(total=total, completed=min(done, total), width=SPARK_COLUMNS // 2)
            state.add_row("now", f"{frame.stage} {min(done, total):.0f}/{total:.0f} s", bar)
        events = [Text(f"{at:6.1f} s  {text}", style=style) for at, text, style in self._events]
        head = Text.assemble((self._title, "bold"), f"   {frame.at:5.0f} s")
        return Group(head, Text(), state, Text(), *events)


def _wait(share: float | None) -> tuple[RenderableType, RenderableType]:
    if share is None:
        return "–", ""
    style = "red" if share > STARVED else "green"
    bar = ProgressBar(total=1.0, completed=share, width=SPARK_COLUMNS // 2, complete_style=style, finished_style=style)
    return Text(f"{share:6.0%} of step time", style=style), bar


def sparkline(values: list[float]) -> str:
    """One block character a value, from 0 to the largest."""
    top = max(values, default=0)
    return "".join(BARS[round(value / top * (len(BARS) - 1))] if top else BARS[0] for value in values)
