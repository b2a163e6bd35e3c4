"""Whatever is changed on the way, also the size of batches, and also across a restart: every sample once, in order."""

import io
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import spikewatch
from spikewatch.refusal import Refused

pytestmark = pytest.mark.torch

SAMPLES, OWN, ACCUMULATION = 90, 8, 2
STEP = OWN * ACCUMULATION

CHANGES = (
    {"num_workers": 0},
    {"num_workers": 1},
    {"num_workers": 2},
    {"prefetch_factor": 1},
    {"prefetch_factor": 5},
    {"micro_batch_size": 4},
    {"micro_batch_size": 16},
    {"accumulation_steps": 8},
    {"micro_batch_size": 8},
    {"micro_batch_size": 2, "num_workers": 1},
)


def dataset():
    class Numbers:
        def __len__(self):
            return SAMPLES

        def __getitem__(self, i):
            return i

    return Numbers()


def make_loader(kind, workers, seed=5, persistent=False, **more):
    """A loader whose order comes from where `kind` says."""
    from torch import Generator
    from torch.utils.data import DataLoader
    from torch.utils.data.distributed import DistributedSampler

    numbers = dataset()
    common = dict(num_workers=workers, persistent_workers=bool(workers) and persistent, **more)
    if kind == "generator":
        return DataLoader(numbers, OWN, shuffle=True, generator=Generator().manual_seed(seed), **common)
    if kind == "distributed":
        sampler = DistributedSampler(numbers, num_replicas=2, rank=1, shuffle=True, seed=seed)
        return DataLoader(numbers, OWN, sampler=sampler, **common)
    if kind == "own batch sampler":
        return DataLoader(numbers, batch_sampler=Buckets(SAMPLES, OWN), **common)
    return DataLoader(numbers, OWN, shuffle=kind == "shuffled", drop_last=kind == "drop_last", **common)


class Buckets:
    """A batch sampler of another library's: draws its order when it is begun, and has short batches in the middle."""

    def __init__(self, samples, batch_size):
        self.samples, self.batch_size = samples, batch_size

    def __iter__(self):
        order = list(range(self.samples))
        random.shuffle(order)
        third = self.samples // 3 + 1
        for bucket in (order[i : i + third] for i in range(0, self.samples, third)):
            yield from (bucket[i : i + self.batch_size] for i in range(0, len(bucket), self.batch_size))


KINDS = ("plain", "drop_last", "shuffled", "generator", "distributed", "own batch sampler")


def seeded(number=1):
    import torch

    torch.manual_seed(number)
    random.seed(number)


def steps_without_us(kind, workers, passes, **more):
    """What each optimizer step of an untouched run uses, one list a pass; seeded as the run to compare."""
    seeded()
    loader, told = make_loader(kind, workers, **more), []
    for number in range(passes):
        if kind == "distributed":
            loader.sampler.set_epoch(number)
        batches = [batch.tolist() for batch in loader]
        told.append([sum(batches[i : i + ACCUMULATION], []) for i in range(0, len(batches), ACCUMULATION)])
    return told


class Watched:
    """A run over a loader, its samples by step; `change` is called after each step with its number in the run."""

    def __init__(self, loader):
        self.loader = loader
        self.run = spikewatch.attach(loader=loader, accumulation_steps=ACCUMULATION)
        self.knobs = self.run._parts.knobs
        self.number = 0
        self.refused = []

    def one_pass(self, epoch, change, stop=None):
        if hasattr(self.loader.sampler, "set_epoch"):
            self.loader.sampler.set_epoch(epoch)
        steps, step, weights = [], [], 0.0
        for batch in self.run.loader:
            step += batch.tolist()
            weights += self.run.loss_weight
            if not self.run.should_step():
                continue
            assert weights == pytest.approx(1.0)
            steps.append(step)
            step, weights = [], 0.0
            self.run.step()
            self.number += 1
            if self.number == stop:
                return steps
            self.change(change(self.number))
        assert step == []
        return steps

    def change(self, values):
        if not values:
            return
        try:
            self.knobs.check(values)
        except Refused as refusal:
            self.refused.append(refusal.detail)
        else:
            self.knobs.change(values)

    def close(self):
        assert self.run._parts.meter.errors == 0
        self.run.close()
        self.run.loader = self.loader = None


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    kind=st.sampled_from(KINDS),
    workers=st.sampled_from([0, 1, 2]),
    persistent=st.booleans(),
    changes=st.dictionaries(st.integers(4, 16), st.sampled_from(CHANGES), min_size=1, max_size=5),
)
def test_a_step_uses_the_samples_it_would_have_used_whatever_is_changed(
    kind, workers, persistent, changes, no_children_left
):
    expected = steps_without_us(kind, workers, 3, persistent=persistent)
    seeded()
    watched = Watched(make_loader(kind, workers, persistent=persistent))
    assert [watched.one_pass(epoch, changes.get) for epoch in range(3)] == expected
    assert not [reason for reason in watched.refused if "not known yet" not in reason]
    watched.close()


def test_two_ranks_of_different_depth_that_change_at_the_same_step_go_on_in_step(no_children_left):
    """However far a rank's workers are ahead, the new size begins with the very next batch."""
    from torch.utils.data import DataLoader
    from torch.utils.data.distributed import DistributedSampler

    def rank(number, workers, prefetch):
        sampler = DistributedSampler(dataset(), num_replicas=2, rank=number, shuffle=True)
        loader = DataLoader(dataset(), 8, sampler=sampler, num_workers=workers, prefetch_factor=prefetch)
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
    assert sorted(seen_0 + seen_1) == list(range(SAMPLES))


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
    assert seen == list(range(64))
    assert not any(worker.is_alive() for worker in old)
    del batches
    run.close()
    run.loader = None


