"""Bounds of the knobs, and the times when they are closed."""

import os
import random
import threading
from types import SimpleNamespace

import pytest

import spikewatch
from spikewatch.loaderknobs import WORKERS_PER_CPU
from spikewatch.refusal import Refused

pytestmark = pytest.mark.torch


@pytest.fixture
def attach(no_children_left):
    runs = []

    def make(loader, **more):
        runs.append(spikewatch.attach(loader=loader, **more))
        return runs[-1], runs[-1]._parts.agent._knobs

    yield make
    for run in runs:
        run.close()
        run.loader = None


def refusal(knobs, **values):
    with pytest.raises(Refused) as refused:
        knobs.check(values)
    return refused.value.reason


def test_bounds_are_those_given_at_attach_and_what_the_cpus_can_carry(attach, indices, monkeypatch):
    from torch.utils.data import DataLoader

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    _, knobs = attach(DataLoader(indices(9), num_workers=1), max_prefetch=10)
    assert knobs.bounds()["num_workers"] == (0, 3 * WORKERS_PER_CPU)
    assert knobs.bounds()["prefetch_factor"] == (1, 10)
    _, knobs = attach(DataLoader(indices(9), num_workers=1), max_workers=4)
    assert knobs.bounds()["num_workers"] == (0, 4)


def test_the_values_found_are_always_within_bounds(attach, indices):
    from torch.utils.data import DataLoader

    _, knobs = attach(DataLoader(indices(9), num_workers=2, prefetch_factor=70), max_workers=1, max_prefetch=8)
    knobs.check({"num_workers": 2, "prefetch_factor": 70})


@pytest.mark.parametrize("value", [-1, 65, 2.0, True, "2", None])
def test_a_value_out_of_bounds_or_of_another_type_is_refused(attach, indices, value):
    from torch.utils.data import DataLoader

    _, knobs = attach(DataLoader(indices(9), num_workers=1))
    assert refusal(knobs, num_workers=value) == "out_of_bounds"


def test_more_batches_than_shared_memory_holds_are_refused(attach, monkeypatch):
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    run, knobs = attach(DataLoader(TensorDataset(torch.zeros(8, 1 << 18)), batch_size=4, num_workers=1))
    for _ in run.loader:
        run.step()
    room = SimpleNamespace(f_bavail=64, f_frsize=1 << 20)  # 64 MiB free, as Kubernetes gives by default
    monkeypatch.setattr(os, "statvfs", lambda path: room)
    assert refusal(knobs, num_workers=4, prefetch_factor=4) == "no_room"
    knobs.check({"num_workers": 2, "prefetch_factor": 2})
    knobs.check({"num_workers": 0, "prefetch_factor": 64})


def test_a_loader_without_workers_opens_its_knobs_when_it_is_seen_to_draw_nothing(attach, indices):
    from torch.utils.data import DataLoader

    run, knobs = attach(DataLoader(indices(20), batch_size=2, shuffle=True))
    assert refusal(knobs, num_workers=2) == "unsupported"
    assert "not known yet" in knobs.unavailable()["num_workers"]
    for _ in run.loader:
        run.step()
    knobs.check({"num_workers": 2})
    assert knobs.values().items() >= {"num_workers": 0, "prefetch_factor": 2}.items()


@pytest.mark.parametrize("source", ["torch", "random", "numpy"])
def test_a_dataset_that_draws_in_this_process_keeps_its_knobs_closed(attach, source):
    import numpy
    import torch
    from torch.utils.data import DataLoader

    draw = {"torch": lambda: torch.rand(1), "random": random.random, "numpy": numpy.random.rand}[source]

    class Drawing:
        def __len__(self):
            return 20

        def __getitem__(self, i):
            draw()
            return i

    run, knobs = attach(DataLoader(Drawing(), batch_size=2))
    for _ in run.loader:
        run.step()
    assert refusal(knobs, num_workers=2) == "unsupported"
    assert "would shift it" in knobs.unavailable()["num_workers"]


def test_a_sampler_that_draws_an_index_at_a_time_keeps_the_knobs_closed(attach, indices):
    from torch.utils.data import DataLoader

    class Lazy:
        def __iter__(self):
            for _ in range(30):
                yield random.randrange(20)

        def __len__(self):
            return 30

    run, knobs = attach(DataLoader(indices(20), sampler=Lazy(), batch_size=2, num_workers=1))
    for _ in run.loader:
        run.step()
    assert refusal(knobs, prefetch_factor=4) == "unsupported"


def test_a_loader_read_by_another_thread_is_not_changed_under_it(attach, indices):
    from torch.utils.data import DataLoader

    run, knobs = attach(DataLoader(indices(40), batch_size=2, num_workers=1))
    batches = iter(run.loader)
    thread = threading.Thread(target=lambda: next(batches))
    thread.start()
    thread.join()
    with pytest.raises(Refused, match="another thread"):
        knobs.change({"num_workers": 2})
    assert knobs.values()["num_workers"] == 1


def test_nothing_is_changed_while_torch_makes_tensors_elsewhere_by_default(attach, indices):
    import torch
    from torch.utils.data import DataLoader

    _, knobs = attach(DataLoader(indices(40), batch_size=2, num_workers=1))
    with torch.device("meta"), pytest.raises(Refused, match="default device"):
        knobs.change({"num_workers": 2})
