"""Time as a parameter: int64 milliseconds of wall time that never jump, and a fake for tests.

The wall time is read once at start and advanced by the monotonic clock, so that a step of the system clock
neither skips nor repeats an evaluation. The difference to the machine's wall clock is exported and slewed in.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What reads time takes one of these."""

    def now_ms(self) -> int:
        """Wall time in milliseconds since the epoch; strictly non-decreasing."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds since an arbitrary origin; unaffected by clock steps and slewing."""
        ...

    def offset_ms(self) -> int:
        """The machine's wall clock minus ours, in milliseconds."""
        ...


class SystemClock:
    """Wall time at start plus monotonic time, slewed towards the machine's clock by at most `slew_ppm`.

    500 ppm is the rate at which NTP daemons slew by default: a second is caught up in about 33 minutes.
    """

    def __init__(self, slew_ppm: float = 500.0) -> None:
        self._slew = slew_ppm / 1e6
        self._mono = time.monotonic_ns()
        self._ours_ns = time.time_ns()

    def _advance(self) -> int:
        mono = time.monotonic_ns()
        elapsed = mono - self._mono
        budget = int(elapsed * self._slew)
        if budget > 0:
            ahead = time.time_ns() - (self._ours_ns + elapsed)
            self._ours_ns += max(-budget, min(budget, ahead))
            self._ours_ns += elapsed
            self._mono = mono
            return self._ours_ns
        return self._ours_ns + elapsed

    def now_ms(self) -> int:
        return self._advance() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def offset_ms(self) -> int:
        return (time.time_ns() - self._advance()) // 1_000_000


class FakeClock:
    """A clock that moves only when told to."""

    def __init__(self, now_ms: int = 0) -> None:
        self._now = now_ms
        self._offset = 0

    def now_ms(self) -> int:
        return self._now

    def monotonic_ms(self) -> int:
        return self._now

    def offset_ms(self) -> int:
        return self._offset

    def advance(self, ms: int) -> int:
        """Moves time forward and returns the new time."""
        if ms < 0:
            raise ValueError("time does not go backwards")
        self._now += ms
        return self._now

    def step_wall(self, ms: int) -> None:
        """Pretends the machine's wall clock was set `ms` away from ours."""
        self._offset += ms
