"""A training run that we watch or change ends exactly as one without us."""

import random

import pytest

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


def watched(loader):
    run = spikewatch.attach(loader=loader)
    return run.loader, run.step


def test_a_watched_run_ends_bit_identical(train, make_loader, no_children_left):
    assert train(make_loader, watched) == train(make_loader)


def test_a_run_with_ten_changes_ends_bit_identical(train, make_loader, order, no_children_left):
    runs = []
    changes = LATE if make_loader().num_workers == 0 else CHANGES
    assert train(make_loader, changed_by(order, changes, runs), epochs=3) == train(make_loader, epochs=3)
    states = [report["state"] for report in runs[0]._parts.ledger.reports()]
    assert states == ["kept"] * 10


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
