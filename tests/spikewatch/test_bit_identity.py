"""A training run that we watch or change ends exactly as one without us."""

import gc
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import spikewatch

pytestmark = pytest.mark.torch

CHANGES = {  # a pass has 15 steps; two of them begin without workers
    2: {"num_workers": 1},
    3: {"prefetch_factor": 5},
    5: {"num_workers": 2, "prefetch_factor": 1},
    6: {"num_workers": 0},
    9: {"num_workers": 2},
    13: {"num_workers": 0},
    18: {"num_workers": 1, "prefetch_factor": 2},
    20: {"prefetch_factor": 3},
    22: {"num_workers": 2},
    28: {"num_workers": 0},
}
LATE = {step + 5: values for step, values in CHANGES.items()}  # a loader without workers is looked at first


def kinds():
    for workers in (0, 2):
        for generator in (False, True):
            for persistent in (False, True) if workers else (False,):
                yield pytest.param(
                    (workers, generator, persistent), id=f"workers{workers}-generator{generator}-persistent{persistent}"
                )


@pytest.fixture(params=kinds())
def make_loader(request, indices):
    from torch import Generator
    from torch.utils.data import DataLoader

    workers, generator, persistent = request.param

    def make(**more):
        return DataLoader(
            indices(60),
            batch_size=4,
            shuffle=True,
            num_workers=workers,
            persistent_workers=persistent,
            generator=Generator().manual_seed(7) if generator else None,
            **more,
        )

    return make


def changed_by(order, changes, runs):
    def around(loader):
        run = spikewatch.attach(loader=loader)
        runs.append(run)
        steps = iter(range(1, 1000))

        def after(loss):
            step = next(steps)
            if step in changes:
                order(run, **changes[step])
            run.step(loss)
            for report in run._parts.ledger.reports():
                if report["state"] == "applied":
                    run._parts.ledger.keep(report["id"])

        return run.loader, after

    return around


def watched(loader, **more):
    run = spikewatch.attach(loader=loader, **more)
    return run.loader, run.step


def counted(loader):
    """Of a loop that accumulates: there, passes are opened on an index stream that is kept track of."""
    return watched(loader, accumulation_steps=1)


@pytest.mark.parametrize("around", [watched, counted])
def test_a_watched_run_ends_bit_identical(around, train, make_loader, no_children_left):
    assert train(make_loader, around) == train(make_loader)


@pytest.mark.parametrize("around", [watched, counted])
@pytest.mark.parametrize("persistent", [False, True])
def test_what_workers_draw_is_bit_identical_under_watch(around, persistent, train, no_children_left):
    from torch.utils.data import DataLoader

    def make():
        return DataLoader(Noisy(), batch_size=4, num_workers=2, persistent_workers=persistent)

    assert train(make, around) == train(make)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterable_dataset_ends_bit_identical_with_what_it_draws(workers, train, order, no_children_left):
    from torch.utils.data import DataLoader

    def make():
        return DataLoader(streaming(), batch_size=4, num_workers=workers, prefetch_factor=2 if workers else None)

    plain = train(make, epochs=3)
    assert train(make, watched, epochs=3) == plain
    assert train(make, counted, epochs=3) == plain
    runs = []
    changes = {2: {"prefetch_factor": 6}, 5: {"prefetch_factor": 1}, 14: {"prefetch_factor": 3}} if workers else {}
    assert train(make, changed_by(order, changes, runs), epochs=3) == plain
    assert [report["state"] for report in runs[0]._parts.ledger.reports()] == ["kept"] * len(changes)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_ranks_share_of_the_data_ends_bit_identical(workers, train, indices, order, no_children_left):
    from torch.utils.data import DataLoader
    from torch.utils.data.distributed import DistributedSampler

    def make():
        sampler = DistributedSampler(indices(120), num_replicas=2, rank=1, shuffle=True)
        return DataLoader(indices(120), batch_size=4, sampler=sampler, num_workers=workers)

    plain = train(make, epochs=3)
    assert train(make, counted, epochs=3) == plain
    runs = []
    assert train(make, changed_by(order, CHANGES if workers else LATE, runs), epochs=3) == plain
    assert [report["state"] for report in runs[0]._parts.ledger.reports()] == ["kept"] * 10


def test_a_run_with_ten_changes_ends_bit_identical(train, make_loader, order, no_children_left):
    runs = []
    changes = LATE if make_loader().num_workers == 0 else CHANGES
    assert train(make_loader, changed_by(order, changes, runs), epochs=3) == train(make_loader, epochs=3)
    states = [report["state"] for report in runs[0]._parts.ledger.reports()]
    assert states == ["kept"] * 10


