"""Settings of collectors as the configuration gives them."""

from pathlib import Path

import pytest

from sidecar.app.collecting import FACTS_KEPT_MS, Facts, check
from sidecar.app.memory import NewestValues
from sidecar.clock import FakeClock
from sidecar.collectors import cgroup
from sidecar.collectors.cost.collector import CostCollector
from sidecar.collectors.gpuprobe.collector import GpuProbeCollector
from sidecar.collectors.machine.collector import CgroupCollector
from sidecar.collectors.nccl.collector import NcclCollector
from sidecar.model import Sample
from sidecar.plugins import COLLECTORS, Registry
from sidecar.recording import Recorder
from sidecar.responses.trial import OOM_FACT
from sidecar.store import Store


@pytest.fixture
def checked(folder):
    def run(**collectors):
        registry = Registry()
        for cls in (CostCollector, NcclCollector, GpuProbeCollector, CgroupCollector):
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


def test_what_the_trainer_tells_is_looked_for_beside_the_sidecars_socket(folder, checked):
    assert checked()["cgroup"].run_dir == folder.path / "run"
    assert checked(cgroup={"run_dir": "elsewhere"})["cgroup"].run_dir == folder.path / "elsewhere"


class Pod:
    """What the collector `cgroup` found, and the facts made of it."""

    def __init__(self):
        self.clock, self.store = FakeClock(1_000_000), Store()
        self.facts = Facts(self.clock, NewestValues(self.store, self.clock).of)
        self._recorder = Recorder(self.store, "cgroup")

    def found(self, **groups):
        samples = [
            Sample(f"spikewatch_cgroup_{metric}", (("group", group),), value)
            for group, values in groups.items()
            for metric, value in values.items()
        ]
        self._recorder.record(samples, self.clock.advance(FACTS_KEPT_MS))
        return {name: value for name, value in self.facts().items() if name != OOM_FACT}


@pytest.fixture
def pod(monkeypatch):
    monkeypatch.setattr(cgroup, "facts", lambda: {"cpu_quota": 0.2, "memory_available_bytes": 1e8})
    return Pod()


def test_a_change_of_the_trainer_is_planned_with_what_its_own_container_may_use(pod):
    sidecar = {"cpu_quota_cores": 0.2, "memory_available_bytes": 1e8}
    trainer = {"cpu_quota_cores": 8.0, "memory_available_bytes": 5e10}
    assert pod.found(sidecar=sidecar, trainer=trainer) == {"cpu_quota": 8.0, "memory_available_bytes": 5e10}


def test_a_trainer_without_a_cpu_limit_has_none_whatever_ours_is(pod):
    assert pod.found(trainer={"memory_available_bytes": 5e10}) == {"memory_available_bytes": 5e10}


def test_where_nothing_is_known_of_the_trainers_container_ours_counts(pod):
    own = {"cpu_quota": 0.2, "memory_available_bytes": 1e8}
    assert pod.found() == own
    assert pod.found(trainer={"memory_available_bytes": 5e10}) != own
    assert pod.found() == own, "the trainer is gone"
