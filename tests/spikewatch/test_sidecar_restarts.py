"""Fifty sidecars come and go while one real training goes on: nothing raised, nothing lost, nothing left behind."""

import gc
import os
import shutil
import signal
import socket
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

import spikewatch

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench import _live

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.torch, pytest.mark.timeout(1200)]

ENDS = ("killed", "asked to stop", "stopped, then killed", "replaced by garbage", "its folder removed")
PATIENCE = 120.0


class Rows:
    def __len__(self):
        return 4096

    def __getitem__(self, i):
        import torch

        return torch.full((8,), i / 4096)


def training(steps, attach=None, pace=0.0):
    """Trains until `steps(number)` says no; returns weights, random state, the number of steps and the run's errors."""
    import torch
    from torch.utils.data import DataLoader

    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    loader = DataLoader(Rows(), batch_size=16, shuffle=True, num_workers=1, persistent_workers=True)
    run = attach(model=model, optimizer=optimizer, loader=loader) if attach else None
    number, seen = 0, []
    while steps(number, run):
        epoch = 0.0
        for batch in loader:
            loss = model(batch).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            epoch += float(batch[:, 0].double().sum())
            number += 1
            if run is not None:
                run.step(loss)
                time.sleep(pace)
        seen.append(epoch)
    errors = run._parts.meter.errors if run is not None else 0
    if run is not None:
        run.close()
    weights = [p.detach().numpy().tobytes() for p in model.parameters()]
    return weights, torch.get_rng_state().tolist(), number, seen, errors


class Sidecars:
    """Starts a sidecar, waits until the trainer's steps are on its page, ends it; as often as wanted."""

    def __init__(self, folder, restarts):
        self.folder, self.restarts = folder, restarts
        self.reconnected, self.held, self.error = [], [], None
        self.run = None
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._guarded)

    def _guarded(self):
        try:
            for n in range(self.restarts):
                self._one(ENDS[n % len(ENDS)])
        except Exception as error:  # noqa: BLE001  told by the test itself
            self.error = error
        finally:
            self.over.set()

    def _one(self, end):
        live = _live.launch(self.folder, {"responses": []})
        try:
            began = time.monotonic()
            self._wait(lambda: self.run is not None and self.run.connected)
            self.reconnected.append(time.monotonic() - began)
            self._wait(lambda: b"spikewatch_trainer_steps_total" in live.get("/metrics"))
            self.held.append((len(os.listdir("/proc/self/fd")), threading.active_count()))
            if end == "asked to stop":
                live.end()
            elif end == "stopped, then killed":
                os.kill(live.pid, signal.SIGSTOP)
                time.sleep(0.3)
        finally:
            live.kill()
        if end == "replaced by garbage":
            self._babble(live.socket)
        elif end == "its folder removed":
            shutil.rmtree(live.socket.parent, ignore_errors=True)

    @staticmethod
    def _babble(path):
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(path))
            listener.listen()
            listener.settimeout(PATIENCE)
            connection, _ = listener.accept()
            with connection:
                for noise in (b"\xff" * 900, b"{}", b'{"type":"welcome","protocol":99}'):
                    try:
                        connection.send(noise, socket.MSG_NOSIGNAL)
                    except OSError:
                        break
        path.unlink(missing_ok=True)

    @staticmethod
    def _wait(check):
        until = time.monotonic() + PATIENCE
        while not check():
            if time.monotonic() > until:
                raise TimeoutError("the trainer did not come back")
            time.sleep(0.01)


def story(restarts):
    """(what was found while sidecars came and went, the same number of steps without us)."""
    with tempfile.TemporaryDirectory(prefix="spikewatch-") as name:
        folder = Path(name)
        sidecars = Sidecars(folder, restarts)

        def steps(number, run):
            if sidecars.run is None:
                sidecars.run = run
                sidecars.thread.start()
            return not sidecars.over.is_set()

        def attach(**parts):
            return spikewatch.attach(socket=str(folder / "run" / "trainer.sock"), **parts)

        try:
            watched = training(steps, attach, pace=0.002)
        finally:
            if sidecars.thread.ident is not None:
                sidecars.thread.join()
        sidecars.run = None
    if sidecars.error is not None:
        raise sidecars.error
    plain = training(lambda number, run: number < watched[2])
    gc.collect()
    return sidecars, watched, plain


def check(sidecars, watched, plain):
    """The whole of it, as assertions."""
    weights, random, steps, epochs, errors = watched
    assert (weights, random, steps, epochs) == plain[:4]
    assert errors == 0
    assert len(sidecars.reconnected) == sidecars.restarts
    each = sum(range(4096)) / 4096
    assert all(epoch == pytest.approx(each, rel=1e-6) for epoch in epochs)
    first, last = sidecars.held[0], sidecars.held[-1]
    assert last[0] <= first[0] + 1
    assert last[1] <= first[1]


@pytest.mark.proof
def test_fifty_sidecars_come_and_go_and_the_training_is_bit_by_bit_the_same(record_proof):
    sidecars, watched, plain = story(50)
    check(sidecars, watched, plain)
    record_proof(
        "restarts",
        {
            "what": "a real training while 50 sidecars come and go; the same steps without the client afterwards",
            "restarts": sidecars.restarts,
            "ends": {end: sum(ENDS[n % len(ENDS)] == end for n in range(sidecars.restarts)) for end in ENDS},
            "steps": watched[2],
            "epochs": len(watched[3]),
            "exceptions": 0,
            "client_errors": watched[4],
            "weights_random_state_and_order_equal": watched[:4] == plain[:4],
            "reconnected_after_s": {
                "median": round(statistics.median(sidecars.reconnected), 3),
                "slowest": round(max(sidecars.reconnected), 3),
            },
            "descriptors_first_and_last": [sidecars.held[0][0], sidecars.held[-1][0]],
            "threads_first_and_last": [sidecars.held[0][1], sidecars.held[-1][1]],
        },
    )
