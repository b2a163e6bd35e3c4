"""Polls collectors that want to be read more often than rules are evaluated."""

from __future__ import annotations

from collections.abc import Callable

from sidecar.app.waker import Waker
from sidecar.clock import Clock


class Polling:
    """Calls `poll` at the pace of the fastest collector, where that is faster than the tick; else does nothing."""

    def __init__(self, poll: Callable[[], None], clock: Clock) -> None:
        self._poll, self._clock = poll, clock
        self._waker: Waker | None = None
        self.interval_ms: int | None = None

    async def adjust(self, fastest_ms: int | None, tick_ms: int) -> None:
        """Goes on at another pace; called at the start and after each reload."""
        wanted = fastest_ms if fastest_ms is not None and fastest_ms < tick_ms else None
        if wanted == self.interval_ms:
            return
        await self.stop()
        if wanted is not None:
            self._waker = Waker(self._poll, wanted, self._clock)
            self._waker.start()
        self.interval_ms = wanted

    async def stop(self) -> None:
        """No poll after this."""
        waker, self._waker, self.interval_ms = self._waker, None, None
        if waker is not None:
            await waker.stop()
