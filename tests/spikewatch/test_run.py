"""The handle in the training script: measures when it can, and is never in the way."""

import functools
import logging
import math
import os
import socket
import time

import pytest

import spikewatch
from spikewatch import layout
from spikewatch.run import MAX_ERRORS


@pytest.fixture
def attach():
    runs = []

    def make(**more):
        runs.append(spikewatch.attach(**more))
        return runs[-1]

    yield make
    for run in runs:
        run.close()


def fields(run):
    meter = run._parts.meter
    return dict(zip(layout.FIELDS, meter.record(meter.now()), strict=True))


def test_any_iterable_is_watched_through_run_loader(attach):
    run = attach(loader=[1, 2, 3])
    for item in run.loader:
        run.step(loss=item)
    now = fields(run)
    assert (now["steps_total"], now["loss"], now["epoch"]) == (3, 3.0, 0)
    assert len(run.loader) == 3


def test_something_that_is_its_own_iterator_is_watched_too(attach):
    run = attach(loader=iter([1, 2, 3]))
    assert next(run.loader) == 1
    assert list(run.loader) == [2, 3]
    assert fields(run)["data_wait_seconds_total"] > 0


def test_attributes_of_a_watched_loader_are_the_loaders(attach):
    class Loader(list):
        batch_size = 7

    assert attach(loader=Loader()).loader.batch_size == 7


def test_a_wait_in_the_loader_is_data_wait(attach):
    def slow():
        for n in range(3):
            time.sleep(0.05)
            yield n

    run = attach(loader=slow())
    for _ in run.loader:
        run.step()
    now = fields(run)
    assert now["data_wait_seconds_total"] >= 0.15
    assert now["step_seconds_total"] >= now["data_wait_seconds_total"]


def test_without_a_loader_only_steps_are_measured(attach):
    run = attach()
    assert run.loader is None
    run.step(0.5, grad_norm=2.0, samples=4)
    run.step(math.inf, samples=4)
    now = fields(run)
    assert (now["steps_total"], now["samples_total"], now["grad_norm"]) == (2, 8, 2.0)
    assert (now["loss"], now["nonfinite_losses_total"]) == (math.inf, 1)


def test_a_phase_can_be_entered_for_good_or_for_a_block(attach):
    run = attach()
    assert fields(run)["phase"] == layout.STARTUP
    run.phase("compile")
    assert fields(run)["phase"] == layout.COMPILE
    run.phase("train")
    with run.phase("eval"):
        assert fields(run)["phase"] == layout.EVAL
        with run.phase("checkpoint"):
            assert fields(run)["phase"] == layout.CHECKPOINT
        assert fields(run)["phase"] == layout.EVAL
    assert fields(run)["phase"] == layout.TRAIN


def test_a_phase_nobody_knows_is_counted_as_an_error_and_changes_nothing(attach):
    run = attach()
    with run.phase("lunch"):
        assert fields(run)["phase"] == layout.STARTUP
    assert fields(run)["errors_total"] == 1


@pytest.mark.parametrize("loss", ["text", object(), [1.0], {}])
def test_a_loss_that_is_no_number_is_missing_and_harmless(attach, loss):
    run = attach()
    run.step(loss)
    assert layout.is_missing(fields(run)["loss"])
    assert fields(run)["steps_total"] == 1


def test_our_own_errors_are_counted_and_after_some_the_client_turns_itself_off(attach, caplog):
    run = attach()
    parts = run._parts
    parts.ring.close()  # every record from here on fails
    with caplog.at_level(logging.WARNING, "spikewatch"):
        for _ in range(MAX_ERRORS + 5):
            run.step(1.0)
    assert not run.active
    assert parts.meter.errors >= MAX_ERRORS
    assert len(caplog.records) == 1
    assert "turns itself off" in caplog.text
    run.step(1.0)


def test_attaching_twice_in_a_process_is_allowed_and_warned_about(attach, caplog):
    attach()
    assert caplog.text == ""
    assert attach().active
    assert "attached twice" in caplog.text


def test_the_off_switch_makes_a_run_inert(attach, monkeypatch):
    monkeypatch.setenv("SPIKEWATCH_DISABLE", "1")
    data = [1, 2]
    run = attach(loader=data)
    assert run.loader is data
    assert not run.active
    assert not run.connected
    with run.phase("eval"):
        run.step(1.0)
    run.close()


def test_a_socket_path_that_cannot_be_leaves_the_run_inert_and_says_so(attach, caplog):
    run = attach(socket="/" + "x" * 107)
    assert not run.active
    assert "a socket's path holds 107 bytes" in caplog.text
    assert attach(socket="/" + "x" * 106).active


