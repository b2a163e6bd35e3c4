"""A loop that accumulates over a loader of every kind, and the steps that the loop without us would make."""

import random
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

import spikewatch
from spikewatch.refusal import Refused

sys.path.insert(0, str(Path(__file__).parent))

SAMPLES, OWN, ACCUMULATION = 90, 8, 2


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
        self.refused, self.applied = [], Counter()

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
            self.applied.update(values.keys())

    def close(self):
        assert self.run._parts.meter.errors == 0
        self.run.close()
        self.run.loader = self.loader = None


@pytest.fixture
def loops():
    """The above, for tests."""
    return SimpleNamespace(
        SAMPLES=SAMPLES,
        dataset=dataset,
        make_loader=make_loader,
        seeded=seeded,
        steps_without_us=steps_without_us,
        Buckets=Buckets,
        Watched=Watched,
    )
