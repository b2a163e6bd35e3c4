"""Parts of a collector with paces of their own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.collectors.tiers import RARE, SLOW, TICK, Part, Tiered
from sidecar.errors import CollectError
from sidecar.model import Sample


class Read:
    """Counts its readings and gives the time of the newest one; fails when told to."""

    def __init__(self, name, reason=None):
        self.name, self.reason, self.times = name, reason, []

    def __call__(self, now_ms):
        self.times.append(now_ms)
        if self.reason:
            raise CollectError("c", self.reason)
        return [Sample(self.name, (), float(now_ms))]


def ticks(tiered, times):
    return [{s.metric: s.value for s in tiered.sample(t)} for t in times]


def test_a_slow_part_is_read_at_its_own_pace_and_repeated_in_between():
    fast, slow = Read("fast"), Read("slow")
    tiered = Tiered("c", [Part("fast", TICK, fast), Part("slow", SLOW, slow)])
    seen = ticks(tiered, range(0, 25_000, 1_000))
    assert slow.times == [0, 9_000, 18_000]
    assert len(fast.times) == 25
    assert seen[8] == {"fast": 8_000, "slow": 0}
    assert all(set(one) == {"fast", "slow"} for one in seen)


def test_a_part_that_fails_loses_its_series_and_the_others_go_on():
    good, bad = Read("good"), Read("bad")
    tiered = Tiered("c", [Part("good", TICK, good), Part("bad", TICK, bad)])
    assert ticks(tiered, [0]) == [{"good": 0, "bad": 0}]
    bad.reason = "denied"
    assert ticks(tiered, [1_000]) == [{"good": 1_000}]
    assert {name: e.reason for name, e in tiered.failures().items()} == {"bad": "denied"}
    bad.reason = None
    assert ticks(tiered, [2_000]) == [{"good": 2_000, "bad": 2_000}]
    assert tiered.failures() == {}


def test_where_every_part_fails_the_collector_fails_with_the_first_reason():
    tiered = Tiered("c", [Part("a", TICK, Read("a", "lost")), Part("b", RARE, Read("b", "denied"))])
    with pytest.raises(CollectError) as caught:
        list(tiered.sample(0))
    assert caught.value.reason == "lost"


def test_stretched_slow_parts_are_read_less_often():
    fast, slow = Read("fast"), Read("slow")
    tiered = Tiered("c", [Part("fast", TICK, fast), Part("slow", SLOW, slow)])
    tiered.stretch(4)
    ticks(tiered, range(0, 60_000, 1_000))
    assert slow.times == [0, 39_000]
    assert len(fast.times) == 60


@given(st.lists(st.integers(1, 40_000), min_size=1, max_size=40), st.sampled_from([TICK, SLOW, RARE]))
def test_what_is_repeated_is_never_older_than_its_tier(steps, every):
    read, now = Read("m"), 0
    tiered = Tiered("c", [Part("m", every, read)])
    for step in steps:
        now += step
        (sample,) = tiered.sample(now)
        assert now - every < sample.value <= now


def test_as_sections_a_part_is_written_when_it_was_read_and_kept_in_between():
    fast, slow = Read("fast"), Read("slow")
    tiered = Tiered("c", [Part("fast", TICK, fast), Part("slow", SLOW, slow)])
    seen = [{s.name: s.samples is not None for s in tiered.sections(t)} for t in (0, 1_000, 9_500, 10_500)]
    assert seen == [
        {"fast": True, "slow": True},
        {"fast": True, "slow": False},
        {"fast": True, "slow": True},
        {"fast": True, "slow": False},
    ]
    slow.reason = "denied"
    assert [s.name for s in tiered.sections(30_000)] == ["fast"]
