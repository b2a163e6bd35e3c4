"""How often what is read: the tiers, and a helper for collectors whose parts belong to several of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from sidecar.errors import CollectError
from sidecar.hooks import Section
from sidecar.model import Sample

# Milliseconds. Event-driven sources count between two samples and are read with the tick.
FAST, TICK, CALM, SLOW, RARE = 200, 1_000, 5_000, 10_000, 30_000


@dataclass(slots=True, eq=False)
class Part:
    """Some samples of a collector with a pace of their own. `read(now_ms)` may raise CollectError."""

    name: str
    every_ms: int
    read: Callable[[int], Iterable[Sample]]
    next_ms: int | None = None  # None: at once
    samples: tuple[Sample, ...] = ()
    failed: CollectError | None = None  # why the newest reading gave nothing


class Tiered:
    """Reads each part when it is due, and repeats in between what it gave last, so that its series go on.

    A part that fails loses its samples, which ends its series, and is read again at its next turn; the others go on.
    A reading at 10 s or more is repeated up to its next turn, so its age is at most its tier.
    """

    def __init__(self, collector: str, parts: Sequence[Part]) -> None:
        self._collector = collector
        self._parts = tuple(parts)
        self._factor = 1

    def stretch(self, factor: int) -> None:
        """Parts slower than a tick are read `factor` times as seldom; the runner slows the others by itself."""
        self._factor = factor

    def sample(self, now_ms: int) -> Iterator[Sample]:
        """Everything known now. Raises the first part's CollectError where every part fails."""
        self._advance(now_ms)
        for part in self._parts:
            yield from part.samples

    def sections(self, now_ms: int) -> Iterator[Section]:
        """As `sample`, each part a section of its own that is written only when it was read: see `hooks.Sectioned`."""
        fresh = self._advance(now_ms)
        for part in self._parts:
            if part.failed is None:
                yield Section(part.name, part.samples if part in fresh else None)

    def failures(self) -> dict[str, CollectError]:
        """Parts whose newest reading failed, by name."""
        return {part.name: part.failed for part in self._parts if part.failed is not None}

    def _advance(self, now_ms: int) -> list[Part]:
        """Reads what is due and gives it back. Raises where every part fails."""
        due = [part for part in self._parts if part.next_ms is None or now_ms >= part.next_ms]
        for part in due:
            self._read(part, now_ms)
        failed = [part.failed for part in self._parts if part.failed is not None]
        if failed and len(failed) == len(self._parts):
            raise failed[0]
        return due

    def _read(self, part: Part, now_ms: int) -> None:
        factor = self._factor if part.every_ms > TICK else 1
        part.next_ms = now_ms + part.every_ms * factor - part.every_ms // 10  # a tick a little early is still its turn
        try:
            part.samples, part.failed = tuple(part.read(now_ms)), None
        except CollectError as e:
            part.samples, part.failed = (), e
