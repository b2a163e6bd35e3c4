"""What the sidecar itself knows that decides whether to probe: asked of its own query API, in PromQL.

A collector sees neither the store nor the trainer channel; the loopback listener answers as it answers anybody.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx

WINDOW = 'max(spikewatch_trainer_phase{phase=~"checkpoint|eval"}) == 1'
XID = "sum(increase(spikewatch_gpu_xid_errors_total[10m])) > 0"
BESIDE_S, BEFORE_S = 10, 50
"""Steps in the seconds with the newest turn, against those in the seconds before."""
_STEP = (
    "sum(increase(spikewatch_trainer_step_seconds_total[{0}s]{1}))"
    " / sum(increase(spikewatch_trainer_steps_total[{0}s]{1}))"
)
STEP_RATIO = f"({_STEP.format(BESIDE_S, '')}) / ({_STEP.format(BEFORE_S, f' offset {BESIDE_S}s')})"
ENOUGH = f"min(sum(increase(spikewatch_trainer_steps_total[{BESIDE_S}s]))) >= 5"


@dataclass(frozen=True, slots=True)
class Known:
    """None and False where nothing is known."""

    window_open: bool = False
    recent_xid: bool = False
    step_time_ratio: float | None = None


class Asker:
    """Asks a Prometheus-compatible API. Never raises: an API that does not answer knows nothing."""

    def __init__(self, url: str, transport: httpx.BaseTransport | None = None) -> None:
        self._url = url
        self._client: httpx.Client | None = None
        if url:
            import httpx  # 3 MB of memory that only a sidecar with something to ask pays

            self._client = httpx.Client(base_url=url, timeout=2.0, transport=transport, trust_env=False)

    def known(self) -> Known:
        """Before a turn."""
        return Known(window_open=self._holds(WINDOW), recent_xid=self._holds(XID))

    def step_time_ratio(self) -> float | None:
        """Some seconds after a turn: step time with it over step time without; None for too few steps to say."""
        if not self._holds(ENOUGH):
            return None
        value = self._value(STEP_RATIO)
        return value if value is not None and math.isfinite(value) and value > 0 else None

    def close(self) -> None:
        """Closes the connection."""
        if self._client is not None:
            self._client.close()

    def _holds(self, expr: str) -> bool:
        return self._value(expr) is not None

    def _value(self, expr: str) -> float | None:
        if self._client is None:
            return None
        import httpx

        try:
            answer = self._client.get("/api/v1/query", params={"query": expr})
            result = answer.json()["data"]["result"]
            return float(result[0]["value"][1]) if result else None
        except (httpx.HTTPError, ValueError, LookupError, TypeError):
            return None
