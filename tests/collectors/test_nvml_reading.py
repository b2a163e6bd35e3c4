"""What is read of a GPU through nvidia-ml-py: names, units, labels, older and newer drivers, MIG and sharing."""

import math
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.collectors.nvml import process
from sidecar.collectors.nvml.collector import NvmlCollector
from sidecar.model import Availability


def test_a_healthy_gpu_is_available_with_every_figure_in_base_units(nvml):
    b = nvml()
    b.until_seen("sm_active_ratio")
    v = b.values
    assert b.status.state is Availability.AVAILABLE
    assert v["memory_total_bytes", "0"] == 80e9
    assert v["memory_used_bytes", "0"] == 40e9
    assert v["memory_reserved_bytes", "0"] == 500e6
    assert v["memory_used_ratio", "0"] == pytest.approx(40 / 79.5)
    assert v["busy_ratio", "0"] == 0.9
    assert v["sm_active_ratio", "0"] == pytest.approx(0.8)
    assert v["tensor_active_ratio", "0"] == pytest.approx(0.5)
    assert v["dram_active_ratio", "0"] == pytest.approx(0.6)
    assert v["nvlink_receive_bytes_per_second", "0"] == pytest.approx(4000 * 2**20)
    assert v["power_watts", "0"] == pytest.approx(600)
    assert v["power_limit_watts", "0"] == pytest.approx(700)
    assert v["clock_hertz", "0 sm"] == 1980e6
    assert v["temperature_celsius", "0 gpu"] == 40
    assert v["temperature_celsius", "0 memory"] == 55
    assert v["ecc_errors_total", "0 uncorrected"] == 0
    assert v["xid_errors_total", "0 device 79"] == 0
    assert v["processes", "0"] == 0


def test_counters_of_energy_and_bytes_grow_at_the_rate_of_the_device(nvml):
    b = nvml()
    b.scenario.set({"field.83": "ramp:0:500000", "field.138": "ramp:0:1024"})  # mJ, KiB
    first = dict(b.ask())
    b.until(lambda v: v["energy_joules_total", "0"] > first["energy_joules_total", "0"] + 100)
    joules = b.values["energy_joules_total", "0"] - first["energy_joules_total", "0"]
    sent = b.values["nvlink_transmit_bytes_total", "0"] - first["nvlink_transmit_bytes_total", "0"]
    assert sent / joules == pytest.approx(1024 * 1024 / 500, rel=0.05)


def test_everything_it_emits_is_in_its_catalogue_with_these_labels(nvml):
    b = nvml(2)
    b.scenario.set({"gpu1.migs": 2, "field.74": 5, "mem_used": 1e9})
    b.until_seen("dram_active_ratio")
    infos = {info.name: info for info in NvmlCollector.metrics}
    for sample in b.collector.sample(0):
        assert {name for name, _ in sample.labels} <= set(infos[sample.metric].labels), sample.metric
        assert math.isfinite(sample.value)
        assert not sample.metric.endswith("_ratio") or 0 <= sample.value <= 1


def test_clock_event_reasons_are_one_series_each(nvml):
    b = nvml()
    b.scenario.set(clocks_event_reasons=0x4 | 0x40)
    b.ask()
    on = {which for (name, which), value in b.values.items() if name == "clocks_event" and value}
    assert on == {"0 sw_power_cap", "0 hw_thermal"}
    assert sum(name == "clocks_event" for name, _ in b.values) == 9


def test_an_old_driver_gives_memory_by_the_old_call_and_no_reserved_part(nvml):
    b = nvml(without=("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetCurrentClocksEventReasons"))
    b.ask()
    assert b.values["memory_used_bytes", "0"] == 40.5e9
    assert ("memory_reserved_bytes", "0") not in b.values
    assert ("clocks_event", "0 idle") in b.values
    assert b.status.state is Availability.AVAILABLE


def test_a_driver_without_gpm_leaves_activity_out_and_says_what_would_help(nvml):
    b = nvml(without=("nvmlGpmQueryDeviceSupport",))
    b.until(lambda v: b.capability("gpm"))
    b.collector.probe()
    assert not [name for name, _ in b.values if name.startswith(("sm_", "dram_", "tensor_"))]
    assert b.values["busy_ratio", "0"] == 0.9
    assert b.capability("gpm") == "not_in_this_driver unavailable"
    status = b.collector.probe()
    assert (status.state, status.reason) == (Availability.DEGRADED, "gpm_not_in_this_driver")
    assert "525" in status.fix


def test_a_gpu_before_hopper_is_degraded_and_points_to_dcgm_exporter(nvml):
    b = nvml()
    b.scenario.set(gpm_supported=0)
    b.until(lambda v: b.capability("gpm"))
    status = b.collector.probe()
    assert (status.state, status.reason) == (Availability.DEGRADED, "gpm_not_supported")
    assert "dcgm-exporter" in status.fix


