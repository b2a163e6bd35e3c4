"""Ticks go on when somebody sets the machine's clock back."""

import asyncio
from datetime import datetime, timedelta

import apscheduler.schedulers.base
import pytest

from sidecar.app import waker as module
from sidecar.app.waker import Waker
from sidecar.clock import SystemClock


class StepClock(SystemClock):
    """Ours, and how far the machine's has been set away from it."""

    def __init__(self):
        super().__init__()
        self.step = timedelta()

    def offset_ms(self):
        return super().offset_ms() + int(self.step.total_seconds() * 1000)


@pytest.fixture
def clock(monkeypatch):
    """What everybody who asks the machine for its time gets, is moved by `clock.step`."""
    made = StepClock()

    class Machine(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + made.step

    monkeypatch.setattr(module, "datetime", Machine)
    monkeypatch.setattr(apscheduler.schedulers.base, "datetime", Machine)
    return made


@pytest.mark.parametrize("hours", [-1, 1])
def test_ticks_go_on_within_two_seconds_of_a_step_of_the_clock(clock, hours):
    async def main():
        loop, ticked = asyncio.get_running_loop(), asyncio.Event()
        times = []

        def tick():
            times.append(loop.time())
            ticked.set()

        async def ticks(number):
            for _ in range(number):
                ticked.clear()
                await asyncio.wait_for(ticked.wait(), 20)

        waker = Waker(tick, 50, clock)
        waker.start()
        await ticks(3)
        clock.step = timedelta(hours=hours)
        seen = len(times)
        await ticks(5)
        while not waker.rearmed:
            await ticks(1)
        before = len(times)
        await ticks(3)
        await waker.stop()
        return times[before:], times[seen - 1 :]

    steady, after = asyncio.run(main())
    assert len(steady) == 3
    assert max(b - a for a, b in zip(after, after[1:], strict=False)) < 10, "not the hour"
