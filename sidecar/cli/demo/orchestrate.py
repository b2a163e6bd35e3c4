"""Plays one scenario: starts everything, makes trouble at a random moment, watches, measures, cleans up."""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

from sidecar.cli.demo.launch import BATCH_SIZE, KNOBS, DemoError, Launcher, Options, inherited, store_url
from sidecar.cli.demo.processes import Child, Processes
from sidecar.cli.demo.report import Report, differences
from sidecar.cli.demo.scenarios import ALERT, Pace, Scenario, shipped_rules, waits
from sidecar.cli.demo.story import Line, Story, changed
from sidecar.cli.demo.timeline import Frame, Timeline
from sidecar.cli.demo.traininglog import Accounting, TrainingLog
from sidecar.cli.demo.watch import Watch
from sidecar.model import KnobValue

LOOK_EVERY_S = 0.25
SHOWN_S = 5.0  # what throughput and data wait on the screen are averaged over


@dataclass(frozen=True, slots=True)
class Result:
    """How it went. `differences` is empty when the scenario ended as it should."""

    report: Report
    accounting: Accounting
    differences: list[str]
    directory: Path


class Demo:
    """One scenario, once. `directory` is kept: logs, state and journal."""

    def __init__(self, scenario: Scenario, options: Options, pace: Pace, timeline: Timeline, directory: Path) -> None:
        self._scenario, self._options, self._pace, self._timeline = scenario, options, pace, timeline
        self._directory = directory
        self._began = time.time()
        self._log = TrainingLog(directory / "training")
        self._story = Story()
        self._children: list[Child] = []
        self._watch: Watch | None = None
        self._waits = waits(options.rules or shipped_rules(), options.responses or scenario.responses_path)
        self._trouble_at = 0.0
        self._knobs_before: Mapping[str, KnobValue] = {}
        self._knobs_now: Mapping[str, KnobValue] = {}
        self._knobs_at = 0.0
        self._stage, self._stage_began, self._stage_s = "starting", self._began, 0.0

    def play(self) -> Result:
        """To the end. Raises SpikewatchError where something breaks on the way."""
        seed = self._options.seed if self._options.seed is not None else random.SystemRandom().randrange(1 << 31)
        random_ = random.Random(seed)
        run_dir = Path(tempfile.mkdtemp(prefix="spikewatch-", dir="/tmp"))  # short: a socket lies in it
        try:
            with (
                Processes(self._directory, [run_dir], inherited()) as processes,
                httpx.Client(timeout=5, trust_env=False) as client,
            ):
                launcher = Launcher(processes, self._scenario, self._options, self._directory, run_dir)
                self._say(f"seed {seed}; everything is kept in {self._directory}")
                store, trainer, sidecar = self._start(launcher, client, seed)
                self._healthy(random_)
                self._trouble(client, store)
                self._experiment()
                self._enter("the trainer reports its settings")
                knobs = self._reported(self._story.values if self._story.result == "kept" else self._knobs_before)
                self._for(self._pace.after)
                self._enter("stopping the training run")
                launcher.stop_trainer(trainer, self._log)
                processes.stop(sidecar)
                self._log.poll()
                log, best = self._log, self._best(launcher, store, seed, knobs)
        finally:
            shutil.rmtree(run_dir, ignore_errors=True)
        return self._result(log, knobs, best)

    # --- the stages -------------------------------------------------------------------------------------------------

    def _start(self, launcher: Launcher, client: httpx.Client, seed: int) -> tuple[str, Child, Child]:
        self._enter("starting object store and sidecar")
        store, (sidecar, url) = launcher.store(seed), launcher.sidecar()
        self._children = [store, sidecar]
        watch = Watch(url, client)
        self._until(lambda: store_url(store) is not None and watch.ready(), self._pace.start_within, "did not start")
        address = store_url(store)
        assert address is not None
        self._watch = watch
        self._enter("training starts")
        trainer = launcher.trainer("training", address, seed, KNOBS, attached=True)
        self._children.append(trainer)
        self._until(lambda: self._log.first_step() is not None, self._pace.start_within, "no training step")
        ranks = f"{self._options.nproc} ranks" if self._options.nproc > 1 else "one process"
        self._say(f"training runs on {ranks} with {changed(KNOBS, KNOBS)}")
        return address, trainer, sidecar

    def _healthy(self, random_: random.Random) -> None:
        calm = self._pace.warm_up + random_.uniform(*self._pace.moment)
        self._enter("training, healthy; trouble comes at a random moment")
        self._for(calm)
        if self._story.active_at:
            raise DemoError(f"{ALERT} was pending before there was any trouble: is this machine very busy?")
        self._knobs_before = self._reported(KNOBS)

    def _trouble(self, client: httpx.Client, store: str) -> None:
        now = time.time()
        step_s = self._log.step_s(now - self._pace.warm_up, now)
        if step_s is None:
            raise DemoError("no training step was finished while all was well")
        wanted = dict(self._scenario.trouble)
        if self._scenario.starve:
            wanted["latency_ms"] = round(self._scenario.latency_ms(step_s, int(KNOBS["num_workers"]), BATCH_SIZE), 1)
        self._trouble_at = now
        client.put(f"{store}/control", json=wanted).raise_for_status()
        told = ", ".join(f"{name}={value:g}" for name, value in wanted.items())
        self._say(f"trouble: {self._scenario.trouble_text} ({told})", "red")

    def _experiment(self) -> None:
        story, pace, wait = self._story, self._pace, self._waits
        self._enter("starving")
        self._until(lambda: bool(story.active_at), pace.fire_within, f"{ALERT} not pending")
        self._enter(f"{ALERT} is pending", wait.pending_s)
        self._until(lambda: bool(story.fired_at), pace.fire_within + wait.pending_s, f"{ALERT} did not fire")
        # The baseline begins while the alert is pending, as soon as the ranges hold nothing from before.
        self._enter("collecting the baseline", wait.baseline_s, began=story.active_at + wait.range_s)
        self._until(lambda: bool(story.ordered_at) or self._over(), pace.decide_within, "no remediation")
        self._enter("the change takes effect", wait.range_s)
        self._until(lambda: story.phase == "measuring" or self._over(), pace.decide_within, "nothing was measured")
        self._enter("measuring what the change did", wait.window_s)
        self._until(lambda: self._over(), pace.decide_within, "no verdict")

    def _reported(self, due: Mapping[str, KnobValue]) -> Mapping[str, KnobValue]:
        """The settings that every rank reports; waits a while for them to be what is `due`."""
        watch = self._watch
        assert watch is not None
        deadline = time.time() + self._pace.report_within
        while True:
            ranks = watch.knobs()
            if len(ranks) == self._options.nproc and all(rank == ranks[0] for rank in ranks):
                if due.items() <= ranks[0].items() or time.time() > deadline:
                    return ranks[0]
            elif time.time() > deadline:
                raise DemoError(f"{self._options.nproc} ranks should report the same settings, these are: {ranks}")
            self._for(LOOK_EVERY_S)

    def _best(self, launcher: Launcher, store: str, seed: int, knobs: Mapping[str, KnobValue]) -> float | None:
        self._say(f"for comparison: a run with {changed(knobs, knobs)} from its start")
        self._enter("comparison run")
        self._watch, self._children = None, self._children[:1]
        log = self._log = TrainingLog(self._directory / "comparison")
        trainer = launcher.trainer("comparison", store, seed, knobs, attached=False)
        self._children.append(trainer)
        self._until(lambda: log.first_step() is not None, self._pace.start_within, "no training step")
        self._for(self._pace.best_warm_up)
        self._enter("comparison run", self._pace.best)
        since = time.time()
        self._for(self._pace.best)
        best = log.samples_per_s(since, time.time())
        launcher.stop_trainer(trainer, log)
        return best

    # --- looking ----------------------------------------------------------------------------------------------------

    def _until(self, reached: Callable[[], bool], within_s: float, otherwise: str) -> None:
        deadline = time.time() + within_s
        while True:
            self._look()
            if reached():
                return
            if time.time() > deadline:
                raise DemoError(f"{otherwise} within {within_s:g} s; see the logs in {self._directory}")
            time.sleep(LOOK_EVERY_S)

    def _for(self, seconds: float) -> None:
        deadline = time.time() + seconds
        while (left := deadline - time.time()) > 0:
            self._look()
            time.sleep(min(left, LOOK_EVERY_S))

    def _look(self) -> None:
        for child in self._children:
            child.check()
        self._log.poll()
        now = time.time()
        if self._watch is not None:
            for line in filter(None, map(self._story.take, self._watch.journal())):
                self._show(line)
            if now - self._knobs_at >= 1:
                self._knobs_now, self._knobs_at = next(iter(self._watch.knobs()), {}), now
        self._timeline.frame(
            Frame(
                now - self._began,
                self._stage,
                self._log.samples_per_s(now - SHOWN_S, now),
                self._log.wait_share(now - SHOWN_S, now),
                self._story.alert,
                self._knobs_now,
                (max(0.0, now - self._stage_began), self._stage_s) if self._stage_s else None,
            )
        )

    def _over(self) -> bool:
        """Whether nothing more will come of the alert."""
        return self._story.over

    def _enter(self, stage: str, seconds: float = 0.0, began: float = 0.0) -> None:
        self._stage, self._stage_began, self._stage_s = stage, began or time.time(), seconds

    def _say(self, text: str, style: str = "") -> None:
        self._show(Line(time.time(), text, style))

    def _show(self, line: Line) -> None:
        self._timeline.event(line.at - self._began, line.text, line.style)

    # --- the end ----------------------------------------------------------------------------------------------------

    def _result(self, log: TrainingLog, knobs: Mapping[str, KnobValue], best: float | None) -> Result:
        story = self._story
        starved = log.starved_since(self._trouble_at, story.fired_at)
        before = after = detection = None
        if starved is not None:
            detection = story.fired_at - starved - self._waits.pending_s
            if story.ordered_at:
                before = log.samples_per_s(starved + self._waits.range_s, story.ordered_at)
        if story.verdict_at:
            after = log.samples_per_s(story.measure_from, story.verdict_at)
        accounting = log.accounting()
        report = Report(
            scenario=self._scenario.name,
            samples_per_s_before=_rounded(before),
            samples_per_s_after=_rounded(after),
            samples_per_s_best=_rounded(best),
            detection_s=_rounded(detection),
            verdict=story.verdict,
            rolled_back=story.result == "rolled_back",
            knobs_before=self._knobs_before,
            knobs_after=knobs,
            samples_lost=accounting.lost,
            samples_repeated=accounting.repeated,
        )
        return Result(report, accounting, differences(report, self._scenario, accounting), self._directory)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
