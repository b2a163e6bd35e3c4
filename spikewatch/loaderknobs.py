"""The knobs of how a DataLoader loads: workers, batches ahead, pinned memory; bounds, and when they are closed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spikewatch.knob import Knob
from spikewatch.refusal import Refused
from spikewatch.tuner import Tuner

NAMES = ("num_workers", "prefetch_factor", "pin_memory")

WORKERS_PER_CPU = 8  # more than that many worker processes a usable CPU only fight each other
SHM_SHARE = 0.5  # of the free shared memory that batches under way may take
SPARE_BATCHES = 2  # one in the loop's hands, one being handed over


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds set at attach."""

    max_workers: int = 64
    max_prefetch: int = 64
    shared_memory: str = "/dev/shm"


class LoaderKnobs:
    """A `knob.Source` of one instrumented loader."""

    def __init__(self, tuner: Tuner, limits: Limits) -> None:
        self._tuner = tuner
        self._limits = limits

    def knobs(self) -> Sequence[Knob]:
        tuner, cpus = self._tuner, len(os.sched_getaffinity(0))
        workers = max(min(self._limits.max_workers, cpus * WORKERS_PER_CPU), tuner.at_first.workers)
        prefetch = max(self._limits.max_prefetch, tuner.at_first.prefetch)
        return (
            Knob("num_workers", "int", "processes", 0, workers),
            Knob("prefetch_factor", "int", "batches per worker", 1, prefetch),
            Knob("pin_memory", "bool"),
        )

    def values(self) -> Mapping[str, Any]:
        return self._tuner.values()

    def unavailable(self) -> Mapping[str, str]:
        return self._tuner.unavailable()

    def check(self, values: Mapping[str, Any]) -> None:
        """Raises Refused(no_room) for more batches under way than shared memory holds."""
        tuner, wanted = self._tuner, {**self._tuner.values(), **values}
        if not wanted["num_workers"] or not tuner.meter.batch_bytes:
            return  # nothing goes through shared memory, or it is not known how much
        try:
            room = os.statvfs(self._limits.shared_memory)
        except OSError:
            return
        free = room.f_bavail * room.f_frsize
        size = (wanted["num_workers"] * wanted["prefetch_factor"] + SPARE_BATCHES) * tuner.meter.batch_bytes
        if size > free * SHM_SHARE:
            raise Refused(
                "no_room",
                f"{size >> 20} MiB of batches under way, {free >> 20} MiB free in {self._limits.shared_memory}",
            )

    def lag(self, values: Mapping[str, Any]) -> int:
        return 0

    def change(self, values: Mapping[str, Any], after: int) -> None:
        self._tuner.change(values)
