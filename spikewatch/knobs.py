"""What can be changed in this trainer, within which bounds, and why something cannot."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spikewatch.refusal import Refused
from spikewatch.tuner import Tuner

WORKERS_PER_CPU = 8  # more than that many worker processes a usable CPU only fight each other
SHM_SHARE = 0.5  # of the free shared memory that batches under way may take
SPARE_BATCHES = 2  # one in the loop's hands, one being handed over


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds set at attach."""

    max_workers: int = 64
    max_prefetch: int = 64
    shared_memory: str = "/dev/shm"


class KnobSet:
    """The knobs of one loader, or none of them. Read-only methods run on any thread, `change` on the training one."""

    def __init__(self, tuner: Tuner | None, why_none: str, limits: Limits) -> None:
        """`why_none` says why `tuner` is None."""
        self._tuner = tuner
        self._why_none = why_none
        self._limits = limits

    def values(self) -> Mapping[str, Any]:
        return self._tuner.values() if self._tuner else {}

    def bounds(self) -> dict[str, tuple[int, int]]:
        """Smallest and largest acceptable value. The value found at attach is always inside."""
        tuner = self._tuner
        if tuner is None:
            return {}
        cpus = len(os.sched_getaffinity(0))
        return {
            "num_workers": (0, max(min(self._limits.max_workers, cpus * WORKERS_PER_CPU), tuner.workers_at_first)),
            "prefetch_factor": (1, max(self._limits.max_prefetch, tuner.prefetch_at_first)),
        }

    def unavailable(self) -> dict[str, str]:
        """Knobs that cannot be changed (now), each with the reason for people."""
        tuner = self._tuner
        if tuner is None:
            return {name: self._why_none for name in ("num_workers", "prefetch_factor")}
        if tuner.probe.draws is False:
            return {}
        reason = (
            "it is not known yet whether asking for a batch draws from the run's random state"
            if tuner.probe.draws is None
            else "asking for a batch draws from the run's random state, a change would shift it"
        )
        return {name: reason for name in ("num_workers", "prefetch_factor")}

    def describe(self) -> list[dict[str, Any]]:
        """The available knobs as they go into HELLO."""
        unavailable, bounds = self.unavailable(), self.bounds()
        return [
            {
                "name": name,
                "type": "int",
                "unit": {"num_workers": "processes", "prefetch_factor": "batches per worker"}[name],
                "minimum": bounds[name][0],
                "maximum": bounds[name][1],
                "scope": "local",
                "value": value,
            }
            for name, value in self.values().items()
            if name not in unavailable
        ]

    def check(self, values: Mapping[str, Any]) -> None:
        """Raises Refused for anything that must not be set."""
        unavailable, bounds = self.unavailable(), self.bounds()
        for name, value in values.items():
            if name in unavailable:
                raise Refused("unsupported", f"{name}: {unavailable[name]}")
            if name not in bounds:
                raise Refused("unknown_knob", name)
            low, high = bounds[name]
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                raise Refused("out_of_bounds", f"{name} is a whole number from {low} to {high}")
        self._check_room({**self.values(), **values})

    def _check_room(self, values: Mapping[str, Any]) -> None:
        tuner = self._tuner
        if tuner is None or not values["num_workers"] or not tuner.meter.batch_bytes:
            return  # nothing goes through shared memory, or it is not known how much
        try:
            room = os.statvfs(self._limits.shared_memory)
        except OSError:
            return
        free = room.f_bavail * room.f_frsize
        wanted = (values["num_workers"] * values["prefetch_factor"] + SPARE_BATCHES) * tuner.meter.batch_bytes
        if wanted > free * SHM_SHARE:
            raise Refused(
                "no_room",
                f"{wanted >> 20} MiB of batches under way, {free >> 20} MiB free in {self._limits.shared_memory}",
            )

    def change(self, values: Mapping[str, Any]) -> None:
        if self._tuner is None:
            raise Refused("unsupported", self._why_none)
        self._tuner.change(values)
