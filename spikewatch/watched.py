"""A loader that is only watched: the waits are timed, nothing else is touched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from spikewatch.batches import measure
from spikewatch.meter import Meter


def watched(loader: Any, meter: Meter) -> Any:
    """`loader`, timed. Attributes and length are the wrapped one's."""
    if hasattr(type(loader), "__next__"):
        return WatchedIterator(loader, meter)
    return WatchedLoader(loader, meter)


class WatchedLoader:
    """Wraps anything that can be iterated, each time anew."""

    def __init__(self, loader: Any, meter: Meter) -> None:
        self._loader = loader
        self._meter = meter

    def __iter__(self) -> Iterator[Any]:
        meter = self._meter
        meter.pass_begins()
        began = meter.wait_begins()
        try:
            source = iter(self._loader)
        finally:
            meter.wait_ends(began)
        while True:
            try:
                batch = self._next(source)
            except StopIteration:
                return
            yield batch

    def _next(self, source: Any) -> Any:
        began = self._meter.wait_begins()
        try:
            batch = next(source)
        finally:
            self._meter.wait_ends(began)
        self._received(batch)
        return batch

    def _received(self, batch: Any) -> None:
        try:
            self._meter.received(*measure(batch))
        except Exception:  # noqa: BLE001  the training loop must not see our mistakes
            self._meter.errors += 1

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class WatchedIterator(WatchedLoader):
    """Wraps something that is its own iterator, like a generator."""

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._next(self._loader)
