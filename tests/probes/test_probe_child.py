"""A sweep on a GPU that is not there: the product's kernels built for the CPU, behind a driver that fails on demand."""

from __future__ import annotations

import json
import math
import time

import pytest

from probes.catalogue import catalogue
from probes.driver import CudaError, Driver, NoDriver
from probes.runner import sweep


@pytest.fixture(scope="module")
def whole(fake_gpu):
    """Everything, once."""
    return sweep(["all"], environ=fake_gpu(), deadline_s=100)


def readings(found):
    return {(r["metric"], tuple(sorted(r["labels"].items()))): r["value"] for o in found.outcomes for r in o.readings}


@pytest.mark.timeout(120)
def test_every_probe_runs_and_its_numbers_are_numbers(whole):
    assert whole.refused == ""
    assert [o.probe for o in whole.outcomes] == [p.name for p in catalogue()]
    assert {o.result for o in whole.outcomes} == {"ok"}
    found = readings(whole)
    assert all(math.isfinite(value) and value >= 0 for value in found.values())
    assert whole.gpu_seconds > 0


def test_every_reading_carries_the_device_it_is_from_and_the_fake_one_says_so(whole):
    assert whole.fake
    assert whole.device["uuid"].startswith("GPU-")


def test_the_families_of_numbers_are_complete(whole):
    found = readings(whole)
    assert {dict(labels)["stride_bytes"] for name, labels in found if name.endswith("stride_efficiency_ratio")} == {
        "4", "8", "16", "32", "64", "128", "256",
    }  # fmt: skip
    levels = {dict(labels)["level"] for name, labels in found if name.endswith("alignment_efficiency_ratio")}
    assert levels == {"memory", "l2"}
    assert {dict(labels)["memory"] for name, labels in found if name.endswith("h2d_bytes_per_second")} == {
        "pinned",
        "pageable",
    }
    assert found["spikewatch_gpu_probe_memory_stride_efficiency_ratio", (("stride_bytes", "4"),)] == 1


def test_no_share_of_a_peak_is_said_of_a_fake_device(whole):
    assert not [name for name, _ in readings(whole) if "peak_ratio" in name]


@pytest.mark.parametrize(
    ("faults", "result"),
    [
        ({"devices": 0}, "no_device"),
        ({"mode": 3}, "skipped_exclusive"),
        ({"mode": 2}, "skipped_exclusive"),
        ({"faults": "cuDevicePrimaryCtxRetain=46"}, "skipped_exclusive"),
        ({"faults": "cuDevicePrimaryCtxRetain=2"}, "oom"),
        ({"faults": "cuInit=803"}, "error"),
    ],
)
def test_a_gpu_that_cannot_be_used_is_said_so_and_nothing_is_measured(fake_gpu, faults, result):
    found = sweep(["light"], environ=fake_gpu(**faults), deadline_s=60)
    assert (found.refused, found.outcomes) == (result, ())
    assert found.reason


def test_without_a_driver_the_reason_names_the_library(fake_gpu):
    environ = fake_gpu() | {"SPIKEWATCH_CUDA_LIBRARY": "libcuda.so.404"}
    found = sweep(["light"], environ=environ, deadline_s=60)
    assert found.refused == "no_driver"
    assert "libcuda.so.404" in found.reason


def test_an_old_driver_is_told_apart_from_a_broken_one(fake_gpu):
    found = sweep(["launch", "streams"], environ=fake_gpu(driver=11080), deadline_s=60)
    assert [o.result for o in found.outcomes] == ["driver_too_old", "driver_too_old"]
    assert "UNSUPPORTED_PTX_VERSION" in found.outcomes[0].reason


def test_too_little_memory_costs_the_probe_that_wanted_it_and_no_other(fake_gpu):
    found = sweep(["memory", "launch"], environ=fake_gpu(faults="cuMemAlloc_v2=2@3"), deadline_s=60)
    assert [(o.probe, o.result) for o in found.outcomes] == [("memory", "oom"), ("launch", "ok")]
    assert found.outcomes[0].readings == (), "half of a probe's numbers are none"


