"""How much serialised data the tasks of a stage handle: pure functions over the REST API's answers.

Spark has no one number for it. Data is serialised where a task reads or writes files or a cache, where it gets or gives
blocks by shuffle, and where it sends its result to the driver; each is counted, in bytes as they go over the wire or
lie on the disk (compressed, where they are). A task counts with the largest of the five. So the maximum over tasks is
exact, for it is that of the five maxima; a sum of them could mix tasks. Mean and median are then the least they can be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

KINDS = ("input", "output", "shuffle_read", "shuffle_write", "result")

_TOTALS = {
    "input": "inputBytes",
    "output": "outputBytes",
    "shuffle_read": "shuffleReadBytes",
    "shuffle_write": "shuffleWriteBytes",
    "result": "resultSize",
}
_QUANTILES = {
    "input": ("inputMetrics", "bytesRead"),
    "output": ("outputMetrics", "bytesWritten"),
    "shuffle_read": ("shuffleReadMetrics", "readBytes"),
    "shuffle_write": ("shuffleWriteMetrics", "writeBytes"),
    "result": ("resultSize",),
}
_OF_A_TASK = {
    "input": (("inputMetrics", "bytesRead"),),
    "output": (("outputMetrics", "bytesWritten"),),
    "shuffle_read": (("shuffleReadMetrics", "remoteBytesRead"), ("shuffleReadMetrics", "localBytesRead")),
    "shuffle_write": (("shuffleWriteMetrics", "bytesWritten"),),
    "result": (("resultSize",),),
}


@dataclass(frozen=True, slots=True)
class Stage:
    """One attempt of a stage, from the list of stages."""

    id: int
    attempt: int
    active: bool
    tasks: int  # it is cut into
    done: int  # of them that ended well
    begun: int
    ended: str  # when, as Spark writes it; "" while it runs
    totals: Mapping[str, float]  # bytes by kind, of all tasks that began


@dataclass(frozen=True, slots=True)
class TaskBytes:
    """Bytes of a stage's tasks. What is not known is absent."""

    stats: Mapping[str, float] = field(default_factory=dict)  # mean, p50, max
    kinds: Mapping[str, float] = field(default_factory=dict)  # of the task that has most, by kind
    tasks: int = 0

    def merged(self, other: TaskBytes) -> TaskBytes:
        """The larger of each: two runs of one name are told as one."""
        return TaskBytes(
            _larger(self.stats, other.stats), _larger(self.kinds, other.kinds), max(self.tasks, other.tasks)
        )


def stage(found: Mapping[str, Any]) -> Stage | None:
    """None for a stage that has not begun, was skipped, or that the answer does not describe."""
    status = str(found.get("status", "")).upper()
    number, attempt = _number(found, "stageId"), _number(found, "attemptId")
    # lost events leave a driver with less than no active tasks
    counts = [max(0, _number(found, f"num{what}Tasks") or 0) for what in ("Active", "Complete", "Failed", "Killed")]
    if status not in ("ACTIVE", "COMPLETE", "FAILED") or number is None or not any(counts):
        return None
    return Stage(
        id=int(number),
        attempt=int(attempt or 0),
        active=status == "ACTIVE",
        tasks=int(_number(found, "numTasks") or 0),
        done=int(counts[1]),
        begun=int(sum(counts)),
        ended=str(found.get("completionTime") or ""),
        totals={kind: value for kind, key in _TOTALS.items() if (value := _number(found, key)) is not None},
    )


def chosen(stages: Iterable[Stage], active: int, ended: int) -> tuple[list[Stage], int]:
    """The newest of those that run and of those that ended, at most so many; and how many were left out.

    Of a stage's attempts the newest counts.
    """
    newest: dict[int, Stage] = {}
    for one in stages:
        if one.id not in newest or one.attempt > newest[one.id].attempt:
            newest[one.id] = one
    run = sorted((s for s in newest.values() if s.active), key=lambda s: -s.id)
    over = sorted((s for s in newest.values() if not s.active), key=lambda s: (s.ended, s.id), reverse=True)
    # those that ended earlier are not missed: they were told when they ran
    return run[:active] + over[:ended], max(0, len(run) - active)


def task_bytes(
    stage: Stage, quantiles: Mapping[str, Any] | None, running: Sequence[Mapping[str, Any]] = ()
) -> TaskBytes:
    """From the stage's totals, the quantiles 0.5 and 1 of its finished tasks, and tasks that run now."""
    mean = {kind: total / stage.begun for kind, total in stage.totals.items()}
    most = dict(mean)  # no task is known yet: some task has at least the mean
    median: dict[str, float] = {}
    for kind, keys in _QUANTILES.items():
        pair = _at(quantiles or {}, keys)
        if isinstance(pair, list) and len(pair) == 2 and all(isinstance(v, int | float) for v in pair):
            median[kind] = float(pair[0])
            most[kind] = max(most.get(kind, 0.0), float(pair[1]))
    for task in running:
        metrics = task.get("taskMetrics")
        for kind, places in _OF_A_TASK.items():
            parts = [_number(_at(metrics, keys[:-1]), keys[-1]) for keys in places]
            most[kind] = max(most.get(kind, 0.0), sum(part for part in parts if part is not None))
    stats = {
        name: max(by_kind.values()) for name, by_kind in (("mean", mean), ("p50", median), ("max", most)) if by_kind
    }
    return TaskBytes(stats, {kind: most[kind] for kind in KINDS if kind in most}, stage.tasks)


def _at(found: Any, keys: Sequence[str]) -> Any:
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _number(found: Any, key: str) -> float | None:
    value = found.get(key) if isinstance(found, Mapping) else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _larger(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {key: max(one.get(key, 0.0), other.get(key, 0.0)) for key in (*one, *other)}
