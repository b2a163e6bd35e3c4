"""Time never jumps, whatever the machine's clock does."""

import time

import pytest

from sidecar.clock import FakeClock, SystemClock


def test_a_step_of_the_wall_clock_is_slewed_in_and_shown_as_offset(monkeypatch):
    mono, wall = [1_000_000_000_000], [5_000_000_000_000]
    monkeypatch.setattr(time, "monotonic_ns", lambda: mono[0])
    monkeypatch.setattr(time, "time_ns", lambda: wall[0])
    clock = SystemClock(slew_ppm=500)
    before = clock.now_ms()
    wall[0] += 60_000_000_000  # somebody sets the clock a minute ahead
    mono[0] += 1_000_000_000
    wall[0] += 1_000_000_000
    assert clock.now_ms() - before in (1_000, 1_001), "one second passed, and at most 0.5 ms was caught up"
    assert 59_990 <= clock.offset_ms() <= 60_000


def test_a_clock_set_back_never_makes_time_go_backwards(monkeypatch):
    mono, wall = [1_000_000_000_000], [5_000_000_000_000]
    monkeypatch.setattr(time, "monotonic_ns", lambda: mono[0])
    monkeypatch.setattr(time, "time_ns", lambda: wall[0])
    clock = SystemClock()
    seen = [clock.now_ms()]
    wall[0] -= 3_600_000_000_000
    for _ in range(200):
        mono[0] += 10_000_000
        seen.append(clock.now_ms())
    assert seen == sorted(seen)
    assert seen[-1] - seen[0] >= 1_990


def test_the_slew_reaches_the_wall_clock_in_the_end(monkeypatch):
    mono, wall = [10**12], [5 * 10**12]
    monkeypatch.setattr(time, "monotonic_ns", lambda: mono[0])
    monkeypatch.setattr(time, "time_ns", lambda: wall[0])
    clock = SystemClock(slew_ppm=500)
    wall[0] += 100_000_000
    for _ in range(300):
        mono[0] += 10**9
        wall[0] += 10**9
        clock.now_ms()
    assert clock.offset_ms() == 0


def test_the_fake_moves_only_when_told():
    clock = FakeClock(5)
    assert (clock.now_ms(), clock.advance(10), clock.monotonic_ms()) == (5, 15, 15)
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1)
