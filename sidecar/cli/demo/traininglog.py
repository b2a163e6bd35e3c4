"""The training script's own log, read while it is written, and what follows from it: speed, starvation, samples.

Nothing here comes from spikewatch: the demo judges the sidecar by what the trainer itself wrote down.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STARVED = 0.3  # of a step's time spent waiting for data, as in the rule TrainerStarvedOfData
CALM = 8  # steps in a row that are not starved end a starvation: four batches may wait ready when it begins


@dataclass(frozen=True, slots=True)
class Step:
    """One step of one rank. `end` is wall seconds, `step_s` and `wait_s` are seconds, `samples` dataset indices."""

    epoch: int
    number: int
    end: float
    step_s: float
    wait_s: float
    samples: tuple[int, ...]

    @property
    def begin(self) -> float:
        """Wall seconds."""
        return self.end - self.step_s

    @property
    def starved(self) -> bool:
        """Whether more than 30 % of the step was waiting for data."""
        return self.wait_s > STARVED * self.step_s


@dataclass(slots=True)
class RankLog:
    """What one rank has written so far."""

    start: dict[str, Any] = field(default_factory=dict)
    orders: dict[int, tuple[int, ...]] = field(default_factory=dict)  # epoch → indices as the sampler laid them down
    steps: list[Step] = field(default_factory=list)
    ended: bool = False

    def take(self, line: str) -> None:
        """One line of the log. Raises ValueError or KeyError for one that the script does not write."""
        entry = json.loads(line)
        match entry["event"]:
            case "step":
                samples = tuple(entry["samples"])
                self.steps.append(
                    Step(entry["epoch"], entry["step"], entry["t"], entry["step_s"], entry["wait_s"], samples)
                )
            case "epoch":
                self.orders[entry["epoch"]] = tuple(entry["order"])
            case "start":
                self.start = entry
            case "end":
                self.ended = True
            case other:
                raise ValueError(f"unknown event {other!r} in a training log")

    def ended_between(self, since: float, until: float) -> Sequence[Step]:
        """Steps that ended after `since` and by `until`, wall seconds."""
        first, last = (bisect_right(self.steps, t, key=lambda step: step.end) for t in (since, until))
        return self.steps[first:last]

    def between(self, since: float, until: float) -> Sequence[Step]:
        """Of those the ones that also began at or after `since`."""
        steps = self.ended_between(since, until)
        return steps[1:] if steps and steps[0].begin < since else steps


class TrainingLog:
    """The logs of all ranks in `directory`, followed by `poll`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[Path, int] = {}
        self.ranks: dict[int, RankLog] = {}

    def poll(self) -> None:
        """Takes what was written since the last call; a line still being written waits for the next."""
        for path in sorted(self._directory.glob("rank*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                whole, newline, _ = file.read().rpartition(b"\n")
            if not newline:
                continue
            self._read[path] = self._read.get(path, 0) + len(whole) + 1
            rank = self.ranks.setdefault(int(path.stem.removeprefix("rank")), RankLog())
            for line in whole.decode().split("\n"):
                rank.take(line)

    def first_step(self) -> float | None:
        """Wall seconds at which every rank had done a step, None before."""
        firsts = [rank.steps[0].end for rank in self.ranks.values() if rank.steps]
        world = next((rank.start["world"] for rank in self.ranks.values() if rank.start), 0)
        return max(firsts) if firsts and len(firsts) == world else None

    def samples_per_s(self, since: float, until: float) -> float | None:
        """Samples per second of all ranks together, of the steps that ended in the time; wall seconds.

        A stall counts, as it should: the time is all of it, not only that of whole steps. None where a rank has not
        done a step before `until`.
        """
        total = 0
        for rank in self.ranks.values():
            ended = rank.ended_between(since, until)
            if not ended and not (rank.steps and rank.steps[0].end <= since):
                return None
            total += sum(len(step.samples) for step in ended)
        return total / (until - since) if self.ranks else None

    def step_s(self, since: float, until: float) -> float | None:
        """Mean seconds per step over all ranks; None without steps."""
        return _mean([step.step_s for rank in self.ranks.values() for step in rank.between(since, until)])

    def wait_share(self, since: float, until: float) -> float | None:
        """Part of the step time spent waiting for data, 0 to 1, all ranks together; None without steps."""
        steps = [step for rank in self.ranks.values() for step in rank.between(since, until)]
        spent = sum(step.step_s for step in steps)
        return sum(step.wait_s for step in steps) / spent if spent else None

    def starved_since(self, since: float, until: float) -> float | None:
        """When the starvation that lasts at `until` began: wall seconds at which its first starved step began.

        Going back from `until`, it reaches to where eight steps in a row were not starved, and not beyond `since`.
        The earliest rank counts; None where no rank is starved.
        """
        firsts = [first for r in self.ranks.values() if (first := _sustained(r.between(since, until))) is not None]
        return min(firsts) if firsts else None

    def accounting(self) -> Accounting:
        """Every consumed sample against the order the sampler laid down, all ranks and epochs."""
        total = Accounting()
        for rank in self.ranks.values():
            total += _rank_accounting(rank)
        return total


@dataclass(frozen=True, slots=True)
class Accounting:
    """Samples that were due and not consumed, consumed more often than due, or consumed in another place than due."""

    consumed: int = 0
    lost: int = 0
    repeated: int = 0
    reordered: int = 0

    def __add__(self, other: Accounting) -> Accounting:
        return Accounting(
            self.consumed + other.consumed,
            self.lost + other.lost,
            self.repeated + other.repeated,
            self.reordered + other.reordered,
        )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _sustained(steps: Iterable[Step]) -> float | None:
    begin, calm = None, 0
    for step in steps:
        calm = 0 if step.starved else calm + 1
        if step.starved and begin is None:
            begin = step.begin
        elif calm >= CALM:
            begin = None
    return begin


def _rank_accounting(rank: RankLog) -> Accounting:
    total = Accounting()
    consumed: dict[int, list[int]] = {epoch: [] for epoch in rank.orders}
    for step in rank.steps:
        consumed.setdefault(step.epoch, []).extend(step.samples)
    for epoch, got in consumed.items():
        order = rank.orders.get(epoch, ())
        finished = epoch < max(consumed)
        total += account(order, got, finished=finished)
    return total


def account(order: Sequence[int], got: Sequence[int], *, finished: bool) -> Accounting:
    """One epoch: what was due is `order`, or, where it is not finished, `order` up to the furthest sample consumed."""
    if list(got) == list(order[: len(got)]) and (len(got) == len(order) or not finished):
        return Accounting(len(got))
    place = {sample: i for i, sample in enumerate(order)}
    due = order if finished else order[: 1 + max((place.get(sample, -1) for sample in got), default=-1)]
    missing, extra = Counter(due) - Counter(got), Counter(got) - Counter(due)
    kept_due, kept_got = _without(due, missing), _without(got, extra)
    moved = sum(a != b for a, b in zip(kept_due, kept_got, strict=True))
    return Accounting(len(got), missing.total(), extra.total(), moved)


def _without(samples: Sequence[int], left_out: Counter[int]) -> list[int]:
    """`samples` less so many of each; of a repeated sample the later ones go."""
    budget = Counter(samples) - left_out
    kept = []
    for sample in samples:
        if budget[sample] > 0:
            budget[sample] -= 1
            kept.append(sample)
    return kept
