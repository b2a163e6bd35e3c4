"""Samples into order of time, in memory that does not grow with their number: sorted runs on disk, merged again."""

from __future__ import annotations

import heapq
import tempfile
from array import array
from collections.abc import Iterator
from typing import IO

import numpy as np
from numpy.typing import NDArray

Numbered = tuple[int, int, float]
"""(time in milliseconds, number of the series, value)"""

_RECORD = np.dtype([("t_ms", "<i8"), ("value", "<f8"), ("series", "<u4")])
_READ = 4096  # records of a run held in memory while merging


class Sorter:
    """Takes samples in any order. 20 bytes of a temporary file for each sample beyond the first `run`."""

    def __init__(self, run: int = 1_000_000, folder: str | None = None) -> None:
        self._run, self._folder = run, folder
        self._times, self._series, self._values = array("q"), array("L"), array("d")
        self._files: list[IO[bytes]] = []
        self.first_ms: int | None = None
        self.last_ms: int | None = None
        self.count = 0

    def add(self, t_ms: int, series: int, value: float) -> None:
        """One more sample. Raises OSError when the disk is full."""
        self._times.append(t_ms)
        self._series.append(series)
        self._values.append(value)
        self.count += 1
        if len(self._times) >= self._run:
            self._spill()

    def finish(self) -> None:
        """No more samples: from here on they can be read."""
        if self._files:
            self._spill()
        else:
            self._note(self._sorted())

    def __iter__(self) -> Iterator[Numbered]:
        """All samples, oldest first; those of one instant in the order they were added."""
        if not self._files:
            return _tuples(self._sorted())
        return heapq.merge(*[_read(file) for file in self._files], key=lambda sample: sample[0])

    def close(self) -> None:
        """Deletes the temporary files."""
        for file in self._files:
            file.close()

    def _sorted(self) -> NDArray[np.void]:
        records = np.empty(len(self._times), _RECORD)
        records["t_ms"], records["value"], records["series"] = self._times, self._values, self._series
        return records[np.argsort(records["t_ms"], kind="stable")]

    def _note(self, records: NDArray[np.void]) -> None:
        if len(records):
            first, last = int(records["t_ms"][0]), int(records["t_ms"][-1])
            self.first_ms = first if self.first_ms is None else min(first, self.first_ms)
            self.last_ms = last if self.last_ms is None else max(last, self.last_ms)

    def _spill(self) -> None:
        records = self._sorted()
        self._note(records)
        file = tempfile.TemporaryFile(prefix="spikewatch-", dir=self._folder)
        self._files.append(file)
        file.write(records.tobytes())
        self._times, self._series, self._values = array("q"), array("L"), array("d")


def _read(file: IO[bytes]) -> Iterator[Numbered]:
    position = 0
    while True:
        file.seek(position)
        data = file.read(_READ * _RECORD.itemsize)
        if not data:
            return
        position += len(data)
        yield from _tuples(np.frombuffer(data, _RECORD))


def _tuples(records: NDArray[np.void]) -> Iterator[Numbered]:
    for start in range(0, len(records), _READ):
        part = records[start : start + _READ]
        yield from zip(part["t_ms"].tolist(), part["series"].tolist(), part["value"].tolist(), strict=True)
