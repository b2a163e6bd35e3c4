"""What a probe gives: readings with their labels, and what it cost the GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from probes.device import Device

PREFIX = "spikewatch_gpu_probe_"


@dataclass(frozen=True, slots=True)
class Reading:
    """One number. `metric` without the prefix; units as in its name: bytes_per_second, seconds, ratio."""

    metric: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()

    def as_json(self) -> dict[str, Any]:
        """For the line the child prints."""
        return {"metric": PREFIX + self.metric, "value": self.value, "labels": dict(self.labels)}


@dataclass(slots=True)
class Findings:
    """Filled while a probe runs."""

    readings: list[Reading] = field(default_factory=list)
    gpu_seconds: float = 0.0

    def add(self, metric: str, value: float, **labels: str) -> None:
        """One reading more."""
        self.readings.append(Reading(metric, value, tuple(sorted(labels.items()))))

    def value(self, metric: str, **labels: str) -> float:
        """Of a reading that is there. Raises KeyError."""
        wanted = tuple(sorted(labels.items()))
        for reading in self.readings:
            if reading.metric == metric and reading.labels == wanted:
                return reading.value
        raise KeyError(metric)


@dataclass(frozen=True, slots=True)
class Size:
    """How much work: for a real device, or so little that a CPU can do it in the tests."""

    footprint: int  # bytes a pass over memory covers: at least twice the L2 cache, or the cache is measured
    blocks: int
    threads: int
    iterations: int

    @classmethod
    def of(cls, device: Device, most_bytes: int) -> Size:
        """Three times the L2 cache and at least 128 MiB, within `most_bytes`."""
        facts = device.facts
        if facts.fake:
            return cls(1 << 16, 2, 64, 8)
        footprint = min(max(3 * facts.l2_bytes, 128 << 20), most_bytes) // 4096 * 4096
        return cls(footprint, 4 * facts.multiprocessors, 512, 2048)


Measure = Callable[[Device, Size, Findings], None]
"""Adds readings. Raises CudaError; `Wrong` where the device computed something else than the host."""


class Wrong(Exception):
    """The device's result is not the host's: nothing it measures can be believed."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One entry of the catalogue."""

    name: str
    measure: Measure
    title: str
    accounting: str  # what is counted as a byte or an operation
    gpu_seconds: float  # expected on an H200, derived from rated figures
    light: bool = False  # may run beside a trainer where that is allowed
    window_only: bool = False  # wants memory or links that a trainer would miss
