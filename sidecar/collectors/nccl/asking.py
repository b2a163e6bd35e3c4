"""When the RAS service may be asked: rarely, late, only when something is wrong, and only where it is known to survive.

Queries during initialisation, or often, have crashed jobs under NCCL 2.26.2, 2.26.5, 2.27.3 and 2.29.7.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from pydantic import BaseModel, ConfigDict, Field

from sidecar.collectors.nccl import ras
from sidecar.collectors.nccl.logbook import OPS, operation
from sidecar.model import Sample
from sidecar.settings import Duration

OUTCOMES = ("answered", "failed", "refused")
_OLDEST = (2, 28, 9)
_KEPT_MS = 300_000  # how long a report's numbers are shown


class RasSettings(BaseModel):
    """`collectors: {nccl: {ras: …}}`. Turn it on in one pod of a job: any rank answers for all of them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = False
    host: str = "localhost"
    port: int = Field(28028, ge=1, le=65535)
    every: Duration = Field(30_000, ge=30_000)
    timeout: Duration = Field(1_000, ge=1_000)
    settle: Duration = Field(60_000, ge=60_000)  # after the newest communicator was complete
    force: bool = False  # ask versions that are known to crash, or that no log has named


class Ras:
    """Asks, and keeps what was answered."""

    def __init__(self, settings: RasSettings) -> None:
        self._settings = settings
        self._asked_ms: int | None = None
        self._outcomes: Counter[str] = Counter()
        self._answered_ms = 0
        self._missing: int | None = None
        self._launched: dict[tuple[int, str], int] = {}
        self.refusal = ""  # why it was not asked, or what went wrong

    def visit(self, now_ms: int, *, suspicion: bool, version: str, complete_ms: int | None) -> None:
        """Asks, if it may. `complete_ms`: when a communicator was last seen to be ready."""
        if not self._settings.enabled or not suspicion:
            return
        if self._asked_ms is not None and now_ms - self._asked_ms < self._settings.every:
            return
        self._asked_ms = now_ms
        self.refusal = self._refusal(now_ms, version, complete_ms)
        if self.refusal:
            self._outcomes["refused"] += 1
            return
        try:
            report = ras.query(self._settings.host, self._settings.port, timeout_s=self._settings.timeout / 1000)
        except ras.RasError as e:
            self._outcomes["failed"] += 1
            self.refusal = str(e)
            return
        self._outcomes["answered"] += 1
        self._take(report, now_ms)

    def _refusal(self, now_ms: int, version: str, complete_ms: int | None) -> str:
        if complete_ms is None:
            if not self._settings.force:
                return "no log has shown that the initialisation is complete"
        elif now_ms - complete_ms < self._settings.settle:
            return "a communicator has only just been set up"
        if not self._settings.force and not safe(version):
            return f"NCCL {version or 'of an unknown version'} may crash when asked"
        return ""

    def _take(self, report: str, now_ms: int) -> None:
        self._answered_ms = now_ms
        self._launched.clear()
        bodies = [event.body for event in ras.parse(report)]
        known = any(isinstance(body, ras.RasCommunicator) for body in bodies)
        missing = sum(isinstance(body, ras.RasMissing) for body in bodies)
        self._missing = missing if known else None  # a report in words does not count them
        for body in bodies:
            if isinstance(body, ras.RasCounts):
                for op, count in body.counts.items():
                    key = (body.rank, operation(op))
                    self._launched[key] = max(self._launched.get(key, 0), count)

    def samples(self, now_ms: int) -> Iterable[Sample]:
        """Nothing while it is off."""
        return self._samples(now_ms) if self._settings.enabled else ()

    def _samples(self, now_ms: int) -> Iterator[Sample]:
        for outcome in OUTCOMES:
            yield Sample("spikewatch_nccl_ras_queries_total", (("outcome", outcome),), self._outcomes[outcome])
        if not self._outcomes["answered"] or now_ms - self._answered_ms > _KEPT_MS:
            return
        if self._missing is not None:
            yield Sample("spikewatch_nccl_ras_missing_ranks", (), self._missing)
        for (rank, op), count in self._launched.items():
            if op in OPS:
                labels = (("op", op), ("rank", str(rank)))
                yield Sample("spikewatch_nccl_ras_launched_collectives", labels, count)


def safe(version: str) -> bool:
    """Whether no crash of this version by a query is known: 2.28.9 and newer, but not 2.29."""
    numbers = tuple(int(part) for part in version.split(".") if part.isdigit() and len(part) < 6)
    return numbers >= _OLDEST and numbers[:2] != (2, 29)