@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    kind=st.sampled_from([(0, False, False), (2, True, False), (1, False, True), (2, True, True)]),
    accumulates=st.booleans(),
    changes=st.dictionaries(
        st.integers(6, 40),
        st.fixed_dictionaries({}, optional={"num_workers": st.integers(0, 2), "prefetch_factor": st.integers(1, 9)}),
        max_size=6,
    ),
)
def test_whatever_is_changed_and_when_a_run_ends_bit_identical(
    kind, accumulates, changes, train, indices, no_children_left
):
    from torch import Generator
    from torch.utils.data import DataLoader

    workers, generator, persistent = kind

    def make():
        return DataLoader(
            indices(60),
            batch_size=4,
            shuffle=True,
            num_workers=workers,
            persistent_workers=persistent,
            generator=Generator().manual_seed(7) if generator else None,
        )

    def around(loader):
        run = spikewatch.attach(loader=loader, accumulation_steps=1 if accumulates else None)
        steps = iter(range(1, 1000))

        def after(loss):
            values = changes.get(next(steps))
            run.step(loss)
            if values:
                run._parts.knobs.check(values)
                run._parts.knobs.change(values)

        return run.loader, after

    assert train(make, around, epochs=3) == train(make, epochs=3)


def test_a_pass_that_is_left_touches_no_random_state_when_it_is_collected(random_state, no_children_left):
    """Also where its samples are loaded here, with a random state of their own."""
    import torch
    from torch.utils.data import DataLoader

    for accumulation_steps in (None, 1):
        run = spikewatch.attach(
            loader=DataLoader(Noisy(), 4, shuffle=True, num_workers=2), accumulation_steps=accumulation_steps
        )
        batches = iter(run.loader)
        for _ in range(7):  # the last of them are loaded here
            next(batches)
            run._parts.knobs.change({"num_workers": 0})
        torch.rand(1)
        random.random()
        before = random_state()
        run.close()
        run.loader = None
        del batches, run
        gc.collect()
        assert random_state() == before


def test_a_change_to_the_same_workers_keeps_the_draws_of_later_epochs(train, order, no_children_left):
    """The workers' base seed of every later pass is the one the unchanged loader would have drawn."""
    from torch.utils.data import DataLoader

    def make():
        return DataLoader(Noisy(), batch_size=4, num_workers=2)

    plain = train(make, epochs=2)
    runs = []
    changed = train(make, changed_by(order, {3: {"prefetch_factor": 5}}, runs), epochs=2)
    assert changed.order[10:] == plain.order[10:]


def test_a_custom_sampler_that_draws_when_iterated_is_iterated_as_often(train, indices, order, no_children_left):
    from torch.utils.data import DataLoader

    for workers in (0, 2):

        def make(workers=workers):
            return DataLoader(indices(60), batch_sampler=Eager(60), num_workers=workers)

        changes = {step + 8: values for step, values in CHANGES.items()}
        runs = []
        assert train(make, changed_by(order, changes, runs), epochs=3) == train(make, epochs=3)
        assert [r["state"] for r in runs[0]._parts.ledger.reports()] == ["kept"] * 10


def test_samples_loaded_here_instead_of_in_workers_do_not_draw_from_the_runs_random_state(
    train, order, no_children_left
):
    from torch.utils.data import DataLoader

    def make():
        return DataLoader(Noisy(), batch_size=4, num_workers=2)

    runs = []
    changed = train(make, changed_by(order, {1: {"num_workers": 0}, 8: {"num_workers": 2}}, runs))
    plain = train(make)
    assert changed.random == plain.random
    assert [r["state"] for r in runs[0]._parts.ledger.reports()] == ["kept"] * 2


def streaming():
    """An iterable-style dataset that shuffles and augments as it goes, sharded by worker."""
    from torch.utils.data import IterableDataset, get_worker_info

    class Streaming(IterableDataset):
        def __iter__(self):
            import torch

            worker = get_worker_info()
            mine = range(40) if worker is None else range(worker.id, 40, worker.num_workers)
            for i in mine:
                yield i * 1000 + int(torch.randint(100, ()).item()) + random.randrange(100)

    return Streaming()


class Noisy:
    """Augments: an item depends on the worker's random draws."""

    def __len__(self):
        return 40

    def __getitem__(self, i):
        import numpy
        import torch

        return i * 1000 + int(torch.randint(100, ()).item()) + random.randrange(100) + int(numpy.random.randint(100))


class Eager:
    """A batch sampler that shuffles in `__iter__`, not at the first batch."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size // 4

    def __iter__(self):
        import torch

        order = torch.randperm(self.size).tolist()
        return iter([order[i : i + 4] for i in range(0, self.size, 4)])


@pytest.mark.parametrize("persistent", [False, True])
def test_more_or_fewer_batches_ahead_leave_even_the_workers_draws_alone(train, order, persistent, no_children_left):
    from torch.utils.data import DataLoader

    def make():
        return DataLoader(Noisy(), batch_size=2, num_workers=2, persistent_workers=persistent)

    changes = {2: 5, 4: 1, 9: 3, 12: 2, 19: 4, 20: 1, 25: 6}
    runs = []
    changed = train(make, changed_by(order, {s: {"prefetch_factor": p} for s, p in changes.items()}, runs))
    assert changed == train(make)
    assert [r["state"] for r in runs[0]._parts.ledger.reports()] == ["kept"] * len(changes)