def test_a_value_the_gpu_does_not_have_is_missing_and_never_zero(nvml):
    b = nvml()
    b.scenario.set({"fielderr.186": 3, "fielderr.142": 3, "gpmerr.5": 3, "fail.nvmlDeviceGetEnforcedPowerLimit": 3})
    b.until_seen("sm_active_ratio")
    missing = [("power_watts", "0"), ("remapped_rows", "0 correctable"), ("tensor_active_ratio", "0")]
    assert not b.values.keys() & {*missing, ("power_limit_watts", "0")}
    assert b.values["remapped_rows", "0 uncorrectable"] == 0
    assert b.capability("power") == "not_supported unavailable"


def test_a_field_says_by_its_type_where_its_value_lies(nvml):
    b = nvml()
    b.scenario.set({"field.186": 250_500, "fieldtype.186": 1, "field.83": 1500.5, "fieldtype.83": 0})
    b.ask()
    assert b.values["power_watts", "0"] == pytest.approx(250.5)
    assert b.values["energy_joules_total", "0"] == pytest.approx(1.5005)


def test_nvlink_of_the_fifth_generation_is_read_from_its_own_counters(nvml):
    b = nvml()
    b.scenario.set({"fielderr.138": 3, "fielderr.139": 3, "field.202": 777, "field.204": 888})
    b.ask()
    assert b.values["nvlink_transmit_bytes_total", "0"] == 777
    assert b.values["nvlink_receive_bytes_total", "0"] == 888
    assert b.capability("nvlink") == ""


def test_an_xid_is_counted_by_number_and_kind_from_the_moment_it_happens(nvml):
    b = nvml(2)
    b.ask()
    b.scenario.set({"gpu1.xid": 79})
    b.until(lambda v: v["xid_errors_total", "1 device 79"] == 1)
    b.scenario.set({"gpu1.xid": 31})
    b.until(lambda v: v["xid_errors_total", "1 application 31"] == 1)
    b.scenario.set({"gpu1.xid": 999})  # one that nobody has heard of
    b.until(lambda v: v.get(("xid_errors_total", "1 device 999")) == 1)
    assert b.values["xid_errors_total", "1 device 79"] == 1
    assert b.values["xid_errors_total", "0 device 79"] == 0


def test_a_gpu_without_events_has_no_xid_series_and_says_so(nvml):
    b = nvml()
    b.scenario.set(event_types=0)
    b.ask()
    assert not [name for name, _ in b.values if name == "xid_errors_total"]
    assert b.capability("xid") == "not_supported unavailable"


def test_activity_is_the_mean_of_the_fast_samples_since_the_last_one(nvml):
    b = nvml()
    b.scenario.set({"gpm.2": "wave:50:50:0.6:0"})  # four samples a period
    b.until_seen("sm_active_ratio")
    import time

    time.sleep(1.3)  # two periods and more
    assert b.ask()["sm_active_ratio", "0"] == pytest.approx(0.5, abs=0.35)


def test_what_computes_on_a_divided_gpu_are_its_mig_devices_and_nothing_counts_twice(nvml):
    b = nvml()
    b.scenario.set({"migs": 2, "mig0.mem_used": 1e9, "gpu0.mig1.mem_used": 2e9, "gpu0.mig1.gpm.2": 20})
    b.until_seen("sm_active_ratio", "0.1")
    v = b.values
    assert {which for name, which in v if name == "memory_used_bytes"} == {"0.0", "0.1"}
    assert {which for name, which in v if name == "sm_active_ratio"} == {"0.0", "0.1"}
    assert v["memory_used_bytes", "0.1"] == 2e9
    assert v["sm_active_ratio", "0.1"] == pytest.approx(0.2)
    assert {which for name, which in v if name in ("power_watts", "xid_errors_total")} >= {"0"}
    assert not [which for name, which in v if name in ("busy_ratio", "power_watts") and which.startswith("0.")]
    uuids = {dict(s.labels)["gpu"][:4] for s in b.collector.sample(0) if s.metric.endswith("gpu_up")}
    assert uuids == {"GPU-", "MIG-"}
    assert any(name == "info" and " mig" in which for name, which in v)


def test_two_compute_instances_of_one_gpu_instance_share_its_memory_so_one_speaks_for_both(nvml):
    b = nvml()
    b.scenario.set({"migs": 2, "gpu0.mig0.gi": 5, "gpu0.mig1.gi": 5})
    b.until_seen("sm_active_ratio", "0.0")
    assert {which for name, which in b.values if name in ("memory_used_bytes", "sm_active_ratio")} == {"0.0"}
    assert b.up() == {"0": 1, "0.0": 1, "0.1": 1}


def test_mig_devices_that_come_and_go_are_followed(nvml):
    b = nvml()
    b.until_seen("sm_active_ratio")
    b.scenario.set(migs=3)
    b.until(lambda v: set(b.up()) == {"0", "0.0", "0.1", "0.2"}, "three instances")
    b.until_seen("sm_active_ratio", "0.2")
    assert ("sm_active_ratio", "0") not in b.values
    b.scenario.set({"migs": 1, "gpu0.mig0.uuid": 77})  # divided anew: another instance, with another UUID
    b.until(lambda v: set(b.up()) == {"0", "0.0"}, "one instance")
    assert any(dict(s.labels)["gpu"].startswith("MIG-00000000-0000-0000-0077") for s in b.collector.sample(0))
    b.scenario.set(migs=0)
    b.until(lambda v: set(b.up()) == {"0"}, "undivided")
    b.until_seen("sm_active_ratio")


