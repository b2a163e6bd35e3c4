"""A loader changed while it runs loses, repeats and moves nothing, and leaves no process behind."""

import copy
import gc
import pickle
import random

import pytest

import spikewatch
from spikewatch import segments

pytestmark = pytest.mark.torch


@pytest.fixture
def attached(no_children_left):
    runs = []

    def attach(loader, **more):
        runs.append(spikewatch.attach(loader=loader, **more))
        return runs[-1]

    yield attach
    for run in runs:
        run.close()
        run.loader = None


def change(run, **values):
    """As at a step boundary, without the bookkeeping of orders."""
    run._parts.tuner.change(values)


def plain(loader):
    """An untouched twin's batches."""
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize("seed", range(10))
def test_whatever_is_changed_and_when_every_sample_comes_once_and_in_order(seed, indices, attached):
    from torch import Generator
    from torch.utils.data import DataLoader

    chance = random.Random(seed)
    workers = chance.choice([0, 1, 2])
    settings = dict(
        batch_size=chance.choice([1, 3, 8]),
        shuffle=chance.random() < 0.7,
        drop_last=chance.random() < 0.3,
        num_workers=workers,
        prefetch_factor=chance.choice([1, 2, 4]) if workers else None,
        persistent_workers=bool(workers) and chance.random() < 0.5,
    )

    def make():
        return DataLoader(indices(110), generator=Generator().manual_seed(seed), **settings)

    twin, run = make(), attached(make())
    for _ in range(2):
        seen = []
        for batch in run.loader:
            seen.append(batch.tolist())
            if chance.random() < 0.15:
                wanted = {"num_workers": chance.choice([0, 1, 2, 3]), "prefetch_factor": chance.choice([1, 2, 7])}
                change(run, **{name: wanted[name] for name in chance.sample(list(wanted), chance.choice([1, 2]))})
            run.step()
        assert seen == plain(twin)
    assert run._parts.meter.samples == sum(map(len, seen)) * 2
    assert run._parts.meter.errors == 0


def test_a_batch_comes_once_even_where_order_is_not_kept(indices, attached):
    from torch.utils.data import DataLoader

    run = attached(DataLoader(indices(120), batch_size=4, num_workers=2, in_order=False))
    seen = []
    for number, batch in enumerate(run.loader):
        seen += batch.tolist()
        if number in (3, 9, 15):
            change(run, num_workers=number % 3 + 1, prefetch_factor=number % 4 + 1)
    assert sorted(seen) == list(range(120))


@pytest.mark.parametrize("before", [0, 2])
def test_a_dataset_that_makes_whole_batches_hands_its_index_batches_on(before, indices, attached):
    from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

    sampler = BatchSampler(SequentialSampler(range(40)), 4, drop_last=False)
    run = attached(DataLoader(Batches(), batch_size=None, sampler=sampler, num_workers=before))
    for _ in range(2):
        seen = []
        for number, batch in enumerate(run.loader):
            seen += batch
            run.step()
            if number in (5, 7):
                change(run, num_workers=number - 4)
        assert seen == [i * 10 for i in range(40)]


class Batches:
    def __getitem__(self, indices):
        return [i * 10 for i in indices]


def test_a_multiprocessing_context_that_was_given_starts_the_new_workers_too(indices, attached):
    import multiprocessing

    from torch.utils.data import DataLoader

    started = []

    class Context(type(multiprocessing.get_context("fork"))):
        def Process(self, *args, **more):
            started.append(more)
            return super().Process(*args, **more)

    run = attached(DataLoader(indices(40), 4, num_workers=1, multiprocessing_context=Context()))
    seen = []
    for number, batch in enumerate(run.loader):
        seen += batch.tolist()
        if number == 2:
            change(run, num_workers=2)
    assert seen == list(range(40))
    assert len(started) == 3


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("after", [0, 1])
def test_a_broken_item_raises_where_it_would_have_and_the_rest_still_comes(before, after, indices, attached):
    from torch.utils.data import DataLoader

    def collect(loader, on_batch=lambda: None):
        seen, batches = [], iter(loader)
        while True:
            try:
                seen.append(next(batches).tolist())
            except StopIteration:
                return seen
            except LookupError as error:
                seen.append(type(error).__name__)
            on_batch()

    def make():
        return DataLoader(indices(60, fail_at=41), batch_size=4, num_workers=before)

    run = attached(make())
    numbers = iter(range(100))
    seen = collect(run.loader, lambda: change(run, num_workers=after) if next(numbers) == 2 else None)
    assert seen == collect(make())
    assert "LookupError" in seen


def test_a_samplers_error_is_raised_in_the_loop_and_not_swallowed_by_a_change(indices, attached):
    """torch raises it when it asks for that batch, as many batches ahead as are under way."""
    from torch.utils.data import DataLoader

    def breaking():
        yield from ([i, i + 1] for i in range(0, 20, 2))
        raise LookupError("the sampler is broken")

    class Breaking:
        def __iter__(self):
            return breaking()

    for values in ({"num_workers": 0}, {"num_workers": 2}, {"prefetch_factor": 9}):
        run = attached(DataLoader(indices(40), batch_sampler=Breaking(), num_workers=1))
        seen = []
        with pytest.raises(LookupError, match="sampler is broken"):
            for batch in run.loader:
                seen += batch.tolist()
                if len(seen) == 4:
                    change(run, **values)
        assert len(seen) >= 4
        assert seen == list(range(len(seen)))


