"""A reading that is made seldom is written again and again: readers look back five minutes, and no further."""

from __future__ import annotations

from collections.abc import Sequence

from sidecar.hooks import Section
from sidecar.model import Sample

EVERY_MS = 50_000  # five times within those five minutes, also where a visit comes late


class Repeated:
    """Decides at each visit whether a reading is written. Visits may be far more frequent: those between are free."""

    def __init__(self) -> None:
        self._reading: int | None = None
        self._written_ms = 0

    def section(self, reading_ms: int, samples: Sequence[Sample], now_ms: int) -> Section:
        """The samples of the reading made at `reading_ms`: written when it is new, and in time to be found."""
        if reading_ms == self._reading and 0 <= now_ms - self._written_ms < EVERY_MS:
            return Section("", None)
        self._reading, self._written_ms = reading_ms, now_ms
        return Section("", samples)

    def forget(self) -> None:
        """After a failure, which ended all series: the next reading is written, whichever it is."""
        self._reading = None