def test_attach_never_raises(attach, monkeypatch, caplog):
    def fails(*_):
        raise OSError("no memory")

    monkeypatch.setattr("spikewatch.attaching.RingWriter", fails)
    data = [1]
    assert attach(loader=data).loader is data
    assert "spikewatch stays off" in caplog.text


def test_a_closed_run_does_nothing_more_and_can_be_closed_again(attach):
    with attach(loader=[1]) as run:
        run.step()
    assert not run.active
    run.step()
    run.close()
    assert list(run.loader) == [1]


def test_a_forked_child_never_writes_into_the_ring(attach):
    run = attach()
    run.step(1.0)
    ring = run._parts.ring
    before = bytes(ring._map[layout.HEADER_SIZE :])
    pid = os.fork()
    if pid == 0:
        run.step(2.0)
        os._exit(1 if run.active else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert bytes(ring._map[layout.HEADER_SIZE :]) == before
    assert run.active


def test_a_forked_child_holds_neither_the_ring_nor_the_connection(attach, tmp_path):
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen(1)
        listener.settimeout(15)
        run = attach(socket=str(path))
        connection, _ = listener.accept()
        connection.recv(10)
        ours = (run._parts.ring.fd, run._parts.agent._socket.fileno())
        pid = os.fork()
        if pid == 0:
            os._exit(sum(os.path.lexists(f"/proc/self/fd/{fd}") for fd in ours))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        connection.close()
        assert code == 0


@pytest.mark.torch
def test_reading_the_loss_leaves_autograd_alone(attach):
    import torch

    run = attach()
    weight = torch.ones(3, requires_grad=True)
    loss = (weight * 2).sum()
    run.step(loss, grad_norm=torch.tensor(1.5))
    loss.backward()
    assert weight.grad.tolist() == [2.0, 2.0, 2.0]
    assert (fields(run)["loss"], fields(run)["grad_norm"]) == (6.0, 1.5)


@pytest.mark.torch
def test_what_a_loader_hands_over_is_counted(attach):
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(torch.zeros(22, 3), torch.zeros(22, dtype=torch.int64))
    run = attach(loader=DataLoader(data, batch_size=4, num_workers=1, prefetch_factor=3))
    for _ in range(2):
        for _ in run.loader:
            run.step()
    now = fields(run)
    assert now["samples_total"] == 44
    assert now["input_bytes_total"] == 44 * (3 * 4 + 8)
    assert now["prefetch_requests_total"] == 12
    assert 0 <= now["prefetch_hits_total"] <= 12
    assert (now["batch_size"], now["num_workers"], now["prefetch_factor"], now["epoch"]) == (4, 1, 3, 1)


@pytest.mark.torch
def test_without_workers_nothing_is_prefetched_so_nothing_is_hit_or_missed(attach, indices):
    from torch.utils.data import DataLoader

    run = attach(loader=DataLoader(indices(8), batch_size=4))
    for _ in run.loader:
        run.step()
    now = fields(run)
    for name in ("prefetch_requests_total", "prefetch_hits_total", "prefetch_factor"):
        assert layout.is_missing(now[name])


@pytest.mark.torch
@pytest.mark.parametrize("fast", [True, False])
def test_batches_that_lie_ready_are_hits_and_batches_waited_for_are_not(attach, indices, fast):
    from torch.utils.data import DataLoader

    run = attach(loader=DataLoader(indices(20, seconds=0.0 if fast else 0.03), batch_size=1, num_workers=1))
    for _ in run.loader:
        if fast:
            time.sleep(0.03)
        run.step()
    now = fields(run)
    hits, requests = now["prefetch_hits_total"], now["prefetch_requests_total"]
    assert requests == 20
    assert hits >= 10 if fast else hits <= 10


@pytest.mark.torch
def test_a_loader_that_cannot_be_changed_is_only_watched_and_says_why(attach, indices):
    from torch.utils.data import DataLoader

    class Own(DataLoader):
        def __iter__(self):
            return super().__iter__()

    replaced = DataLoader(indices(6))
    replaced._get_iterator = functools.partial(DataLoader._get_iterator, replaced)
    loaders = {"opens its iterators itself": Own(indices(6)), "another tool has replaced": replaced}
    for why, loader in loaders.items():
        untouched = dict(vars(loader))
        run = attach(loader=loader)
        unavailable = run._parts.agent._knobs.unavailable()
        assert {"num_workers", "prefetch_factor"} <= set(unavailable)
        assert why in unavailable["num_workers"]
        assert vars(loader) == untouched
        assert len(list(run.loader)) == len(list(loader))


@pytest.mark.torch
def test_two_steps_a_second_apart_show_their_time_once_each(attach):
    run = attach()
    run.step()
    time.sleep(0.05)
    run.step()
    assert 0.05 <= fields(run)["step_seconds_total"] < 5
