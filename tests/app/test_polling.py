"""Collectors may be faster than the tick."""

import asyncio
import json

import pytest

from sidecar import app
from sidecar.app.polling import Polling
from sidecar.clock import FakeClock, SystemClock


@pytest.mark.parametrize(("fastest", "tick", "interval"), [(200, 1000, 200), (1000, 1000, None), (None, 1000, None)])
def test_polls_come_only_where_a_collector_is_faster_than_the_tick(fastest, tick, interval):
    async def story():
        polled = asyncio.Event()
        polling = Polling(polled.set, SystemClock())
        await polling.adjust(fastest, tick)
        assert polling.interval_ms == interval
        if interval:
            await asyncio.wait_for(polled.wait(), 20)
        await polling.adjust(50, tick)  # a reload with a faster one
        polled.clear()
        await asyncio.wait_for(polled.wait(), 20)
        await polling.stop()
        polled.clear()
        await asyncio.sleep(0.15)
        assert not polled.is_set()

    asyncio.run(story())


@pytest.mark.parametrize("begun_ms", [0, 1, 199])
def test_polls_come_at_multiples_of_the_interval_and_go_on_after_one_that_failed(begun_ms):
    async def story():
        clock, polled, failures = SystemClock(), asyncio.Queue(), []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context["exception"]))

        def poll():
            polled.put_nowait(clock.now_ms())
            raise RuntimeError

        polling = Polling(poll, clock)
        await asyncio.sleep(begun_ms / 1000)
        await polling.adjust(50, 1000)
        times = [await asyncio.wait_for(polled.get(), 20) for _ in range(4)]
        await polling.stop()
        slots = [t // 50 for t in times]
        assert slots == sorted(set(slots))  # never twice for one slot, never before it
        assert [type(f) for f in failures] == [RuntimeError] * 4

    asyncio.run(story())


def test_a_poll_samples_what_is_due_and_leaves_rules_alone(tmp_path):
    config = {
        **{"state_dir": "state", "run_dir": "run", "rules": [], "responses": []},
        "collectors": {"process": {"interval": "200ms"}, "nvml": {"enabled": False}},
    }
    (tmp_path / "spikewatch.yaml").write_text(json.dumps(config))
    sidecar = app.build(tmp_path / "spikewatch.yaml", FakeClock(10_000), {})
    try:
        sidecar.tick()
        for _ in range(4):
            assert sidecar.collectors.settle(20)
            sidecar.clock.advance(200)
            sidecar.poll()
        assert sidecar.collectors.settle(20)
        assert sidecar.collectors.fastest_ms == 200
        times = sidecar.store.sample_times("spikewatch_process_threads", 0, 20_000)
        assert times == [10_000, 10_200, 10_400, 10_600, 10_800]
        assert sidecar.vitals.ticks == 1
    finally:
        asyncio.run(sidecar.stop())
