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
    assert set(re.findall(r"`(DCGM_FI_\w+)`", GPU)) <= {info.name for info in dcgm.METRICS}


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


PAGE = """\
DCGM_FI_PROF_SM_ACTIVE{gpu="0",UUID="GPU-ours",device="nvidia0",modelName="A100",Hostname="n1"} 0.25
DCGM_FI_PROF_SM_ACTIVE{gpu="1",UUID="GPU-theirs",device="nvidia1",modelName="A100",Hostname="n1"} 0.75
DCGM_FI_PROF_DRAM_ACTIVE{gpu="0",UUID="GPU-ours",device="nvidia0",modelName="A100",Hostname="n1"} 0.5
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-ours",device="nvidia0",modelName="A100",Hostname="n1"} 99
"""


def test_the_rules_for_dcgm_exporter_give_this_pods_gpus_their_activity():
    import yaml

    from sidecar import promql
    from sidecar.alerting.loader import load_rules
    from sidecar.model import Sample
    from sidecar.recording import Recorder
    from sidecar.store import Store
    from sidecar.yamlfile import Document

    blocks = re.findall(r"```yaml\n(.+?)```", GPU, re.S)
    (scrape,) = [yaml.safe_load(block) for block in blocks if "job_name" in block]
    keep = scrape["collectors"]["scrape"]["jobs"][0]["metric_relabel_configs"][0]["regex"]
    (text,) = [block for block in blocks if "record:" in block]
    rules = {rule.name: rule.expr for group in load_rules([Document("dcgm.yaml", text)]).groups for rule in group.rules}
    store, samples = Store(), [Sample("spikewatch_gpu_up", (("gpu", "GPU-ours"), ("index", "0")), 1.0)]
    for line in PAGE.splitlines():
        name, labels, value = re.fullmatch(r"(\w+){(.+)} (.+)", line).groups()
        if re.fullmatch(keep, name):
            samples.append(Sample(name, tuple(sorted(re.findall(r'(\w+)="(.*?)"', labels))), float(value)))
    Recorder(store, "p").record(samples, 10_000)
    found = {name: dict(promql.evaluate(store, expr, 10_500)) for name, expr in rules.items()}
    ours = (("gpu", "GPU-ours"), ("index", "0"))
    assert found["spikewatch_gpu_sm_active_ratio"] == {ours: 0.25}
    assert found["spikewatch_gpu_dram_active_ratio"] == {ours: 0.5}
    assert found["spikewatch_gpu_tensor_active_ratio"] == {}
    assert {name for name in rules} <= {info.name for info in NvmlCollector.metrics}
