"""A restarted run goes on with the next sample, whatever was changed before and is changed after."""

import io
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loop_changes import CHANGES, KINDS

import spikewatch

pytestmark = pytest.mark.torch


def saved(state):
    """Through a file, as weights are, which takes nothing but plain values and tensors."""
    import torch

    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    kind=st.sampled_from(KINDS),
    workers=st.sampled_from([0, 2]),
    persistent=st.booleans(),
    stop=st.integers(4, 9),  # steps; a rank of two has nine in three passes
    changes=st.dictionaries(st.integers(1, 16), st.sampled_from(CHANGES), max_size=4),
)
def test_a_resumed_run_goes_on_with_the_next_sample_and_the_next_passes_order(
    kind, workers, persistent, stop, changes, loops, no_children_left
):
    import torch

    passes = 3
    expected = loops.steps_without_us(kind, workers, passes, persistent=persistent)
    loops.seeded()
    first, told = loops.Watched(loops.make_loader(kind, workers, persistent=persistent)), []
    while first.number < stop and len(told) < passes:
        told.append(first.one_pass(len(told), changes.get, stop))
    checkpoint = saved(first.run.state_dict())
    rng = torch.get_rng_state(), random.getstate()
    first.close()

    loops.seeded(99)
    second = loops.Watched(loops.make_loader(kind, workers, persistent=persistent))
    assert second.run.load_state_dict(checkpoint, strict=True)
    torch.set_rng_state(rng[0])
    random.setstate(rng[1])
    epoch = len(told) - 1
    told[-1] += second.one_pass(epoch, lambda number: changes.get(number + stop))
    told += [second.one_pass(number, lambda number: None) for number in range(epoch + 1, passes)]
    second.close()
    assert told == expected


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_an_iterable_dataset_is_read_again_up_to_where_it_was_with_all_that_its_workers_drew(
    workers, persistent, no_children_left
):
    import torch
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    class Shards(IterableDataset):
        def __iter__(self):
            worker = get_worker_info()
            if worker is None:
                yield from range(70)
            else:  # one share ends long before the other
                for i in range((15, 55)[worker.id]):
                    yield i * 100 + random.randrange(100) + int(torch.randint(100, ()).item())

    def make():
        return DataLoader(Shards(), 4, num_workers=workers, persistent_workers=persistent and workers > 0)

    torch.manual_seed(1)
    expected = [batch.tolist() for batch in make()]
    torch.manual_seed(1)
    told, checkpoint = [], None
    for stop in (6, 5, 99):
        run = spikewatch.attach(loader=make(), accumulation_steps=1)
        if checkpoint is not None:
            assert run.load_state_dict(checkpoint, strict=True)
        before = torch.get_rng_state()
        for number, batch in enumerate(run.loader, 1):
            told.append(batch.tolist())
            run.step()
            if workers and number == 2:
                run._parts.knobs.change({"prefetch_factor": 5})
            if number == stop:
                break
        if checkpoint is not None:
            assert torch.equal(torch.get_rng_state(), before)
        checkpoint = saved(run.state_dict())
        run.close()
        run.loader = None
    assert told == expected


def test_a_checkpoint_between_two_passes_begins_the_next_one(loops, no_children_left):
    first = loops.Watched(loops.make_loader("generator", 0))
    first.one_pass(0, lambda number: None)
    checkpoint = saved(first.run.state_dict())
    expected = first.one_pass(1, lambda number: None)
    first.close()
    second = loops.Watched(loops.make_loader("generator", 0, seed=6))
    assert second.run.load_state_dict(checkpoint, strict=True)
    assert second.one_pass(1, lambda number: None) == expected
    second.close()


def test_a_resumed_run_can_be_resumed_again(loops, no_children_left):
    expected = loops.steps_without_us("generator", 2, 1)[0]
    told, checkpoint = [], None
    for stop in (2, 2, 9):
        watched = loops.Watched(loops.make_loader("generator", 2))
        if checkpoint is not None:
            assert watched.run.load_state_dict(checkpoint, strict=True)
        told += watched.one_pass(0, lambda number: {"num_workers": number % 3}, stop)
        checkpoint = saved(watched.run.state_dict())
        watched.close()
    assert told == expected


