"""Settings of collectors as the configuration gives them."""

from pathlib import Path

import pytest

from sidecar.app.collecting import check
from sidecar.collectors.cost.collector import CostCollector
from sidecar.collectors.gpuprobe.collector import GpuProbeCollector
from sidecar.collectors.nccl.collector import NcclCollector
from sidecar.plugins import COLLECTORS, Registry


@pytest.fixture
def checked(folder):
    def run(**collectors):
        registry = Registry()
        for cls in (CostCollector, NcclCollector, GpuProbeCollector):
            registry.register(COLLECTORS, cls)
        return check(folder.loaded(collectors=collectors), registry)

    return run


def test_paths_and_globs_of_collectors_are_relative_to_the_folder_of_the_configuration(folder, checked):
    found = checked(
        cost={"focus": ["bills/*.csv", "/abs/*.csv", "s3://bucket/*.csv"], "approvals": "approvals.yaml"},
        nccl={"logs": ["logs/nccl.*"]},
        gpu_probe={"window_file": "pause"},
    )
    assert found["cost"].focus == (f"{folder.path}/bills/*.csv", "/abs/*.csv", "s3://bucket/*.csv")
    assert found["cost"].approvals == folder.path / "approvals.yaml"
    assert found["nccl"].logs == (f"{folder.path}/logs/nccl.*",)
    assert found["gpu_probe"].window_file == folder.path / "pause"
    assert found["gpu_probe"].state == Path("/var/lib/spikewatch/probes")