def test_a_change_that_cannot_be_carried_out_leaves_the_pass_as_it_was(indices, attached, monkeypatch):
    from torch.utils.data import DataLoader

    run = attached(DataLoader(indices(80), batch_size=4, num_workers=2))
    real = segments.open_part

    def fails_late(loader, stream, *args, **more):
        for _ in range(3):
            next(stream)
        raise OSError("no more processes")

    seen = []
    for number, batch in enumerate(run.loader):
        seen += batch.tolist()
        if number == 2:
            monkeypatch.setattr(segments, "open_part", fails_late)
            with pytest.raises(spikewatch.refusal.Refused, match="no more processes") as refused:
                change(run, num_workers=1)
            assert refused.value.reason == "failed"
            assert run._parts.tuner.values() == {"num_workers": 2, "prefetch_factor": 2, "pin_memory": False}
        if number == 5:
            monkeypatch.setattr(segments, "open_part", real)
            change(run, num_workers=1)
    assert seen == list(range(80))


@pytest.mark.parametrize("leave", ["break", "exception", "sampler's error"])
def test_a_pass_that_is_left_is_gone_without_the_garbage_collector(leave, indices, attached):
    """Else its workers would live on for a while, which they do not without us."""
    from torch.utils.data import DataLoader

    class Breaking:
        def __iter__(self):
            yield from ([i] for i in range(30))
            raise LookupError("the sampler is broken")

    run = attached(DataLoader(indices(200), batch_sampler=Breaking(), num_workers=1))
    passes = run._parts.tuner.passes
    gc.collect()
    gc.disable()
    try:
        for number, _ in enumerate(run.loader):
            if number == 2:
                change(run, prefetch_factor=5)
            if number == 3:
                change(run, num_workers=2)
            if number == 4 and leave == "break":
                break
            if number == 4 and leave == "exception":
                raise LookupError
    except LookupError:
        pass
    finally:
        assert passes() == []
        gc.enable()


def test_leaving_the_loop_ends_the_old_and_the_new_workers(indices, attached, no_children_left):
    from torch.utils.data import DataLoader

    run = attached(DataLoader(indices(400), batch_size=4, num_workers=2))
    for number, _ in enumerate(run.loader):
        if number == 3:
            change(run, num_workers=3)
            break
    no_children_left()


def test_an_exception_in_the_loop_ends_the_workers(indices, attached, no_children_left):
    from torch.utils.data import DataLoader

    run = attached(DataLoader(indices(400), batch_size=4, num_workers=1))

    def loop():
        for number, _ in enumerate(run.loader):
            if number == 3:
                change(run, num_workers=2)
                raise KeyError("the training script fails")

    with pytest.raises(KeyError):
        loop()
    no_children_left()


def test_workers_that_live_on_are_the_same_processes_in_the_next_pass(indices, attached):
    from torch.utils.data import DataLoader

    loader = DataLoader(indices(40), batch_size=4, num_workers=1, persistent_workers=True)
    run = attached(loader)

    def pids():
        return [worker.pid for worker in loader._iterator._workers]

    list(run.loader)
    first = pids()
    list(run.loader)
    assert pids() == first
    change(run, num_workers=2)
    list(run.loader)
    changed = pids()
    list(run.loader)
    assert pids() == changed
    assert len(changed) == 2


def test_workers_that_live_on_stay_when_only_their_depth_changes_between_passes(indices, attached):
    from torch.utils.data import DataLoader

    loader = DataLoader(indices(40), batch_size=4, num_workers=1, persistent_workers=True)
    run = attached(loader)
    list(run.loader)
    first = [worker.pid for worker in loader._iterator._workers]
    change(run, prefetch_factor=5)
    assert len(list(run.loader)) == 10
    assert [worker.pid for worker in loader._iterator._workers] == first
    assert loader._iterator._prefetch_factor == 5


def test_workers_begun_before_attach_are_taken_over(indices, attached):
    from torch.utils.data import DataLoader

    loader = DataLoader(indices(40), batch_size=4, num_workers=1, persistent_workers=True)
    list(loader)
    run = attached(loader)
    seen = []
    for number, batch in enumerate(loader):
        seen += batch.tolist()
        if number == 2:
            change(run, num_workers=2)
    assert seen == list(range(40))
    assert run._parts.meter.epoch == 1


def test_a_change_between_passes_counts_from_the_next_one(indices, attached):
    from torch.utils.data import DataLoader

    loader = DataLoader(indices(40), batch_size=4, num_workers=1)
    run = attached(loader)
    list(run.loader)
    change(run, num_workers=2)
    assert (loader.num_workers, loader.prefetch_factor) == (2, 2)
    live = iter(run.loader)
    assert len(live._workers) == 2
    assert [batch.tolist() for batch in live] == [list(range(i, i + 4)) for i in range(0, 40, 4)]


def test_copies_and_pickles_of_an_attached_loader_are_plain_loaders(indices, attached):
    from torch.utils.data import DataLoader

    loader = DataLoader(list(range(20)), batch_size=4, shuffle=False)
    attached(loader)
    for twin in (copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        assert type(iter(twin)).__module__ == "torch.utils.data.dataloader"
        assert len(plain(twin)) == 5


def test_a_closed_runs_loader_goes_on_and_can_be_attached_again(indices, attached):
    from torch.utils.data import DataLoader

    loader = DataLoader(indices(40), batch_size=4, num_workers=1)
    first = attached(loader)
    list(first.loader)
    second = attached(loader)
    assert second._parts.tuner is None  # the first one still has it
    first.close()
    assert len(list(loader)) == 10
    third = attached(loader)
    list(third.loader)
    change(third, num_workers=2)
    assert len(list(third.loader)) == 10
    assert third._parts.meter.handed == 80
