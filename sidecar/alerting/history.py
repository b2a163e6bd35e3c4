"""What became of a rule's last evaluations: a short ring each, served over HTTP and used by people to debug rules."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum

KEPT = 20


class Health(Enum):
    """As in Prometheus's API."""

    UNKNOWN = "unknown"
    OK = "ok"
    BAD = "err"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One evaluation: its slot, how long it took, how many elements the expression gave, and what went wrong."""

    at_ms: int
    duration_ns: int
    series: int
    error: str = ""


class History:
    """The last `KEPT` evaluations and the counters over all of them."""

    def __init__(self) -> None:
        self._ring: deque[Evaluation] = deque(maxlen=KEPT)
        self.evaluations = 0
        self.failures = 0

    def add(self, evaluation: Evaluation) -> None:
        """Notes one more."""
        self._ring.append(evaluation)
        self.evaluations += 1
        self.failures += bool(evaluation.error)

    @property
    def last(self) -> Evaluation | None:
        """The newest, or None before the first."""
        return self._ring[-1] if self._ring else None

    @property
    def failed(self) -> bool:
        """Whether the newest evaluation went wrong; also False before the first."""
        return bool(self._ring) and bool(self._ring[-1].error)

    @property
    def health(self) -> Health:
        """Good or bad as the newest evaluation was."""
        return Health.UNKNOWN if not self._ring else Health.BAD if self._ring[-1].error else Health.OK

    @property
    def recent(self) -> tuple[Evaluation, ...]:
        """Oldest first."""
        return tuple(self._ring)
