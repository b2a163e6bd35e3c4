"""Device time of queued work, by events behind a gate: no gap between launches is inside of what is timed."""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from probes.device import Device

REPEATS = 5
GATE_NS = 2_000_000
"""The gate opens by itself after so long: a host that is descheduled must not hold the GPU."""


@dataclass(frozen=True, slots=True)
class Took:
    """Seconds of device time. `best` is what the hardware can do, `median` what it did while shared."""

    best: float
    median: float
    total: float  # all that was run, the warm-up included: what it cost the GPU

    @classmethod
    def of(cls, seconds: Sequence[float], warm_up: float) -> Took:
        """Of repeated measurements."""
        return cls(min(seconds), statistics.median(seconds), sum(seconds) + warm_up)


class Stopwatch:
    """Times what `run` queues on the default stream. A context manager."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._held = ExitStack()

    def __enter__(self) -> Stopwatch:
        device = self._device
        self._events = [self._held.enter_context(device.event()) for _ in range(REPEATS + 1)]
        self._flag = self._held.enter_context(device.pinned(64, mapped=True))
        self._flag_there = device.device_address(self._flag)
        self._gate = device.kernel("timing", "gate")
        return self

    def __exit__(self, *error: object) -> None:
        self._held.close()

    def time(self, run: Callable[[], None], repeats: int = REPEATS) -> Took:
        """Runs once to warm up, then `repeats` times in one train. Raises CudaError."""
        warm_up = self._train(run, 1)[0]
        seconds = self._train(run, min(repeats, REPEATS))
        return Took.of(seconds, warm_up)

    def _train(self, run: Callable[[], None], repeats: int) -> list[float]:
        call = self._device.driver
        flag = ctypes.c_uint.from_address(self._flag)
        flag.value = 0
        self._device.launch(self._gate, 1, 1, [ctypes.c_ulonglong(self._flag_there), ctypes.c_ulonglong(GATE_NS)])
        call("cuEventRecord", self._events[0], None)
        for n in range(repeats):
            run()
            call("cuEventRecord", self._events[n + 1], None)
        flag.value = 1
        call("cuEventSynchronize", self._events[repeats])
        return [self.between(n, n + 1) for n in range(repeats)]

    def between(self, first: int, last: int) -> float:
        """Seconds between two events of the last train."""
        milliseconds = ctypes.c_float()
        self._device.driver("cuEventElapsedTime", ctypes.byref(milliseconds), self._events[first], self._events[last])
        return milliseconds.value / 1000