def test_a_lost_context_ends_the_sweep(fake_gpu):
    found = sweep(["launch", "memory", "streams"], environ=fake_gpu(faults="cuEventSynchronize=719"), deadline_s=60)
    assert [(o.probe, o.result) for o in found.outcomes] == [("launch", "ok"), ("memory", "context_lost")]


def test_uncorrectable_memory_errors_are_named(fake_gpu):
    found = sweep(["launch"], environ=fake_gpu(faults="cuCtxSynchronize=214"), deadline_s=60)
    assert found.outcomes[0].result == "ecc_error"


@pytest.mark.timeout(60)
def test_a_hanging_driver_costs_the_child_its_life_and_the_caller_its_deadline(fake_gpu):
    began = time.monotonic()
    found = sweep(["launch", "memory"], environ=fake_gpu(hang="cuEventSynchronize"), deadline_s=5)
    assert found.refused == "timeout"
    assert "hangs" in found.reason
    assert [o.probe for o in found.outcomes] == ["launch"], "what was measured before stays"
    assert time.monotonic() - began < 30


def test_a_device_that_is_not_there_is_asked_for(fake_gpu):
    found = sweep(["launch"], index=3, environ=fake_gpu(), deadline_s=60)
    assert (found.refused, found.reason) == ("no_device", "there is no device 3")


def test_a_mig_slice_is_measured_as_what_it_is(fake_gpu):
    found = sweep(["tensor"], environ=fake_gpu(sms=1, memory=512 << 20), deadline_s=60)
    assert found.device["multiprocessors"] == 1
    assert found.outcomes[0].result == "ok"


def test_peers_that_cannot_be_reached_are_no_reading_and_no_error(fake_gpu):
    found = sweep(["p2p"], environ=fake_gpu(devices=2), deadline_s=60)
    assert [(o.result, o.readings) for o in found.outcomes] == [("ok", ())]


def test_a_peer_that_can_be_reached_is_read(fake_gpu):
    found = sweep(["p2p"], environ=fake_gpu(devices=2, peers=1), deadline_s=60)
    (reading,) = found.outcomes[0].readings
    assert reading["labels"]["path"] == "sm"
    assert reading["labels"]["peer"] != found.device["uuid"]


def test_a_child_that_dies_is_told_from_one_that_finds_nothing(fake_gpu, tmp_path):
    script = tmp_path / "python"
    script.write_text('#!/bin/sh\necho \'{"probe": "launch", "result": "ok"}\'\necho \'{"probe\'\nexit 139\n')
    script.chmod(0o755)
    found = sweep(["launch"], environ=fake_gpu(), python=str(script), deadline_s=60)
    assert (found.refused, found.reason) == ("died", "the child ended with 139")
    assert [o.probe for o in found.outcomes] == ["launch"]


def test_a_function_the_driver_lacks_is_an_error_when_it_is_called(fake_gpu):
    driver = Driver(fake_gpu()["SPIKEWATCH_CUDA_LIBRARY"])
    with pytest.raises(CudaError, match="cuStreamBeginCapture_v2: this driver does not have it"):
        driver("cuStreamBeginCapture_v2", None, 0)


def test_a_missing_library_is_an_error_of_its_own():
    with pytest.raises(NoDriver, match="no CUDA driver"):
        Driver("libcuda.so.404")


def test_the_catalogue_fits_its_budget():
    light = [p for p in catalogue() if p.light]
    assert sum(p.gpu_seconds for p in light) <= 2e-3, "a light sweep a minute is what is allowed by default"
    assert sum(p.gpu_seconds for p in catalogue()) <= 10e-3
    assert len({p.name for p in catalogue()}) == len(catalogue())
    assert json.dumps([p.title + p.accounting for p in catalogue()])
