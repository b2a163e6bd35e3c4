"""What the adapters' tests share: no sidecar unless a test makes one, orders as the sidecar's, no thread left."""

import multiprocessing
import os
import random
import sys
import threading
import time
from pathlib import Path

import pytest

from spikewatch.agent import THREAD_NAME

sys.path.insert(0, str(Path(__file__).parent))

_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")


@pytest.fixture(autouse=True)
def _nobody_listens(monkeypatch, tmp_path):
    monkeypatch.setenv("SPIKEWATCH_SOCKET", str(tmp_path / "nobody.sock"))
    for name in (*_LAUNCHERS, "SPIKEWATCH_DISABLE", "SPIKEWATCH_AUTOATTACH"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _as_it_was():
    """Puts random states and environment back, which frameworks write to; fails when a thread or a worker is left."""
    import numpy
    import torch

    states = torch.get_rng_state(), random.getstate(), numpy.random.get_state()
    before, environ = set(threading.enumerate()), dict(os.environ)
    yield
    for name in set(os.environ) - set(environ):
        del os.environ[name]
    os.environ.update(environ)
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    numpy.random.set_state(states[2])
    until = time.monotonic() + 10
    while time.monotonic() < until:
        left = [t for t in threading.enumerate() if t.name.startswith(THREAD_NAME) and t not in before]
        if not left and not multiprocessing.active_children():
            return
        time.sleep(0.01)
    raise AssertionError(f"left behind: {left} {multiprocessing.active_children()}")


@pytest.fixture
def order():
    """Gives an attached run an order, as the sidecar's would reach it, and returns its id."""
    numbers = iter(range(10_000))

    def give(run, **values):
        change_id = f"change-{next(numbers)}"
        run._parts.ledger.set(change_id, values, {}, 600_000)
        return change_id

    return give


@pytest.fixture
def clean_environment():
    """The environment for a training script of its own: nothing of this test run's launcher or of spikewatch."""
    return {k: v for k, v in os.environ.items() if k not in _LAUNCHERS and not k.startswith("SPIKEWATCH")}
