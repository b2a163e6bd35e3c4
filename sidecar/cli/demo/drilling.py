"""A drill: the demo's parts and trouble with somebody's own rules and responses, followed to the end of the path."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from sidecar.cli.demo.launch import Launcher, Options
from sidecar.cli.demo.orchestrate import Demo, Result
from sidecar.cli.demo.scenarios import Pace, Scenario, shipped_rules, waits
from sidecar.cli.demo.story import Line
from sidecar.cli.demo.timeline import Timeline
from sidecar.cli.demo.traininglog import TrainingLog
from sidecar.model import KnobValue

IDLE_S = 15.0
"""So long after the alert fired with no response to it, none will come."""


class Drill(Demo):
    """As the demo, but plans are approved, nothing is compared, and the end is right when it is an end."""

    def __init__(self, scenario: Scenario, options: Options, pace: Pace, timeline: Timeline, directory: Path) -> None:
        """`pace` is stretched by what rules and responses wait for. Raises ConfigError where they cannot be read."""
        wait = waits(options.rules or shipped_rules(), options.responses or scenario.responses_path)
        within = pace.decide_within + wait.baseline_s + wait.window_s
        super().__init__(scenario, options, replace(pace, decide_within=within), timeline, directory)
        self._approved: set[tuple[str, str]] = set()

    def _look(self) -> None:
        super()._look()
        asks, by = self._story.asks, self._options.approve_as
        if asks is None or asks in self._approved or self._watch is None:
            return
        if by:
            self._watch.approve(*asks, by)
            self._show(Line(time.time(), f"approved by {by}", "cyan"))
        else:
            self._show(Line(time.time(), "nobody approves: this is the end of the drill", "yellow"))
        self._approved.add(asks)

    def _over(self) -> bool:
        story = self._story
        left_waiting = story.asks is not None and not self._options.approve_as
        unanswered = not story.episodes and 0 < story.fired_at < time.time() - IDLE_S
        return super()._over() or left_waiting or unanswered

    def _best(self, launcher: Launcher, store: str, seed: int, knobs: Mapping[str, KnobValue]) -> float | None:
        return None

    def _result(self, log: TrainingLog, knobs: Mapping[str, KnobValue], best: float | None) -> Result:
        result, story = super()._result(log, knobs, best), self._story
        found = [f"{n} samples {what}" for n, what in (
            (result.accounting.lost, "lost"), (result.accounting.repeated, "repeated"),
            (result.accounting.reordered, "out of order")) if n]  # fmt: skip
        due = story.values if story.result == "kept" else self._knobs_before
        if not due.items() <= knobs.items():
            found.append(f"the trainer should have {dict(due)}, it has {dict(knobs)}")
        return replace(result, differences=found)
