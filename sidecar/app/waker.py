"""Wakes the sidecar at a steady pace, also across a step of the machine's clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.interval import IntervalTrigger

from sidecar.clock import Clock

_STEP_MS = 500
"""At this change of the offset between the wall clock and ours somebody set the clock."""

_NOTICED_MS = 20
"""The smallest change that is answered at very short intervals: smaller ones are noise of reading two clocks."""


class Waker:
    """Calls `tick` at every multiple of `interval_ms` on our clock, which is when rules are due.

    It decides nothing: what is due, late or missed is the tick's own business. APScheduler goes by the wall clock: set
    back by an hour, it would sleep for an hour. So the job is armed anew whenever wall time and ours diverge.
    """

    def __init__(self, tick: Callable[[], None], interval_ms: int, clock: Clock) -> None:
        self._tick, self._interval_ms, self._clock = tick, interval_ms, clock
        self._scheduler = AsyncIOScheduler(timezone="UTC")
        self._offset_ms = 0
        self._watch: asyncio.Task[None] | None = None
        self.rearmed = 0

    def start(self) -> None:
        """Needs a running event loop."""
        self._scheduler.add_job(
            self._run,
            self._trigger(),
            id="tick",
            coalesce=True,  # after a stall one tick is enough: it sees by itself what it missed
            max_instances=1,
            misfire_grace_time=None,
        )
        self._scheduler.start()
        self._watch = asyncio.create_task(self._guard(), name="clock watch")

    def _trigger(self) -> IntervalTrigger:
        self._offset_ms = self._clock.offset_ms()
        wait_ms = self._interval_ms - self._clock.now_ms() % self._interval_ms
        first = datetime.now(UTC) + timedelta(milliseconds=wait_ms)
        return IntervalTrigger(seconds=self._interval_ms / 1000, start_date=first, timezone="UTC")

    async def _run(self) -> None:
        # A coroutine runs on the loop itself; APScheduler would hand a plain function to a thread.
        self._tick()

    async def _guard(self) -> None:
        while True:
            await asyncio.sleep(max(1.0, self._interval_ms / 1000))
            self.look()

    def look(self) -> None:
        """Arms the job anew if the wall clock has moved away from ours since it was armed."""
        noticed = max(_NOTICED_MS, min(_STEP_MS, self._interval_ms // 10))
        if abs(self._clock.offset_ms() - self._offset_ms) > noticed:
            self.rearmed += 1
            self._scheduler.reschedule_job("tick", trigger=self._trigger())

    def retime(self, interval_ms: int) -> None:
        """Goes on at another pace."""
        if interval_ms != self._interval_ms:
            self._interval_ms = interval_ms
            self._scheduler.reschedule_job("tick", trigger=self._trigger())

    async def stop(self) -> None:
        """No tick after this."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)
