"""Series whose rule is gone from the configuration: they get their end marker a little later.

Prometheus waits, so that a rule that was only renamed or moved has written the same series by then and keeps it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sidecar.alerting.rules import RuleKey
from sidecar.alerting.writing import Row, Write
from sidecar.model import STALE, Labels

Series = tuple[str, Labels]


@dataclass(frozen=True, slots=True)
class Orphan:
    """What a removed rule wrote last, and when to end it."""

    key: RuleKey
    series: tuple[Series, ...]
    due_ms: int


class Orphans:
    """The removed rules whose series have not been ended yet."""

    def __init__(self) -> None:
        self._waiting: list[Orphan] = []

    def add(self, orphan: Orphan) -> None:
        """Nothing happens before its time."""
        if orphan.series:
            self._waiting.append(orphan)

    def end(self, now_ms: int, still_written: Collection[Series], write: Write) -> None:
        """Ends what is due and is not written by another rule now."""
        for orphan in [o for o in self._waiting if o.due_ms <= now_ms]:
            self._waiting.remove(orphan)
            rows: list[Row] = [(m, labels, STALE) for m, labels in orphan.series if (m, labels) not in still_written]
            if rows:
                write(orphan.key, now_ms, rows)
