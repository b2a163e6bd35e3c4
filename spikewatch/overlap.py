"""How much of two activities happens at the same time: shared time over the longer of the two."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from spikewatch.layout import MISSING

Interval = tuple[float, float]
"""(begin, end) in any one unit."""


def overlap(copies: Iterable[Interval], kernels: Iterable[Interval]) -> float:
    """0: one after the other; 1: the shorter is hidden wholly behind the other of the same length.

    Overlapping intervals of one activity count once. Missing where one of the two did not happen.
    """
    a, b = merged(copies), merged(kernels)
    return shared(_common(a, b), _length(a), _length(b))


def shared(both: float, one: float, other: float) -> float:
    """`both` over the longer of the two times; missing where one of them is 0."""
    return min(1.0, both / max(one, other)) if one > 0 and other > 0 else MISSING


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """The union, in order. Intervals that end before they begin are left out."""
    found: list[Interval] = []
    for begin, end in sorted(intervals):
        if end <= begin:
            continue
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def _length(intervals: list[Interval]) -> float:
    return sum(end - begin for begin, end in intervals)


def _common(a: list[Interval], b: list[Interval]) -> float:
    total, i, j = 0.0, 0, 0
    while i < len(a) and j < len(b):
        total += max(0.0, min(a[i][1], b[j][1]) - max(a[i][0], b[j][0]))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return total


def of_profile(events: Iterable[Any]) -> float:
    """Of `torch.profiler.profile().events()`: copies on the device against kernels on it."""
    copies: list[Interval] = []
    kernels: list[Interval] = []
    for event in events:
        if getattr(event.device_type, "name", "") != "CUDA" or getattr(event, "is_user_annotation", False):
            continue
        if event.name.startswith("Memset"):
            continue
        span = (event.time_range.start, event.time_range.end)
        (copies if event.name.startswith("Memcpy") else kernels).append(span)
    return overlap(copies, kernels)
