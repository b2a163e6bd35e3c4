"""What the client's tests share: no sidecar unless a test makes one, and a small training run to compare."""

import gc
import multiprocessing
import random
import time
from types import SimpleNamespace

import pytest

import spikewatch
from spikewatch import attaching, randomness


@pytest.fixture(autouse=True)
def _nobody_listens(monkeypatch, tmp_path):
    monkeypatch.setenv("SPIKEWATCH_SOCKET", str(tmp_path / "nobody.sock"))
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "SPIKEWATCH_DISABLE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _no_thread_left(monkeypatch):
    """Ends the client's thread of every run a test has attached; holds no run, and so no loader, alive."""
    agents = []

    def attach(*args, **more):
        run = attaching.attach(*args, **more)
        if run.active:
            agents.append(run._parts.agent)
        return run

    monkeypatch.setattr(spikewatch, "attach", attach)
    yield
    for agent in agents:
        agent.stop()


@pytest.fixture(autouse=True)
def _random_states_put_back():
    """A loader draws from the process's random state when it is gone through; other tests are not to notice."""
    before = randomness.capture()
    yield
    randomness.restore(before)


@pytest.fixture
def order():
    """Gives an attached run an order, as the sidecar's would reach it, and returns its id."""
    numbers = iter(range(10_000))

    def give(run, lease_ms=600_000, **values):
        change_id = f"change-{next(numbers)}"
        run._parts.ledger.set(change_id, values, {}, lease_ms)
        return change_id

    return give


@pytest.fixture
def no_children_left():
    """Waits for every worker process to end; fails naming those that do not."""

    def check(seconds=10.0):
        if multiprocessing.active_children():
            gc.collect()
        until = time.monotonic() + seconds
        while multiprocessing.active_children() and time.monotonic() < until:
            time.sleep(0.01)
        assert multiprocessing.active_children() == []

    yield check
    check()


@pytest.fixture
def indices():
    """A map-style dataset of `size` items: item i is i, so that order and exactly-once can be read off."""

    def make(size, fail_at=None, seconds=0.0):
        return Indices(size, fail_at, seconds)

    return make


class Indices:
    def __init__(self, size, fail_at, seconds):
        self.size, self.fail_at, self.seconds = size, fail_at, seconds

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        if i == self.fail_at:
            raise LookupError("this item is broken")
        if self.seconds:
            time.sleep(self.seconds)
        return i


@pytest.fixture
def random_state():
    """The process's random states in a form that compares."""

    def take():
        import numpy
        import torch

        state = numpy.random.get_state()
        return (torch.get_rng_state().tolist(), random.getstate(), state[1].tolist(), state[2:])

    return take


@pytest.fixture
def train(random_state):
    """Trains a small model with dropout for two epochs; returns weights, random states and the order of samples.

    `around(loader)` gives back (what to iterate, what to call after each step).
    """

    def run(make_loader, around=lambda loader: (loader, lambda loss: None), epochs=2):
        import numpy
        import torch

        torch.manual_seed(1)
        random.seed(2)
        numpy.random.seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        loader = make_loader()
        iterated, after = around(loader)
        seen = []
        for _ in range(epochs):
            for batch in iterated:
                seen.append(batch.tolist())
                loss = model(batch.float()[:, None] / 10_000).pow(2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                after(loss)
            random.random()  # the script itself draws, too
            torch.rand(1)
        generator = loader.generator
        return SimpleNamespace(
            weights=[p.detach().numpy().tobytes() for p in model.parameters()],
            random=random_state(),
            own=None if generator is None else generator.get_state().tolist(),
            order=seen,
        )

    return run
