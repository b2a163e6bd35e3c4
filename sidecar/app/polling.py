"""Polls collectors that want to be read more often than rules are evaluated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sidecar.clock import Clock


class Polling:
    """Calls `poll` at the pace of the fastest collector, where that is faster than the tick; else does nothing.

    A bare timer: to wake APScheduler several times a second costs as much as reading a dozen processes, and the next
    time is reckoned from our own clock anew each time, which no step of the machine's clock moves.
    """

    def __init__(self, poll: Callable[[], None], clock: Clock) -> None:
        self._poll, self._clock = poll, clock
        self._timer: asyncio.TimerHandle | None = None
        self.interval_ms: int | None = None

    async def adjust(self, fastest_ms: int | None, tick_ms: int) -> None:
        """Goes on at another pace; called at the start and after each reload."""
        wanted = fastest_ms if fastest_ms is not None and fastest_ms < tick_ms else None
        if wanted == self.interval_ms:
            return
        await self.stop()
        if wanted is not None:
            self.interval_ms = wanted
            self._arm(wanted)

    def _arm(self, interval_ms: int) -> None:
        wait_ms = interval_ms - self._clock.now_ms() % interval_ms
        self._timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self._run, interval_ms)

    def _run(self, interval_ms: int) -> None:
        self._arm(interval_ms)
        self._poll()

    async def stop(self) -> None:
        """No poll after this."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.interval_ms = None