@pytest.mark.parametrize(
    ("scenario", "told", "sharing"),
    [
        ({}, "auto", "none"),
        ({"procs": 1}, "auto", "none"),
        ({"procs": 3}, "auto", "processes"),
        ({"procs": 3, "mps_procs": 2}, "auto", "mps"),
        ({"procs": 1}, "processes", "processes"),
        ({"migs": 1}, "none", "mig"),
    ],
)
def test_how_a_gpu_is_shared_is_recognised_or_told(nvml, scenario, told, sharing):
    b = nvml(sharing=told)
    b.scenario.set(scenario)
    b.ask()
    labels = next(dict(s.labels) for s in b.collector.sample(0) if s.metric == "spikewatch_gpu_info")
    assert labels["sharing"] == sharing
    assert b.values.get(("processes", "0")) == scenario.get("procs", 0)


def test_activity_counters_that_stand_still_while_the_gpu_is_busy_are_not_taken_for_idleness(nvml):
    b = nvml()
    b.until_seen("sm_active_ratio")
    b.scenario.set({"util": 100, **{f"gpm.{n}": 0 for n in (2, 3, 5, 10)}})
    b.until(lambda v: b.capability("gpm") == "zero_while_busy degraded")
    assert ("sm_active_ratio", "0") not in b.values
    assert ("dram_active_ratio", "0") not in b.values
    b.scenario.set(util=20)
    b.until(lambda v: v.get(("sm_active_ratio", "0")) == 0, "idle at last")


def test_time_spent_in_the_driver_is_counted_by_call(nvml):
    b = nvml()
    b.scenario.set({"delay_us.nvmlDeviceGetMemoryInfo_v2": 20_000})
    b.ask()
    b.ask()
    calls = b.values["driver_calls_total", "nvmlDeviceGetMemoryInfo"]
    assert calls >= 2
    assert b.values["driver_call_seconds_total", "nvmlDeviceGetMemoryInfo"] >= 0.02 * calls


def test_compute_that_trails_memory_shows_as_a_lag_and_a_collective_as_busy_not_computing(nvml):
    b = nvml(2)
    b.scenario.set({f"gpu0.gpm.{n}": f"wave:50:40:6:{delay}" for n, delay in ((2, 0.6), (10, 0))})
    b.scenario.set({"gpu1.util": 100, "gpu1.gpm.2": 12, "gpu1.gpm.5": 0, "gpu1.gpm.10": 1})
    b.scenario.set({f"gpu1.gpm.{n}": 1 for n in (20, 21, 60, 61)})
    lag = b.until_seen("sm_dram_lag_seconds")
    assert lag == pytest.approx(0.6, abs=0.15)
    assert b.values["busy_not_computing_ratio", "1"] == 1
    assert b.values["busy_not_computing_ratio", "0"] == 0
    assert ("sm_dram_lag_seconds", "1") not in b.values


def test_the_process_that_talks_to_the_driver_loads_the_standard_library_and_pynvml_only(nvml):
    b = nvml()
    b.ask()
    maps = Path(f"/proc/{b.collector._child.pid}/maps").read_text()
    assert "libnvidia-ml" in maps
    assert "numpy" not in maps
    assert "pydantic" not in maps
    code = process._CODE.replace("sys.exit(main(sys.argv[1]))", "import pynvml; print(*sys.modules)")
    folder = str(process._ROOT)
    where = next(p for p in sys.path if p.endswith("site-packages"))
    command = [sys.executable, "-I", "-S", "-c", code, "", folder, where]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.split()
    ours = {name for name in loaded if name.partition(".")[0] == "sidecar"}
    assert ours == {
        *("sidecar", "sidecar.collectors", "sidecar.collectors.nvml"),
        *(f"sidecar.collectors.nvml.{m}" for m in ("child", "devices", "driver", "events", "gpm", "inventory", "wire")),
    }
    foreign = {name.partition(".")[0] for name in loaded} - {"sidecar", "pynvml", "__main__"} - sys.stdlib_module_names
    assert not foreign


def test_what_changes_seldom_is_told_when_it_changes_and_now_and_then_else_only_kept(nvml):
    b = nvml(slow="30s", rare="30s")
    b.ask()

    def told(now_ms):
        b.collector.probe()
        return {
            s.name: None if s.samples is None else {x.metric for x in s.samples} for s in b.collector.sections(now_ms)
        }

    first = told(0)
    assert "spikewatch_gpu_temperature_celsius" in first["state"]
    assert "spikewatch_gpu_busy_ratio" in first["activity"]
    assert not first["state"] & first["activity"]
    assert told(1_000)["state"] is None
    b.scenario.set(clocks_event_reasons=0x8)
    assert "spikewatch_gpu_clocks_event" in told(2_000)["state"]
    assert told(3_000)["state"] is None
    assert told(12_500)["state"] is None
    assert told(32_500)["state"] is not None
