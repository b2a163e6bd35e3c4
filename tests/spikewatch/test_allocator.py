"""Free device memory from snapshots of the caching allocator, and the source over a stand-in for torch.cuda."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spikewatch import allocator
from spikewatch.allocator import MIB, Allocator, DriverFree, free_memory, totals

USED, FREE, PENDING = "active_allocated", "inactive", "active_pending_free"


def segment(*blocks, device=0, kind="large", expandable=False, pool=(0, 0)):
    """In the form of `torch.cuda.memory_snapshot()`; `blocks` are (MiB, state)."""
    return {
        "device": device,
        "total_size": sum(size for size, _ in blocks) * MIB,
        "segment_type": kind,
        "segment_pool_id": pool,
        "is_expandable": expandable,
        "blocks": [{"size": size * MIB, "state": state} for size, state in blocks],
    }


def test_a_healthy_cache_of_whole_free_segments_is_not_fragmented():
    found = free_memory([segment((100, FREE)) for _ in range(10)], 0)
    assert (found.total, found.largest, found.fragmentation) == (1000 * MIB, 1000 * MIB, 0)


def test_segments_that_are_half_in_use_are_fragmented():
    found = free_memory([segment((10, USED), (10, FREE)) for _ in range(100)], 0, device_free=50 * MIB)
    assert found.total == 1050 * MIB
    assert found.largest == 50 * MIB
    assert found.fragmentation == pytest.approx(0.952, abs=0.001)


def test_one_large_hole_counts_as_what_it_is():
    found = free_memory([segment((10, USED), (600, FREE)), segment((5, USED), (5, FREE))], 0, device_free=100 * MIB)
    assert found.largest == 600 * MIB


def test_of_an_expandable_segment_only_whole_pages_can_be_given_back():
    holes = segment(*[(10, USED), (10, FREE)] * 20, expandable=True)
    assert free_memory([holes], 0).largest == 10 * MIB  # no free block holds a page of 20 MiB
    wide = segment((10, USED), (70, FREE), (10, USED), (50, FREE), expandable=True)
    # pages of 20 MiB: 20..80 of the first hole, 100..140 of the second
    assert free_memory([wide], 0).largest == 100 * MIB


def test_pages_of_the_small_pool_are_smaller():
    holes = segment((1, USED), (5, FREE), expandable=True, kind="small")
    assert free_memory([holes], 0).largest == 5 * MIB
    assert free_memory([holes, holes], 0).largest == 8 * MIB  # twice 2..6


def test_what_waits_for_another_stream_is_not_free():
    assert free_memory([segment((10, PENDING), (10, USED))], 0).total == 0


def test_memory_of_cuda_graphs_is_nobody_elses_and_shows_that_there_are_graphs():
    found = free_memory([segment((100, FREE), pool=(0, 1)), segment((10, FREE))], 0)
    assert (found.total, found.graphs) == (10 * MIB, True)


def test_other_devices_do_not_count():
    assert free_memory([segment((100, FREE), device=1)], 0).total == 0


def test_where_nothing_is_free_fragmentation_is_not_known():
    assert math.isnan(free_memory([segment((10, USED))], 0).fragmentation)
    assert math.isnan(free_memory([], 0).fragmentation)


blocks = st.lists(st.tuples(st.integers(1, 64), st.sampled_from([USED, FREE, PENDING])), min_size=1, max_size=8)
snapshots = st.lists(
    st.builds(
        lambda b, kind, expandable: segment(*b, kind=kind, expandable=expandable),
        blocks,
        st.sampled_from(["small", "large"]),
        st.booleans(),
    ),
    max_size=8,
)


@given(snapshots, st.integers(0, 1 << 40))
def test_the_largest_block_is_never_larger_than_all_that_is_free_nor_smaller_than_any_free_block(snapshot, device_free):
    found = free_memory(snapshot, 0, device_free)
    free = [b["size"] for s in snapshot for b in s["blocks"] if b["state"] == FREE]
    assert found.total == sum(free) + device_free
    assert max([device_free, *free]) <= found.largest <= found.total
    assert not found.total or 0 <= found.fragmentation < 1


class Cuda:
    """What `torch.cuda` answers, and how often it was asked."""

    def __init__(self):
        self.stats = {
            "reserved_bytes": {"all": {"current": 40 * MIB, "peak": 60 * MIB}},
            "allocated_bytes": {"all": {"current": 30 * MIB, "peak": 60 * MIB}},
            "num_alloc_retries": 2,
            "num_ooms": 1,
        }
        self.snapshots, self.capturing, self.asked = [segment((30, USED), (10, FREE))], False, 0

    def memory_stats_as_nested_dict(self, device):
        return self.stats

    def memory_snapshot(self):
        self.asked += 1
        return self.snapshots

    def mem_get_info(self, device):
        assert not self.capturing
        return 10 * MIB, 80 * MIB

    def is_current_stream_capturing(self):
        return self.capturing


def test_totals_come_every_time_and_snapshots_seldom():
    cuda = Cuda()
    driver = DriverFree(cuda, 0)
    source = Allocator(cuda, 0, driver)
    assert source(0.0) == totals(cuda.stats)  # without the driver's word the largest block is not known
    driver.look(5)
    assert driver.due == 5 + DriverFree.EVERY
    assert source(0.0) == {
        "memory_reserved_bytes": 40 * MIB,
        "memory_allocated_bytes": 30 * MIB,
        "alloc_retries_total": 2,
        "ooms_total": 1,
        "memory_largest_free_bytes": 10 * MIB,
        "memory_fragmentation_ratio": 0.5,
    }
    for second in range(1, 10):
        source(float(second))
    assert cuda.asked == 1
    source(1000.0)
    assert cuda.asked == 2


def test_a_snapshot_that_takes_long_is_taken_more_seldom(monkeypatch):
    cuda, times = Cuda(), iter([0.0, 0.2, 0.2, 0.4])
    monkeypatch.setattr(allocator.time, "perf_counter", lambda: next(times))
    driver = DriverFree(cuda, 0)
    driver.look(0)
    source = Allocator(cuda, 0, driver)
    for second in range(0, 200, 10):
        source(float(second))
    assert cuda.asked == 1
    source(200.0)
    assert cuda.asked == 2


def test_the_driver_is_not_asked_while_a_graph_is_captured():
    cuda = Cuda()
    cuda.capturing = True
    driver = DriverFree(cuda, 0)
    driver.look(0)
    assert driver.bytes is None


def test_graphs_are_noticed():
    cuda = Cuda()
    cuda.snapshots = [segment((10, USED), pool=(1, 0))]
    driver = DriverFree(cuda, 0)
    driver.look(0)
    source = Allocator(cuda, 0, driver)
    source(0.0)
    assert source.graphs


@pytest.mark.torch
def test_a_build_without_cuda_has_no_allocator_to_ask():
    import torch

    assert totals(torch.cuda.memory_stats_as_nested_dict() if torch.cuda.is_available() else {}) == {}
    assert allocator.of_model(torch.nn.Linear(1, 1), torch) is None
    assert allocator.of_model(torch.nn.Identity(), torch) is None
    assert allocator.of_model(None, torch) is None
