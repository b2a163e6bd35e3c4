"""(child) GPM: activity between two samples of the GPU's counters. Hopper and newer."""

from __future__ import annotations

import math
from typing import Any

from sidecar.collectors.nvml import wire
from sidecar.collectors.nvml.driver import Ability, Driver

MIN_APART_S = 0.1  # the counters are refreshed every 100 ms; nvml.h asks for more than that between two samples


class Gpm:
    """One GPU's, or one GPU instance's, pair of sample buffers, made once and used in turn."""

    def __init__(self, driver: Driver, handle: Any, instance: int | None = None) -> None:
        """`instance`: the GPU instance of a MIG device; `handle` is then its GPU's."""
        self._driver, self._handle, self._instance = driver, handle, instance
        self.ability = Ability(instance is not None)
        self._samples: list[Any] = []
        self._taken_at: float | None = None
        self._request: Any = None
        self._metrics: list[tuple[int, Any]] = []
        self._code: Any = None
        self._value: Any = None

    def read(self) -> dict[int, float] | None:
        """Metric id → value since the call before; None where there is nothing yet, or nothing to be had."""
        driver, now = self._driver, self._driver.now()
        if self._taken_at is not None and now - self._taken_at <= MIN_APART_S:
            return None
        if not self._samples and not self._prepare():
            return None
        call = ("nvmlGpmSampleGet", self._handle) if self._instance is None else self._of_instance()
        if driver.attempt(self.ability, *call, self._samples[0]) is None:
            self._taken_at = None
            return None
        before, self._taken_at = self._taken_at, now
        self._samples.reverse()  # the newest is now last
        if before is None:
            return None
        request = self._request
        request.sample1, request.sample2 = self._samples
        if driver.attempt(self.ability, "nvmlGpmMetricsGet", request) is None:
            return None
        found = {}
        for number, metric in self._metrics:
            value = self._value(metric)
            if self._code(metric) == 0 and math.isfinite(value):
                found[number] = value
        return found

    def _of_instance(self) -> tuple[Any, ...]:
        return "nvmlGpmMigSampleGet", self._handle, self._instance

    def _prepare(self) -> bool:
        driver, nvml = self._driver, self._driver.nvml
        support = driver.attempt(self.ability, "nvmlGpmQueryDeviceSupport", self._handle)
        if support is None:
            return False
        if not support.isSupportedDevice:
            driver.refused(self.ability, wire.NOT_SUPPORTED)
            return False
        made = [driver.attempt(self.ability, "nvmlGpmSampleAlloc") for _ in range(2)]
        if None in made:
            return False
        # The structure has room for every metric there is; the library reads as many as are asked for.
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(wire.GPM)
        for place, number in enumerate(wire.GPM):
            request.metrics[place].metricId = number
        # By the fields themselves: structures of nvidia-ml-py translate every access by attribute, ten times slower.
        self._code, self._value = (getattr(nvml.c_nvmlGpmMetric_t, field).__get__ for field in ("nvmlReturn", "value"))
        self._metrics = [(number, request.metrics[place]) for place, number in enumerate(wire.GPM)]
        self._samples, self._request = made, request
        return True

    def close(self) -> None:
        """Gives the buffers back: a GPU that is divided again and again must not cost memory."""
        for sample in self._samples:
            try:
                self._driver.call("nvmlGpmSampleFree", sample)
            except self._driver.nvml.NVMLError:
                break  # the library forgets them with us
        self._samples = []
