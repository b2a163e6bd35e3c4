"""OpenCost's allocation API: what pods cost and use by day. No network cost means unknown: that part is optional."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

from sidecar.collectors.cost.resources import PodDay
from sidecar.collectors.cost.rows import Category, CostRow, RowProblem
from sidecar.errors import CollectError

if TYPE_CHECKING:
    import httpx

_NOBODYS = re.compile(r"(^|/)__\w+__(/|$)")
"""Allocations that are no pod: `__idle__`, `__unmounted__`, `__unallocated__`."""
_COSTS = (("cpuCost", Category.VCPU), ("gpuCost", Category.GPU), ("pvCost", Category.STORAGE))


@dataclass(frozen=True, slots=True)
class Efficiency:
    """CPU used and requested over some time, in core hours."""

    used: float
    requested: float

    @property
    def ratio(self) -> float | None:
        """None where nothing was requested."""
        return self.used / self.requested if self.requested > 0 else None


class OpenCost:
    """One OpenCost server. `client` has its base URL."""

    def __init__(self, client: httpx.Client, window: str = "21d", currency: str = "USD") -> None:
        self._client, self._window, self._currency = client, window, currency
        self.efficiency: dict[datetime, Efficiency] = {}  # by day, filled by `rows`
        self.days: dict[str, dict[date, PodDay]] = {}  # by pod, filled by `rows`

    def rows(self) -> Iterator[CostRow | RowProblem]:
        """Raises CollectError when the server gives no allocations."""
        import httpx  # 3 MB of memory that only a process that reads bills pays

        asked = {"window": self._window, "aggregate": "namespace,pod", "step": "1d", "accumulate": "false"}
        try:
            answer = self._client.get("/allocation/compute", params=asked)
            answer.raise_for_status()
            steps = answer.json()["data"]
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as e:
            raise CollectError("cost", "opencost_unreachable", f"OpenCost: {e}") from e
        if not isinstance(steps, list):
            raise CollectError("cost", "opencost_answer", "OpenCost: `data` is no list of steps")
        for number, step in enumerate(steps, start=1):
            for name, allocation in (step or {}).items():
                yield from self._allocation(number, name, allocation)

    def _allocation(self, number: int, name: str, given: Mapping[str, Any]) -> Iterator[CostRow | RowProblem]:
        try:
            start, end = (datetime.fromisoformat(given["window"][k].replace("Z", "+00:00")) for k in ("start", "end"))
            hours = _number(given, "minutes") / 60
            self._use(start, given, hours)
            self._remember(name, start, given, hours)
            for field, kind in (*_COSTS, ("networkInternetCost", Category.EGRESS)):
                cost = _number(given, field)
                if cost or field != "networkInternetCost":
                    cores = _number(given, "cpuCoreHours") if kind is Category.VCPU else 0.0
                    yield CostRow(
                        "opencost", name, kind, field, start, end, cost, cost, self._currency, cores, "core hours",
                        vcpu_hours=cores,
                    )  # fmt: skip
        except (LookupError, TypeError, ValueError, AttributeError) as e:
            yield RowProblem(f"OpenCost {name}", number, "", f"{type(e).__name__}: {e}")

    def _use(self, day: datetime, given: Mapping[str, Any], hours: float) -> None:
        used = _number(given, "cpuCoreUsageAverage") * hours
        requested = _number(given, "cpuCoreRequestAverage") * hours
        before = self.efficiency.get(day, Efficiency(0.0, 0.0))
        self.efficiency[day] = Efficiency(before.used + used, before.requested + requested)

    def _remember(self, name: str, start: datetime, given: Mapping[str, Any], hours: float) -> None:
        if _NOBODYS.search(name):
            return
        used, requested = (_number(given, f"cpuCore{what}Average") for what in ("Usage", "Request"))
        moved = sum(_number(given, f"network{what}Bytes") for what in ("Transfer", "Receive"))
        gpu = _number(given, "gpuUsageAverage")  # 0 also where nobody measures it
        day = PodDay(hours, max(used / requested, gpu) if requested > 0 else None, moved)
        self.days.setdefault(name, {})[start.astimezone(UTC).date()] = day


def _number(given: Mapping[str, Any], name: str) -> float:
    """0 where there is none: OpenCost leaves out what is 0. Raises ValueError for what is no finite number."""
    value = float(given.get(name) or 0.0)
    if not math.isfinite(value):
        raise ValueError(f"{name} is {value}")
    return value
