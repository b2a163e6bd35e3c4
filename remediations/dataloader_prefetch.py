"""Feeds a starved trainer: more loader workers, and more batches prefetched by each.

Local to each rank and neutral to the numbers: sample order, random state and weights do not depend on either knob.
Both cost host memory, so both stay within half of what the pod has left, and workers within its CPU quota.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

from sidecar.hooks import Case, Details, Reading, View
from sidecar.model import Alert, AlertState, Change, Knob, KnobValue, Skip, TrainerIdentity

WORKERS, PREFETCH = "num_workers", "prefetch_factor"

WORKERS_PER_CORE = 4
"""Workers that wait for storage use little of a core, so more of them than cores pay off: four keep one core busy while
three quarters of their time is waiting. CPU-bound loading gains nothing beyond one a core, which its verdict shows."""

WORKER_BYTES = 256 << 20
"""A worker that imports torch holds over 200 MB; taken where the pod's own figure is not known."""

MEMORY_SHARE = 0.5
"""Of the memory that is free now; the other half stays for whatever else grows."""

READS = {
    "input_bytes": Reading("sum(rate(spikewatch_trainer_input_bytes_total[1m]))", 60_000),
    "steps": Reading("sum(rate(spikewatch_trainer_steps_total[1m]))", 60_000),
}
"""Together they tell the bytes of a batch, which is what a prefetched one holds."""

_CASE = View(
    {WORKERS: Knob(WORKERS, 2, 0, 64), PREFETCH: Knob(PREFETCH, 2, 1, 64)},
    TrainerIdentity("job", "1", ("a",), (0,), 1),
    {"cpu_quota": 4.0, "memory_available_bytes": float(8 << 30)},
)
_STARVED = Alert("TrainerStarvedOfData", (), (), AlertState.FIRING, 0.6, 0)


class Params(BaseModel):
    """`with:` of a response. A factor below 1 shrinks, which only a drill of the way back wants."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    factor: float = Field(default=2, ge=0.25, le=8, description="multiplies workers and prefetched batches")
    max_prefetch: int = Field(default=16, ge=1, le=64, description="batches a worker, at most")
    max_workers: int = Field(default=8, ge=1, le=64, description="workers a rank, at most")

    @field_validator("factor")
    @classmethod
    def _changes_something(cls, value: float) -> float:
        if value == 1:
            raise ValueError("a factor of 1 changes nothing")
        return value


class DataloaderPrefetch:
    """Multiplies the loader's workers and prefetch factor within quota, memory and bounds."""

    name: ClassVar[str] = "dataloader_prefetch"
    params: ClassVar[type[BaseModel]] = Params
    actuator: ClassVar[str] = "trainer"
    knobs: ClassVar[tuple[str, ...]] = (WORKERS, PREFETCH)
    example: ClassVar[Mapping[str, Any]] = {"factor": 2, "max_prefetch": 16, "max_workers": 8}
    details: ClassVar[Details] = Details(
        permissions=(f"trainer: change {WORKERS} and {PREFETCH} of each rank",),
        reads=READS,
        cases=(
            Case(
                "starved, with cores and memory to spare: twice of both",
                example,
                _STARVED,
                _CASE,
                Change("trainer", {WORKERS: 4, PREFETCH: 4}),
            ),
        ),
    )

    def plan(self, alert: Alert, view: View, params: BaseModel) -> Change | Skip:
        """Skips with `no_trainer`, `knob_missing` or `at_limit`."""
        assert isinstance(params, Params)
        if view.identity is None:
            return Skip("no_trainer", "no trainer is attached")
        missing = [name for name in self.knobs if name not in view.knobs]
        if missing:
            return Skip("knob_missing", f"the trainer does not offer {', '.join(missing)}")
        workers, prefetch = view.knobs[WORKERS], view.knobs[PREFETCH]
        memory = _memory(view, max(1, len(view.identity.ranks)))
        most, because = _most_workers(workers, int(prefetch.value), view, memory, params)
        wanted = _scaled(int(workers.value), params.factor, 1, most)
        deepest, why = _most_prefetch(wanted, workers, prefetch, memory, params)
        values: dict[str, KnobValue] = {
            WORKERS: wanted,
            PREFETCH: _scaled(int(prefetch.value), params.factor, 1, deepest),
        }
        changed = {name: value for name, value in values.items() if value != view.knobs[name].value}
        limits = f"at most {most} workers by {because}, {deepest} batches each by {why}"
        if not changed:
            edge = limits if params.factor > 1 else "at the smallest already"
            return Skip("at_limit", f"{WORKERS} = {workers.value}, {PREFETCH} = {prefetch.value}: {edge}")
        moves = ", ".join(f"{name} {view.knobs[name].value} -> {value}" for name, value in changed.items())
        return Change(self.actuator, changed, f"{moves} ({limits})")


@dataclass(frozen=True, slots=True)
class _Memory:
    """Bytes. `spare`: what a rank may take on top of what it has, None where the pod's free memory is not known;
    `worker` is a worker's own, `batch` a prefetched batch's, 0 where not known.
    """

    spare: float | None
    worker: float
    batch: float


def _memory(view: View, ranks: int) -> _Memory:
    free = view.facts.get("memory_available_bytes")
    read, steps = (sum(v for _, v in view.series.get(name, ())) for name in ("input_bytes", "steps"))
    return _Memory(
        None if free is None else free * MEMORY_SHARE / ranks,
        view.facts.get("worker_memory_bytes", WORKER_BYTES),
        read / steps if steps > 0 else 0.0,
    )


def _scaled(now: int, factor: float, least: int, most: int) -> int:
    """`now` times the factor, moved by one at least, and never against the factor's direction to meet a limit."""
    if factor > 1:
        return max(now, min(most, max(now + 1, round(now * factor))))
    return min(now, max(least, min(now - 1, round(now * factor))))


def _most_workers(workers: Knob, prefetch: int, view: View, memory: _Memory, params: Params) -> tuple[int, str]:
    """The tightest limit on a rank's workers and whose it is; the ranks of a pod share its cores and memory."""
    limits = [(_bounded(params.max_workers, workers), "max_workers")]
    if "cpu_quota" in view.facts:
        ranks = max(1, len(view.identity.ranks) if view.identity else 1)
        cores = view.facts["cpu_quota"] * WORKERS_PER_CORE / ranks
        limits.append((max(1, int(cores)), f"{WORKERS_PER_CORE} a core"))
    if memory.spare is None:
        limits.append((int(workers.value), "free memory, which is not known"))
    else:
        more = int(memory.spare / (memory.worker + prefetch * memory.batch))
        limits.append((int(workers.value) + max(0, more), "free memory"))
    return min(limits)


def _most_prefetch(wanted: int, workers: Knob, prefetch: Knob, memory: _Memory, params: Params) -> tuple[int, str]:
    """As above for the batches of a worker, once it is known how many workers there will be."""
    limits = [(_bounded(params.max_prefetch, prefetch), "max_prefetch")]
    if memory.spare is not None and memory.batch and wanted:
        now = int(workers.value)
        held = now * int(prefetch.value) * memory.batch
        left = memory.spare - max(0, wanted - now) * memory.worker + held
        limits.append((max(1, int(left / (wanted * memory.batch))), "free memory"))
    return min(limits)


def _bounded(wanted: int, knob: Knob) -> int:
    return wanted if knob.maximum is None else min(wanted, int(knob.maximum))
