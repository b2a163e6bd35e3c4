"""What is measured beyond the meter, put together for one run: losses, DDP, allocator, origin of overflows."""

from __future__ import annotations

import logging
import sys
from typing import Any, Protocol

from spikewatch import allocator, ddplog, engine
from spikewatch.meter import Meter
from spikewatch.search import Search
from spikewatch.telemetry import Telemetry, counted

log = logging.getLogger("spikewatch")


class Chore(Protocol):
    """Something only the training thread can look up, at most every second or so, between two steps."""

    due: int

    def look(self, now: int) -> None:
        """`now` in nanoseconds of the meter's clock; moves `due`."""
        ...


class Measuring:
    """The training thread's part: the chores; `search` where a scaler scales."""

    def __init__(self, meter: Meter, telemetry: Telemetry) -> None:
        self.chores: tuple[Chore, ...] = ()
        self.search: Search | None = None
        self.copy_overlap: float | None = None
        self._meter = meter
        self._ddp: ddplog.DdpLog | None = None
        self._allocator: allocator.Allocator | None = None
        self.telemetry = telemetry
        telemetry.add(counted(meter))
        telemetry.add(self._profiled)

    def begin(self, model: Any, scaler: Any) -> None:
        """Looks at what the run was attached to. Raises what torch raises."""
        self.telemetry.describe(**engine.describe(model, scaler))
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(model, torch.nn.Module):
            model, parallel, device = None, None, None
        else:
            parallel, device = ddplog.of_model(model, torch), allocator.of_model(model, torch)
        if parallel is not None:
            self._ddp = ddplog.DdpLog(parallel)
            self.chores += (self._ddp,)
            self.telemetry.add(self._ddp)
        if device is not None:
            self.telemetry.describe(gpu=engine.gpu_uuid(*device))
            driver = allocator.DriverFree(*device)
            self._allocator = allocator.Allocator(*device, driver)
            self.chores += (driver,)
            self.telemetry.add(self._allocator)
        if scaler is not None and scaler.is_enabled():
            named = model if parallel is None else parallel.module  # by the script's own names
            self.search = Search(named, lambda words: self.telemetry.describe(**words), self.graphs, self._failed)

    def graphs(self) -> bool:
        """Whether CUDA graphs were seen to hold memory."""
        return self._allocator is not None and self._allocator.graphs

    def frozen(self) -> str:
        """Why what runs on the device cannot be changed; empty when it can."""
        return "CUDA graphs replay what was captured, a change would not reach it" if self.graphs() else ""

    def look(self, now: int) -> None:
        """Does the chores that are due; one that fails is counted and not done again."""
        for chore in self.chores:
            if now >= chore.due:
                try:
                    chore.look(now)
                except Exception as error:  # noqa: BLE001  the others go on
                    self._meter.errors += 1
                    self.chores = tuple(other for other in self.chores if other is not chore)
                    log.warning("spikewatch no longer asks %s: %r", type(chore).__name__, error)

    def _failed(self, errors: int) -> None:
        self._meter.errors += errors

    def _profiled(self, _: float) -> dict[str, float]:
        return {} if self.copy_overlap is None else {"copy_compute_overlap_ratio": self.copy_overlap}

    def close(self) -> None:
        """Puts back what was set in the trainer's own objects."""
        if self._ddp is not None:
            self._ddp.close()
        if self.search is not None:
            self.search.abandon()
