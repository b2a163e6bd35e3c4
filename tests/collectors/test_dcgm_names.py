"""dcgm-exporter's names and units."""

from sidecar.collectors.gpu import dcgm
from sidecar.collectors.gpu.catalogue import PREFIX
from sidecar.collectors.nvml.collector import NvmlCollector

GPU = {"gpu": "GPU-a", "index": "3"}


def converted(*values):
    found = dcgm.renamed([(PREFIX + name, tuple(sorted(labels.items())), value) for name, labels, value in values])
    return {(s.metric.removeprefix("DCGM_FI_"), dict(s.labels)["UUID"]): s for s in found}


def test_ratios_become_percent_bytes_mebibytes_hertz_megahertz_and_joules_millijoules():
    found = converted(
        ("busy_ratio", GPU, 0.93),
        ("memory_used_bytes", GPU, 3 * 2**30),
        ("clock_hertz", {**GPU, "clock": "sm"}, 1.98e9),
        ("energy_joules_total", GPU, 12.5),
        ("dram_active_ratio", GPU, 0.4),
    )
    assert {name: s.value for (name, _), s in found.items()} == {
        "DEV_GPU_UTIL": 93,
        "DEV_FB_USED": 3072,
        "DEV_SM_CLOCK": 1980,
        "DEV_TOTAL_ENERGY_CONSUMPTION": 12_500,
        "PROF_DRAM_ACTIVE": 0.4,
    }


def test_the_labels_are_those_of_dcgm_exporter():
    found = converted(("busy_ratio", GPU, 1.0), ("info", {**GPU, "name": "NVIDIA H100", "sharing": "none"}, 1.0))
    assert dict(found["DEV_GPU_UTIL", "GPU-a"].labels) == {
        "gpu": "3",
        "UUID": "GPU-a",
        "device": "nvidia3",
        "modelName": "NVIDIA H100",
    }


def test_a_mig_device_has_its_gpus_number_and_its_own_instance():
    found = converted(("sm_active_ratio", {"gpu": "MIG-b", "index": "3.1"}, 0.5))
    labels = dict(found["PROF_SM_ACTIVE", "MIG-b"].labels)
    assert (labels["gpu"], labels["GPU_I_ID"], labels["device"]) == ("3", "1", "nvidia3")


def test_one_of_our_series_becomes_one_of_theirs_by_its_label():
    found = converted(
        ("temperature_celsius", {**GPU, "sensor": "gpu"}, 60.0),
        ("temperature_celsius", {**GPU, "sensor": "memory"}, 70.0),
    )
    assert found["DEV_GPU_TEMP", "GPU-a"].value == 60
    assert found["DEV_MEMORY_TEMP", "GPU-a"].value == 70


def test_every_name_is_made_of_a_metric_there_is():
    assert {info.name for info in NvmlCollector.metrics} >= dcgm.READS


def test_what_it_does_not_know_is_skipped():
    assert list(dcgm.renamed([("spikewatch_trainer_loss", (("rank", "0"),), 1.0)])) == []