def test_workers_that_do_not_start_are_done_without_for_a_rank_must_not_stay_behind(
    no_children_left, monkeypatch, caplog
):
    from torch.utils.data import dataloader

    watched = Watched(make_loader("plain", 2))

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
    assert sum(steps, []) == list(range(SAMPLES))
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


# --- a restart --------------------------------------------------------------------------------------------------------


def saved(state):
    """Through a file, as weights are, which takes nothing but plain values and tensors."""
    import torch

    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    kind=st.sampled_from(KINDS),
    workers=st.sampled_from([0, 2]),
    persistent=st.booleans(),
    stop=st.integers(4, 9),  # steps; a rank of two has nine in three passes
    changes=st.dictionaries(st.integers(1, 16), st.sampled_from(CHANGES), max_size=4),
)
def test_a_resumed_run_goes_on_with_the_next_sample_and_the_next_passes_order(
    kind, workers, persistent, stop, changes, no_children_left
):
    import torch

    passes = 3
    expected = steps_without_us(kind, workers, passes, persistent=persistent)
    seeded()
    first, told = Watched(make_loader(kind, workers, persistent=persistent)), []
    while first.number < stop and len(told) < passes:
        told.append(first.one_pass(len(told), changes.get, stop))
    checkpoint = saved(first.run.state_dict())
    rng = torch.get_rng_state(), random.getstate()
    first.close()

    seeded(99)
    second = Watched(make_loader(kind, workers, persistent=persistent))
    assert second.run.load_state_dict(checkpoint, strict=True)
    torch.set_rng_state(rng[0])
    random.setstate(rng[1])
    epoch = len(told) - 1
    told[-1] += second.one_pass(epoch, lambda number: changes.get(number + stop))
    told += [second.one_pass(number, lambda number: None) for number in range(epoch + 1, passes)]
    second.close()
    assert told == expected


def test_a_checkpoint_between_two_passes_begins_the_next_one(no_children_left):
    first = Watched(make_loader("generator", 0))
    first.one_pass(0, lambda number: None)
    checkpoint = saved(first.run.state_dict())
    expected = first.one_pass(1, lambda number: None)
    first.close()
    second = Watched(make_loader("generator", 0, seed=6))
    assert second.run.load_state_dict(checkpoint, strict=True)
    assert second.one_pass(1, lambda number: None) == expected
    second.close()


def test_a_resumed_run_can_be_resumed_again(no_children_left):
    expected = steps_without_us("generator", 2, 1)[0]
    told, checkpoint = [], None
    for stop in (2, 2, 9):
        watched = Watched(make_loader("generator", 2))
        if checkpoint is not None:
            assert watched.run.load_state_dict(checkpoint, strict=True)
        told += watched.one_pass(0, lambda number: {"num_workers": number % 3}, stop)
        checkpoint = saved(watched.run.state_dict())
        watched.close()
    assert told == expected


def test_in_the_middle_of_an_accumulation_the_checkpoint_is_of_its_beginning(no_children_left):
    """Its gradients are not in the checkpoint."""
    run = spikewatch.attach(loader=make_loader("plain", 0), accumulation_steps=3)
    batches = iter(run.loader)
    seen = [next(batches).tolist() for _ in range(5)]
    checkpoint = saved(run.state_dict())
    again = spikewatch.attach(loader=make_loader("plain", 2), accumulation_steps=3)
    assert again.load_state_dict(checkpoint, strict=True)
    resumed = iter(again.loader)
    assert next(resumed).tolist() == seen[3]
    del batches, resumed
    for one in (run, again):
        one.close()
        one.loader = None


def test_a_position_draws_nothing_from_the_runs_random_state(random_state, no_children_left):
    run = spikewatch.attach(loader=make_loader("shuffled", 2))
    batches = iter(run.loader)
    next(batches)
    before = random_state()
    checkpoint = run.state_dict()
    assert random_state() == before
    again = spikewatch.attach(loader=make_loader("shuffled", 2))
    assert again.load_state_dict(checkpoint)
    before = random_state()
    resumed = iter(again.loader)
    next(resumed)
    assert random_state() == before
    del batches, resumed
    for one in (run, again):
        one.close()
        one.loader = None


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (lambda: make_loader("distributed", 0), "sampler was 'SequentialSampler', is 'DistributedSampler'"),
        (lambda: make_loader("drop_last", 0), "drop_last was False, is True"),
        (lambda: [1, 2], "not a torch DataLoader"),
    ],
)
def test_a_position_that_does_not_fit_is_refused_with_the_difference(other, reason, caplog, no_children_left):
    run = spikewatch.attach(loader=make_loader("plain", 0))
    batches = iter(run.loader)
    next(batches)
    checkpoint = run.state_dict()
    again = spikewatch.attach(loader=other())
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


def test_loaders_whose_position_nobody_knows_say_so_in_the_checkpoint(monkeypatch, no_children_left):
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

    assert "iterable-style" in reason(DataLoader(Stream(), 4))
    assert "in_order=False" in reason(DataLoader(dataset(), 4, num_workers=1, in_order=False))
    assert "not known yet" in reason(DataLoader(dataset(), batch_sampler=Buckets(SAMPLES, 4)))
    assert "not a torch DataLoader" in reason([1, 2])
    monkeypatch.setenv("SPIKEWATCH_DISABLE", "1")
    assert "off" in reason(DataLoader(dataset(), 4))