def test_in_the_middle_of_an_accumulation_the_checkpoint_is_of_its_beginning(loops, no_children_left):
    """Its gradients are not in the checkpoint."""
    run = spikewatch.attach(loader=loops.make_loader("plain", 0), accumulation_steps=3)
    batches = iter(run.loader)
    seen = [next(batches).tolist() for _ in range(5)]
    checkpoint = saved(run.state_dict())
    again = spikewatch.attach(loader=loops.make_loader("plain", 2), accumulation_steps=3)
    assert again.load_state_dict(checkpoint, strict=True)
    resumed = iter(again.loader)
    assert next(resumed).tolist() == seen[3]
    del batches, resumed
    for one in (run, again):
        one.close()
        one.loader = None


def test_a_position_draws_nothing_from_the_runs_random_state(random_state, loops, no_children_left):
    run = spikewatch.attach(loader=loops.make_loader("shuffled", 2))
    batches = iter(run.loader)
    next(batches)
    before = random_state()
    checkpoint = run.state_dict()
    assert random_state() == before
    again = spikewatch.attach(loader=loops.make_loader("shuffled", 2))
    assert again.load_state_dict(checkpoint)
    before = random_state()
    resumed = iter(again.loader)
    next(resumed)
    assert random_state() == before
    del batches, resumed
    for one in (run, again):
        one.close()
        one.loader = None


def test_a_sampler_that_cannot_be_looked_into_costs_the_position_and_nothing_else(no_children_left):
    from torch.utils.data import DataLoader, SequentialSampler

    class Secretive(SequentialSampler):
        set_epoch = print

        @property
        def epoch(self):
            raise LookupError("not to be asked")

    sampler = Secretive(range(24))
    run = spikewatch.attach(loader=DataLoader(range(24), 4, sampler=sampler))
    for number, _ in enumerate(run.loader):
        run.step()
        if number == 4:  # by then it was seen to draw nothing
            assert "could not be read" in run.state_dict()["data"]["reason"]
    assert number == 5
    assert run._parts.meter.errors == 1
    run.close()


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ("distributed", "sampler was 'SequentialSampler', is 'DistributedSampler'"),
        ("drop_last", "drop_last was False, is True"),
        ("", "not a torch DataLoader"),
    ],
)
def test_a_position_that_does_not_fit_is_refused_with_the_difference(other, reason, caplog, loops, no_children_left):
    run = spikewatch.attach(loader=loops.make_loader("plain", 0))
    batches = iter(run.loader)
    next(batches)
    checkpoint = run.state_dict()
    again = spikewatch.attach(loader=loops.make_loader(other, 0) if other else [1, 2])
    with pytest.raises(ValueError, match=reason):
        again.load_state_dict(checkpoint, strict=True)
    assert again.load_state_dict(checkpoint) is False
    assert reason in caplog.text
    for damaged in ({}, None, {"data": {"position": {"version": 1}}}, {"data": {"position": {"version": 7}}}):
        assert again.load_state_dict(damaged) is False
    del batches
    for one in (run, again):
        one.close()
        one.loader = None


def test_loaders_whose_position_nobody_knows_say_so_in_the_checkpoint(monkeypatch, loops, no_children_left):
    from torch.utils.data import DataLoader, IterableDataset

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(40))

    def reason(loader):
        run = spikewatch.attach(loader=loader)
        told = run.state_dict()["data"]
        run.close()
        assert told["position"] is None
        return told["reason"]

    assert "not known yet" in reason(DataLoader(Stream(), 4))
    assert "in_order=False" in reason(DataLoader(loops.dataset(), 4, num_workers=1, in_order=False))
    assert "not known yet" in reason(DataLoader(loops.dataset(), batch_sampler=loops.Buckets(loops.SAMPLES, 4)))
    assert "not a torch DataLoader" in reason([1, 2])
    lives_on = DataLoader(Stream(), 4, num_workers=1, persistent_workers=True)
    list(lives_on)
    run = spikewatch.attach(loader=lives_on)
    batches = iter(run.loader)
    next(batches)
    assert "workers that live on" in run.state_dict()["data"]["reason"]
    run.close()
    del batches, lives_on
    run.loader = None
    monkeypatch.setenv("SPIKEWATCH_DISABLE", "1")
    assert "off" in reason(DataLoader(loops.dataset(), 4))
