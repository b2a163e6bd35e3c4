"""Long work in slices: what else runs on the loop has its turn in between."""

import asyncio
import threading
import time

import pytest

from sidecar.api.turns import Turns
from sidecar.errors import RequestError

NEVER = float("inf")


def test_work_gives_its_result():
    assert asyncio.run(Turns().run(lambda pause: 42)) == 42


def test_an_error_of_the_work_is_the_callers():
    def work(pause):
        raise KeyError("x")

    with pytest.raises(KeyError):
        asyncio.run(Turns().run(work))


@pytest.mark.parametrize("slice_s", [0, 0.0001])
def test_others_run_between_the_slices_and_never_during_one(slice_s):
    trace = []

    def work(pause):
        for n in range(20):
            trace.append(("work", n))
            until = time.perf_counter() + 0.001
            while time.perf_counter() < until:
                pass
            trace.append(("worked", n))
            pause()
        return len(trace)

    async def main():
        async def other():
            while True:
                trace.append(("other",))
                await asyncio.sleep(0)

        beside = asyncio.create_task(other())
        await Turns(slice_s=slice_s).run(work)
        beside.cancel()

    asyncio.run(main())
    steps = [entry for entry in trace if entry != ("other",)]
    assert steps == [(what, n) for n in range(20) for what in ("work", "worked")]
    between = [trace[trace.index(("worked", n)) + 1] for n in range(19)]
    assert between.count(("other",)) >= 15, "at nearly every pause"
    inside = [trace[trace.index(("work", n)) + 1] for n in range(20)]
    assert ("other",) not in inside


def test_short_work_is_not_interrupted():
    class Counted(Turns):
        slices = 0

        async def _slice(self, work):
            self.slices += 1
            return await super()._slice(work)

    def work(pause):
        for _ in range(100):
            pause()

    turns = Counted(slice_s=5)
    asyncio.run(turns.run(work))
    assert turns.slices == 1


def test_two_pieces_of_work_take_turns():
    trace = []

    def named(name):
        def work(pause):
            for _ in range(5):
                trace.append(name)
                pause()

        return work

    async def main():
        turns = Turns(slice_s=0)
        await asyncio.gather(turns.run(named("a")), turns.run(named("b")))

    asyncio.run(main())
    assert trace == ["a", "b"] * 5


def test_work_leaves_at_least_half_of_the_time_to_others():
    async def main():
        turns = Turns(slice_s=0.005)
        worked = 0.0

        def work(pause):
            nonlocal worked
            for _ in range(40):
                began = time.thread_time()
                while time.thread_time() < began + 0.002:
                    pass
                worked += time.thread_time() - began
                pause()

        began = time.perf_counter()
        await asyncio.gather(turns.run(work), turns.run(work))
        return worked, time.perf_counter() - began

    worked, took = asyncio.run(main())
    assert took >= 1.7 * worked


def test_cancelled_work_ends_at_its_next_pause_and_leaves_no_thread():
    ended = []
    before = threading.active_count()

    def work(pause):
        try:
            while True:
                pause()
        finally:
            ended.append(True)

    async def main():
        running = asyncio.create_task(Turns(slice_s=0).run(work))
        while threading.active_count() == before:
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(main())
    assert ended == [True]
    assert threading.active_count() == before


def test_abandoned_work_cannot_hide_behind_its_own_error_handling():
    reached = []

    def work(pause):
        for _ in range(1000):
            try:
                pause()
            except Exception:  # noqa: BLE001  as a careless piece of code would
                reached.append(True)

    async def main():
        running = asyncio.create_task(Turns(slice_s=0).run(work))
        for _ in range(6):
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(main())
    assert not reached


def test_no_more_work_than_there_are_places_and_the_next_waits_for_one():
    async def main():
        turns = Turns(places=2)
        first, _ = await turns.place(NEVER), await turns.place(NEVER)
        waiting = asyncio.create_task(turns.place(NEVER))
        await asyncio.sleep(0)
        assert not waiting.done()
        first()
        await asyncio.wait_for(waiting, 10)

    asyncio.run(main())


def test_who_waits_too_long_for_a_place_is_told_as_prometheus_tells_it():
    async def main():
        turns = Turns(places=1)
        leave = await turns.place(NEVER)
        with pytest.raises(RequestError, match="query timed out in query queue") as e:
            await turns.place(time.monotonic() + 0.01)
        leave()
        await turns.place(NEVER)
        return e.value

    error = asyncio.run(main())
    assert (error.status, error.kind) == (503, "timeout")


def test_the_pieces_of_an_answer_come_in_order_with_a_turn_for_others_after_each():
    seen = []

    async def main():
        async def other():
            while True:
                seen.append("other")
                await asyncio.sleep(0)

        beside = asyncio.create_task(other())
        async for piece in Turns().each(iter("abc")):
            seen.append(piece)
        beside.cancel()

    asyncio.run(main())
    assert [piece for piece in seen if piece != "other"] == ["a", "b", "c"]
    assert "other" in seen[seen.index("a") : seen.index("b")]
