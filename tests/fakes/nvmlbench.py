"""An NVML collector over a scenario, asked as the runner asks: probe, sample, and what came of it by short names."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import fakenvml

from sidecar.collectors.nvml.collector import NvmlCollector, NvmlSettings
from sidecar.errors import CollectError
from sidecar.model import Status

PATIENCE_S = 25.0
PREFIX = "spikewatch_gpu_"


class Hands:
    """A clock that stands still until moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class NvmlBench:
    """`collector`, `scenario`, `clock` (of its pauses; the child's is the real one) and the newest `values`."""

    def __init__(self, file: Path, gpus: int, library: Path | None, settings: dict[str, Any]) -> None:
        self.scenario = fakenvml.Scenario(file, gpus)
        self.clock, self.ended = Hands(), 0
        given = {"fast": "150ms", "slow": "1s", "rare": "1s", "library_path": library, **settings}
        self.collector = NvmlCollector(NvmlSettings.model_validate(given), self.clock, end=self._end)
        self.values: dict[tuple[str, str], float] = {}
        self.status: Status | None = None

    def _end(self) -> None:
        self.ended += 1

    def ask(self) -> dict[tuple[str, str], float]:
        """Probes and samples: (name, "index" or "index label-value …") → value. Raises CollectError."""
        self.status = self.collector.probe()
        self.values = {}
        for sample in self.collector.sample(0):
            labels = dict(sample.labels)
            own = [v for k, v in sample.labels if k not in ("gpu", "index")]
            key = sample.metric.removeprefix(PREFIX), " ".join([labels.get("index", ""), *own]).strip()
            assert key not in self.values, f"{key} came twice"
            self.values[key] = sample.value
        return self.values

    def until(self, wanted: Any, what: str = "") -> dict[tuple[str, str], float]:
        """Asks until `wanted(values)`; in between the child has time for its fast samples."""
        end = time.monotonic() + PATIENCE_S
        while True:
            values = self.ask()
            if wanted(values):
                return values
            assert time.monotonic() < end, f"{what or 'never came'}: {values}"
            time.sleep(0.05)

    def until_seen(self, name: str, which: str = "0") -> float:
        """The value of a series, once it is there."""
        return self.until(lambda values: (name, which) in values, f"{name} {which}")[name, which]

    def until_failed(self) -> str:
        """The reason of the failure that must come."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            try:
                self.ask()
            except CollectError as e:
                return e.reason
            time.sleep(0.05)
        raise AssertionError("it never failed")

    def until_works(self) -> dict[tuple[str, str], float]:
        """Values, once failures are over; the clock of the pauses moves on meanwhile."""
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self.ask()
            except CollectError:
                assert time.monotonic() < end, "it never worked again"
                self.clock.now += 5
                time.sleep(0.05)

    def up(self) -> dict[str, float]:
        """GPU → whether it answers."""
        return {which: value for (name, which), value in self.values.items() if name == "up"}

    def capability(self, name: str, which: str = "0") -> str:
        """`state reason` of a capability, empty where nothing is said of it."""
        start = f"{which} {name} "
        found = [key[len(start) :] for what, key in self.values if what == "capability" and key.startswith(start)]
        assert len(found) <= 1
        return found[0] if found else ""
