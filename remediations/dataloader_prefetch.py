"""Feeds a starved trainer: more loader workers, and more batches prefetched by each.

Local to each rank and neutral to the numbers: sample order, random state and weights do not depend on either knob.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

from sidecar.hooks import View
from sidecar.model import Alert, Change, Knob, KnobValue, Skip

WORKERS, PREFETCH = "num_workers", "prefetch_factor"

WORKERS_PER_CORE = 4
"""Workers that wait for storage use little of a core, so more of them than cores pay off: four keep one core busy while
three quarters of their time is waiting. CPU-bound loading gains nothing beyond one a core, which its verdict shows."""

WORKER_BYTES = 256 << 20
"""A worker that imports torch holds over 200 MB; taken where the pod's own figure is not known."""

MEMORY_SHARE = 0.5
"""Of the memory that is free now; the rest is for the batches that wait in the queues."""


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

    def plan(self, alert: Alert, view: View, params: BaseModel) -> Change | Skip:
        """Skips with `no_trainer`, `knob_missing` or `at_limit`."""
        assert isinstance(params, Params)
        if view.identity is None:
            return Skip("no_trainer", "no trainer is attached")
        missing = [name for name in self.knobs if name not in view.knobs]
        if missing:
            return Skip("knob_missing", f"the trainer does not offer {', '.join(missing)}")
        workers, prefetch = view.knobs[WORKERS], view.knobs[PREFETCH]
        ranks = max(1, len(view.identity.ranks))
        most, because = _most_workers(workers, ranks, view.facts, params)
        values: dict[str, KnobValue] = {
            WORKERS: _scaled(int(workers.value), params.factor, 1, most),
            PREFETCH: _scaled(int(prefetch.value), params.factor, 1, _bounded(params.max_prefetch, prefetch)),
        }
        changed = {name: value for name, value in values.items() if value != view.knobs[name].value}
        if not changed:
            edge = f"limited to {most} workers by {because}" if params.factor > 1 else "at the smallest already"
            return Skip("at_limit", f"{WORKERS} = {workers.value}, {PREFETCH} = {prefetch.value}: {edge}")
        moves = ", ".join(f"{name} {view.knobs[name].value} -> {value}" for name, value in changed.items())
        return Change(self.actuator, changed, f"{moves} (at most {most} workers by {because})")


def _scaled(now: int, factor: float, least: int, most: int) -> int:
    """`now` times the factor, moved by one at least, and never against the factor's direction to meet a limit."""
    if factor > 1:
        return max(now, min(most, max(now + 1, round(now * factor))))
    return min(now, max(least, min(now - 1, round(now * factor))))


def _most_workers(workers: Knob, ranks: int, facts: Mapping[str, float], params: Params) -> tuple[int, str]:
    """The tightest limit on a rank's workers and whose it is; the ranks of a pod share its cores and memory."""
    limits = [(_bounded(params.max_workers, workers), "max_workers")]
    if "cpu_quota" in facts:
        limits.append((max(1, int(facts["cpu_quota"] * WORKERS_PER_CORE / ranks)), f"{WORKERS_PER_CORE} a core"))
    if "memory_available_bytes" in facts:
        each = facts.get("worker_memory_bytes", WORKER_BYTES)
        more = int(facts["memory_available_bytes"] * MEMORY_SHARE / each / ranks)
        limits.append((int(workers.value) + max(0, more), "free memory"))
    return min(limits)


def _bounded(wanted: int, knob: Knob) -> int:
    return wanted if knob.maximum is None else min(wanted, int(knob.maximum))
