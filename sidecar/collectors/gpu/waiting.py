"""Busy but not computing: the pattern of a kernel that spins inside a collective for a late peer."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

BUSY = 0.9  # at least: a kernel runs nearly all the time
FEW_SMS = 0.3  # at most: NCCL's kernels hold a few dozen of an H100's 132 SMs
NO_TENSOR = 0.02  # at most
IDLE_LINK = 5e8  # bytes/s, at most, over PCIe and NVLink: a collective that moves data is at 1e10 and more


@dataclass(frozen=True, slots=True)
class Moment:
    """What one GPU did between two fast samples. Ratios 0..1, link in bytes/s; None is not known."""

    t_s: float
    busy: float | None = None
    sm: float | None = None
    tensor: float | None = None
    dram: float | None = None
    link: float | None = None


def waits(moment: Moment) -> bool | None:
    """Whether the pattern holds; None where busyness or SM activity is not known. Pure.

    Tensor and link activity can only speak against it: where they are not known, the other two decide.
    """
    if moment.busy is None or moment.sm is None:
        return None
    return (
        moment.busy >= BUSY
        and moment.sm <= FEW_SMS
        and (moment.tensor is None or moment.tensor <= NO_TENSOR)
        and (moment.link is None or moment.link <= IDLE_LINK)
    )


class Waiting:
    """Share of the newest moments in which the pattern holds, among those that can tell; kept up as they come."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._known: deque[tuple[float, bool]] = deque()
        self._waits = 0

    def add(self, moment: Moment) -> None:
        """Takes a moment in, newer than those before, and lets go of what is older than the window."""
        found = waits(moment)
        if found is not None:
            self._known.append((moment.t_s, found))
            self._waits += found
        while self._known and self._known[0][0] <= moment.t_s - self._window_s:
            self._waits -= self._known.popleft()[1]

    def ratio(self) -> float | None:
        """None where no moment can tell."""
        return self._waits / len(self._known) if self._known else None
