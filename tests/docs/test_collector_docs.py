"""The pages about collectors and GPUs keep up with the program, and their example is one."""

import re
from pathlib import Path

from sidecar.collectors.gpu import dcgm
from sidecar.collectors.nvml import faults
from sidecar.collectors.nvml.collector import NvmlCollector, NvmlSettings
from sidecar.hooks import CollectorSettings
from sidecar.model import Availability
from sidecar.plugins import COLLECTORS, Registry

DOCS = Path(__file__).parents[2] / "docs"
GPU, COLLECTORS_PAGE = (DOCS / "gpu.md").read_text(), (DOCS / "collectors.md").read_text()


def rows(page, heading):
    table = page.partition(heading)[2].partition("\n## ")[0]
    names = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", table, re.M)
    return {name for row in names for name in re.findall(r"`(\w+)`", row)}


def test_every_setting_of_a_collector_has_a_row():
    assert rows(COLLECTORS_PAGE, "## Settings") == set(CollectorSettings.model_fields)
    assert rows(GPU, "## Settings") == set(NvmlSettings.model_fields) - set(CollectorSettings.model_fields)


def test_every_state_has_a_row():
    assert rows(COLLECTORS_PAGE, "## What this pod can see") == {state.value for state in Availability}


def test_the_metrics_that_the_page_names_exist():
    known = {info.name for info in NvmlCollector.metrics}
    assert set(re.findall(r"spikewatch_gpu_\w+", GPU)) <= known
    assert set(re.findall(r"DCGM_FI_\w+", GPU)) <= {info.name for info in dcgm.METRICS}


def test_the_reasons_that_the_page_names_exist():
    statuses = [faults.CGROUP_LOST, faults.ZERO_WHILE_BUSY, *map(faults.whole, (1, 9, 12, 15, 16, 18, 999, -1))]
    known = {status.reason for status in statuses} | {"driver_hung"}
    named = set(re.findall(r"`(gpu_[a-z_]+|driver_[a-z_]+|device_cgroup_lost|zero_while_busy)`", GPU))
    assert named
    assert named <= known


def test_the_example_is_a_collector_that_the_registry_takes_and_that_works(tmp_path):
    code = re.search(r"```python\n(.+?)```", COLLECTORS_PAGE, re.S).group(1)
    space = {}
    exec(compile(code, "example", "exec"), space)
    registry = Registry()
    registry.register(COLLECTORS, space["RoomCollector"])
    file = tmp_path / "temp1_input"
    room = space["RoomCollector"](space["RoomSettings"](file=file))
    assert room.probe().state is Availability.UNAVAILABLE
    file.write_text("21500\n")
    assert [s.value for s in room.sample(0)] == [21.5]
