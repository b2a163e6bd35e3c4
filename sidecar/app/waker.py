"""Wakes the sidecar at a steady pace, also across a step of the machine's clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.interval import IntervalTrigger

from sidecar.clock import Clock

_STEP_MS = 500
"""A change of the offset between the wall clock and ours that slewing cannot explain: somebody set the clock."""


class Waker:
    """Calls `tick` every `interval_ms`. It decides nothing: what is due, late or missed is the tick's own business.

    APScheduler goes by the wall clock: set back by an hour, it would sleep for an hour. So the job is armed anew
    whenever wall time and monotonic time diverge.
    """

    def __init__(self, tick: Callable[[], None], interval_ms: int, clock: Clock) -> None:
        self._tick, self._interval_ms, self._clock = tick, interval_ms, clock
        self._scheduler = AsyncIOScheduler(timezone="UTC")
        self._offset_ms = 0
        self._watch: asyncio.Task[None] | None = None
        self.rearmed = 0

    def start(self) -> None:
        """Needs a running event loop."""
        self._offset_ms = self._clock.offset_ms()
        self._scheduler.add_job(
            self._run,
            IntervalTrigger(seconds=self._interval_ms / 1000),
            id="tick",
            coalesce=True,  # after a stall one tick is enough: it sees by itself what it missed
            max_instances=1,
            misfire_grace_time=None,
        )
        self._scheduler.start()
        self._watch = asyncio.create_task(self._guard(), name="clock watch")

    async def _run(self) -> None:
        # A coroutine runs on the loop itself; APScheduler would hand a plain function to a thread.
        self._tick()

    async def _guard(self) -> None:
        while True:
            await asyncio.sleep(max(1.0, self._interval_ms / 1000))
            self.look()

    def look(self) -> None:
        """Arms the job anew if the wall clock was set since the last look."""
        offset = self._clock.offset_ms()
        if abs(offset - self._offset_ms) > _STEP_MS:
            self.rearmed += 1
            self._scheduler.reschedule_job("tick", trigger=IntervalTrigger(seconds=self._interval_ms / 1000))
        self._offset_ms = offset

    def retime(self, interval_ms: int) -> None:
        """Goes on at another pace."""
        if interval_ms != self._interval_ms:
            self._interval_ms = interval_ms
            self._scheduler.reschedule_job("tick", trigger=IntervalTrigger(seconds=interval_ms / 1000))

    async def stop(self) -> None:
        """No tick after this."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)
