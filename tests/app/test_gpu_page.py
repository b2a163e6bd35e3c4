"""A pod with GPUs as a whole: the page, dcgm-exporter's names, and a driver that hangs."""

import asyncio
import json
import os
import signal
import time

import pytest

from sidecar import app
from sidecar.clock import FakeClock


@pytest.fixture
def pod(tmp_path, monkeypatch, nvml_library):
    """A whole sidecar over a stand-in for the driver: (sidecar, scenario, what one tick and its samples give)."""
    import fakenvml

    library = nvml_library()
    scenario = fakenvml.Scenario(tmp_path / "scenario", 2)
    monkeypatch.setenv("FAKE_NVML", str(scenario.file))
    made = []

    def make(**settings):
        nvml = {"library_path": str(library), "fast": "150ms", "hang": "20s", "deadline": "2s"}
        config = {
            **{"state_dir": "state", "run_dir": "run", "rules": [], "responses": []},
            **{"collectors": {"nvml": nvml, "nccl": {"enabled": False}, "process": {}}, **settings},
        }
        (tmp_path / "spikewatch.yaml").write_text(json.dumps(config))
        made.append(app.build(tmp_path / "spikewatch.yaml", FakeClock(10_000), {}))
        return made[-1], scenario

    yield make
    for sidecar in made:
        asyncio.run(sidecar.stop())


def tick(sidecar, *, settle=True):
    sidecar.tick()
    assert not settle or sidecar.collectors.settle(25)
    sidecar.clock.advance(1000)


def lines(sidecar, start):
    page, _ = sidecar.exposition.page()
    return [line for line in page.decode().splitlines() if line.startswith(start)]


def test_gpus_are_on_the_page_with_type_unit_and_help(pod):
    sidecar, _ = pod()
    tick(sidecar)
    tick(sidecar)
    assert len(lines(sidecar, "spikewatch_gpu_memory_used_bytes{")) == 2
    assert lines(sidecar, "# TYPE spikewatch_gpu_energy_joules_total counter")
    assert not lines(sidecar, "DCGM_")


def test_on_request_they_are_there_under_dcgm_exporters_names_too(pod):
    sidecar, _ = pod(dcgm_names=True)
    tick(sidecar)
    tick(sidecar)
    (first, second) = lines(sidecar, "DCGM_FI_DEV_GPU_UTIL{")
    assert 'modelName="Fake H100 80GB HBM3"' in first
    assert first.endswith(" 90.0")
    assert 'gpu="1"' in second


def test_while_the_driver_hangs_ticks_and_pages_do_not_wait_and_the_page_says_what_is_wrong(pod):
    sidecar, scenario = pod()
    tick(sidecar)
    scenario.set({"hang.nvmlDeviceGetMemoryInfo_v2": 1})
    began = time.monotonic()
    for _ in range(8):
        tick(sidecar, settle=False)
        assert lines(sidecar, "spikewatch_build_info")
    assert time.monotonic() - began < 15, "the driver hangs for 20 s"
    assert lines(sidecar, 'spikewatch_collector_up{collector="nvml"} 0.0')
    assert any('reason="deadline"' in line for line in lines(sidecar, 'spikewatch_collector_status{collector="nvml"'))
    assert not lines(sidecar, "spikewatch_gpu_memory_used_bytes{"), "nothing is known now"
    (ticks,) = lines(sidecar, "spikewatch_ticks_total")
    assert ticks.endswith(" 9.0")
    scenario.clear("hang.nvmlDeviceGetMemoryInfo_v2")
    sidecar.collectors.close(0)
    (gpus,) = [desk for desk in sidecar.collectors._desks if desk.name == "nvml"]
    os.kill(gpus.worker._collector._child.pid, signal.SIGKILL)
    assert sidecar.collectors.settle(25)
