"""The example training script, run alone against the demo's object store."""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
import threading
import time

import pytest

from sidecar.cli.demo.launch import store_url, training_script
from sidecar.cli.demo.processes import Processes
from sidecar.cli.demo.traininglog import Accounting, TrainingLog

pytestmark = [pytest.mark.torch, pytest.mark.timeout(60)]

IMAGES = 64


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """The URL of a store of 64 images that answers at once."""
    with Processes(tmp_path_factory.mktemp("store")) as processes:
        command = [sys.executable, "-m", "sidecar.cli.demo.store", "--images", str(IMAGES), "--latency-ms", "0"]
        child = processes.start("store", command, {})
        deadline = time.monotonic() + 15
        while (url := store_url(child)) is None:
            child.check()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield url


def command(store, output, *arguments):
    return [str(training_script()), "--url", store, "--output", str(output), "--width", "8", *arguments]


def train(forked, store, output, *arguments, environment=None):
    """Runs the script to its end; its log."""
    process = forked.start(*command(store, output, *arguments), env={"SPIKEWATCH_DISABLE": "1", **(environment or {})})
    try:
        _, errors = process.communicate(timeout=50)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    log = TrainingLog(output)
    log.poll()
    return log


def test_it_uses_every_sample_once_in_the_sampler_s_order_and_trains_the_same_with_and_without_us(
    forked, store, tmp_path
):
    """Twenty steps, eight to the epoch: with workers and attached, though no sidecar answers; and with neither."""
    attached = {"SPIKEWATCH_DISABLE": "0", "SPIKEWATCH_SOCKET": str(tmp_path / "none.sock")}
    trained = []
    for workers, environment in (("2", attached), ("0", {})):
        output = tmp_path / workers
        log = train(forked, store, output, "--steps", "20", "--workers", workers, environment=environment)
        (rank,) = log.ranks.values()
        assert rank.ended
        assert [step.number for step in rank.steps] == list(range(1, 21))
        assert [sorted(rank.orders[epoch]) for epoch in (0, 1)] == [list(range(IMAGES))] * 2
        assert log.accounting() == Accounting(consumed=160)
        assert all(0 <= step.wait_s <= step.step_s for step in rank.steps)
        lines = (output / "rank0.jsonl").read_text().splitlines()
        trained.append([line[line.index('"samples"') :] for line in lines if '"event": "step"' in line])
    assert "loss" in trained[0][0]
    assert trained[0] == trained[1]


def test_told_to_end_it_finishes_the_step_and_closes_its_log(forked, store, tmp_path):
    """SIGTERM is how a pod is stopped."""
    process = forked.start(*command(store, tmp_path), env={"SPIKEWATCH_DISABLE": "1"})
    log = TrainingLog(tmp_path)
    deadline = time.monotonic() + 40
    try:
        while log.first_step() is None:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
            log.poll()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
    log.poll()
    assert log.ranks[0].ended
    assert log.accounting().lost == 0


def test_a_store_that_is_not_there_is_an_error_that_names_it(tmp_path):
    """Not a hang."""
    script = [sys.executable, "-W", "ignore", *command("http://127.0.0.1:9", tmp_path)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=50)
    assert done.returncode != 0
    assert "Connection refused" in done.stderr


def test_a_throttle_makes_decoding_take_its_time_for_all_workers_together(tmp_path):
    """What the scenario `cpu-bound` rests on: two at once, of 2000 pixels each at 10 000 a second, take 400 ms."""
    spec = importlib.util.spec_from_file_location("train_images", training_script())
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    throttle = script.Throttle(10_000, tmp_path / "turns")

    def decode():
        with throttle.turn(2000):
            pass

    began = time.perf_counter()
    threads = [threading.Thread(target=decode) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert time.perf_counter() - began >= 0.4
