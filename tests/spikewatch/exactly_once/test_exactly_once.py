"""Whatever is changed on the way, also the size of batches: every sample once, in order, in the step it belongs to."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loop_changes import CHANGES, KINDS

import spikewatch

pytestmark = pytest.mark.torch


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    kind=st.sampled_from(KINDS),
    workers=st.sampled_from([0, 1, 2]),
    persistent=st.booleans(),
    changes=st.dictionaries(st.integers(4, 16), st.sampled_from(CHANGES), min_size=1, max_size=5),
)
def test_a_step_uses_the_samples_it_would_have_used_whatever_is_changed(
    kind, workers, persistent, changes, loops, no_children_left
):
    expected = loops.steps_without_us(kind, workers, 3, persistent=persistent)
    loops.seeded()
    watched = loops.Watched(loops.make_loader(kind, workers, persistent=persistent))
    assert [watched.one_pass(epoch, changes.get) for epoch in range(3)] == expected
    assert not [reason for reason in watched.refused if "not known yet" not in reason]
    watched.close()


def test_two_ranks_of_different_depth_that_change_at_the_same_step_go_on_in_step(loops, no_children_left):
    """However far a rank's workers are ahead, the new size begins with the very next batch."""
    from torch.utils.data import DataLoader
    from torch.utils.data.distributed import DistributedSampler

    def rank(number, workers, prefetch):
        sampler = DistributedSampler(loops.dataset(), num_replicas=2, rank=number, shuffle=True)
        loader = DataLoader(loops.dataset(), 8, sampler=sampler, num_workers=workers, prefetch_factor=prefetch)
        run = spikewatch.attach(loader=loader, accumulation_steps=1)
        sizes, seen = [], []
        for batch in run.loader:
            sizes.append((len(batch), run.loss_weight, run.should_step()))
            seen += batch.tolist()
            if run.should_step():
                run.step()
            if len(seen) == 16:
                run._parts.knobs.change({"micro_batch_size": 2})
        run.close()
        run.loader = None
        return sizes, seen

    sizes_0, seen_0 = rank(0, 2, 4)
    sizes_1, seen_1 = rank(1, 1, 1)
    assert sizes_0 == sizes_1
    assert [size for size, _, _ in sizes_0[:4]] == [8, 8, 2, 2]
    assert sorted(seen_0 + seen_1) == list(range(loops.SAMPLES))


def test_the_loop_does_not_wait_for_old_workers_to_end(no_children_left):
    """Those are in the middle of a slow batch when the size changes, and are left to end by themselves."""
    import multiprocessing

    from torch.utils.data import DataLoader

    at_it, gate = multiprocessing.Event(), multiprocessing.Event()

    class Slow:
        def __len__(self):
            return 64

        def __getitem__(self, i):
            if i == 40:
                at_it.set()
                gate.wait(20)
            return i

    run = spikewatch.attach(loader=DataLoader(Slow(), 8, num_workers=2, prefetch_factor=2), accumulation_steps=1)
    seen, batches = [], iter(run.loader)
    for batch in batches:
        seen += batch.tolist()
        if run.should_step() and run.loss_weight:
            run.step()
        if len(seen) == 16:
            assert at_it.wait(20)
            old = list(batches._workers)
            run._parts.knobs.change({"micro_batch_size": 4})
            assert any(worker.is_alive() for worker in old)
            gate.set()
        if len(seen) == 48:  # they end in the middle of the pass, and are tidied up with the next batch
            for worker in old:
                worker.join(20)
            assert not any(worker.is_alive() for worker in old)
        if len(seen) == 52:
            assert batches._dismissed == []
    assert seen == list(range(64))
    del batches
    run.close()
    run.loader = None


def test_workers_that_do_not_start_are_done_without_for_a_rank_must_not_stay_behind(
    loops, no_children_left, monkeypatch, caplog
):
    from torch.utils.data import dataloader

    watched = loops.Watched(loops.make_loader("plain", 2))

    def change(number):
        if number == 2:
            monkeypatch.setattr(dataloader, "_MultiProcessingDataLoaderIter", no_more_processes)
            return {"micro_batch_size": 4}
        return None

    def no_more_processes(loader):
        next(iter(loader.batch_sampler))
        raise OSError("no more processes")

    steps = watched.one_pass(0, change)
    monkeypatch.undo()
    assert sum(steps, []) == list(range(loops.SAMPLES))
    assert "without workers" in caplog.text
    assert watched.run._parts.meter.errors == 1
    watched.run._parts.meter.errors = 0
    watched.one_pass(1, lambda number: None)
    watched.close()


@pytest.mark.parametrize("before", [0, 2])
def test_a_broken_item_costs_its_batch_and_no_other_also_in_another_size(before, indices, no_children_left):
    from torch.utils.data import DataLoader

    run = spikewatch.attach(
        loader=DataLoader(indices(64, fail_at=41), batch_size=8, num_workers=before), accumulation_steps=1
    )
    seen, batches = [], iter(run.loader)
    while True:
        try:
            seen += next(batches).tolist()
        except StopIteration:
            break
        except LookupError:
            seen.append("lost")
        if run.should_step() and run.loss_weight:
            run.step()
        if len(seen) == 24:
            run._parts.knobs.change({"micro_batch_size": 4})
    assert seen == [*range(40), "lost", *range(44, 64)]
    del batches
    run.close()
    run.loader = None


# --- iterable-style datasets ------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker")  # more than a small machine has CPUs
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("batch_size", [4, None])
def test_an_iterable_datasets_workers_run_further_or_less_far_ahead_and_keep_their_order(
    batch_size, persistent, no_children_left
):
    """Their shares have different lengths, so some end long before the others."""
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    class Shards(IterableDataset):
        def __iter__(self):
            number = get_worker_info().id
            return iter(range(number * 1000, number * 1000 + (9, 70, 31)[number]))

    def make():
        return DataLoader(
            Shards(), batch_size, num_workers=3, prefetch_factor=8, persistent_workers=persistent
        )  # 24 batches ahead, most of them asked of workers that have ended

    def told(batches):
        return [batch.tolist() if batch_size else batch for batch in batches]

    chance = random.Random(7)
    expected, twin = [], make()
    for _ in range(2):
        expected.append(told(twin))
    del twin
    run = spikewatch.attach(loader=make())
    assert "position in the workers" in run._parts.knobs.unavailable()["num_workers"]
    for passed in range(2):
        seen = []
        for number, batch in enumerate(run.loader):
            seen.append(batch)
            run.step()
            if number % 3 == 1:
                values = {"prefetch_factor": chance.choice([1, 1, 2, 9])}
                run._parts.knobs.check(values)
                run._parts.knobs.change(values)
        assert told(seen) == expected[passed]
        run._parts.knobs.change({"prefetch_factor": 3})  # between two passes
    run.close()
    run.loader = None


def test_an_iterable_dataset_without_workers_has_nothing_to_change(no_children_left):
    from torch.utils.data import DataLoader, IterableDataset

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(40))

    run = spikewatch.attach(loader=DataLoader(Stream(), 4))
    assert [len(batch) for batch in run.loader] == [4] * 10
    assert set(run._parts.knobs.unavailable()) >= {"num_workers", "prefetch_factor", "pin_memory"}
    run.close()
    run.loader = None
