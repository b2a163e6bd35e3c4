"""What a driver does to those who use it, each by a stand-in that does the same: nothing waits, other GPUs go on."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from nvmlbench import NvmlBench

from sidecar.collectors.nvml.collector import NvmlCollector, NvmlSettings
from sidecar.collectors.runner import Runner
from sidecar.errors import CollectError
from sidecar.hooks import CollectorSettings
from sidecar.model import Availability, Sample, Status

LOST, RESET = 15, 16
QUICK_HANG = {"hang": "300ms"}


@pytest.mark.parametrize(("code", "reason"), [(LOST, "gpu_lost"), (RESET, "gpu_reset_required")])
def test_a_gpu_that_falls_off_the_bus_is_down_with_the_reason_and_the_others_go_on(nvml, code, reason):
    b = nvml(3)
    b.until_seen("sm_active_ratio", "1")
    b.scenario.set({"gpu1.fail.any": code})
    b.until(lambda v: b.up() == {"0": 1, "1": 0, "2": 1})
    assert {which for name, which in b.values if name == "memory_used_bytes"} == {"0", "2"}
    assert b.capability("device", "1") == f"{reason} unavailable"
    assert b.values["xid_errors_total", "1 device 79"] == 0, "its counters stay: the Xid may be what tells"
    b.until_seen("sm_active_ratio", "2")
    status = b.collector.probe()
    assert (status.state, status.reason) == (Availability.DEGRADED, reason)
    assert "drain the node" in status.fix


def test_a_gpu_that_was_lost_is_read_again_once_it_answers(nvml):
    b = nvml(2)
    b.ask()
    b.scenario.set({"gpu0.fail.any": LOST})
    b.until(lambda v: b.up() == {"0": 0, "1": 1})
    b.scenario.clear("gpu0.fail.any")
    b.until(lambda v: b.up() == {"0": 1, "1": 1})
    b.until_seen("sm_active_ratio", "0")


def test_a_gpu_that_is_lost_before_the_sidecar_starts_has_its_place(nvml):
    b = nvml(2)
    b.scenario.set({"gpu1.fail.any": LOST})
    b.ask()
    assert b.up() == {"0": 1, "1": 0}


def test_where_every_gpu_is_lost_the_collector_says_so(nvml):
    b = nvml(2)
    b.ask()
    b.scenario.set({"fail.any": LOST, "fail.nvmlDeviceGetCount_v2": 0})
    b.until(lambda v: b.up() == {"0": 0, "1": 0})
    status = b.collector.probe()
    assert (status.state, status.reason) == (Availability.UNAVAILABLE, "gpu_lost")


@pytest.mark.parametrize("call", ["nvmlGpmSampleGet", "nvmlDeviceGetFieldValues"])
def test_a_call_that_never_returns_costs_one_sample_and_then_its_gpu_is_left_alone(nvml, call):
    b = nvml(3, **QUICK_HANG)
    b.ask()
    b.scenario.set({f"gpu1.hang.{call}": 1})
    assert b.until_failed() == "driver_hung"
    b.until_works()
    assert b.up() == {"0": 1, "1": 0, "2": 1}
    assert b.capability("device", "1") == "gpu_hung unavailable"
    uuids = {dict(s.labels)["gpu"] for s in b.collector.sample(0) if s.metric == "spikewatch_gpu_up"}
    assert "GPU-00000000-0000-0000-0000-000000000001" in uuids, "it keeps its identity"


def test_a_gpu_that_hung_is_tried_again_later_and_comes_back(nvml):
    b = nvml(2, **QUICK_HANG)
    b.ask()
    b.scenario.set({"gpu1.hang.nvmlDeviceGetUtilizationRates": 1})
    assert b.until_failed() == "driver_hung"
    b.until_works()
    assert b.up() == {"0": 1, "1": 0}
    b.scenario.clear("gpu1.hang.nvmlDeviceGetUtilizationRates")
    assert b.ask()["up", "1"] == 0, "not before its time"
    b.clock.now += 61
    b.until(lambda v: b.up() == {"0": 1, "1": 1})


def test_a_gpu_that_hangs_again_is_left_alone_for_longer(nvml):
    b = nvml(2, **QUICK_HANG)
    b.ask()
    b.scenario.set({"gpu1.hang.nvmlDeviceGetMemoryInfo_v2": 1})
    assert b.until_failed() == "driver_hung"
    b.until_works()
    b.clock.now += 61
    assert b.until_failed() == "driver_hung"
    b.until_works()
    b.clock.now += 61
    assert b.ask()["up", "1"] == 0
    assert b.ask()["up", "0"] == 1
    b.scenario.clear("gpu1.hang.nvmlDeviceGetMemoryInfo_v2")
    b.clock.now += 60
    b.until(lambda v: b.up() == {"0": 1, "1": 1})


def test_a_process_stuck_in_the_kernel_is_reported_not_joined_by_another_and_not_waited_for_at_the_end(nvml):
    b = nvml(2, **QUICK_HANG)
    b.ask()
    child = b.collector._child
    b.scenario.set({"gpu1.dstate.nvmlGpmSampleGet": 1})
    assert b.until_failed() == "driver_hung"
    assert child.state() == "D"
    for _ in range(3):
        b.clock.now += 120
        with pytest.raises(CollectError, match="nvmlGpmSampleGet on GPU 1 does not return and cannot be interrupted"):
            b.ask()
    assert b.collector._child is child
    b.collector.close()


def test_a_slow_driver_is_waited_for_and_is_no_hanging_one(nvml):
    b = nvml(2, hang="5s")
    b.scenario.set({"delay_us.nvmlDeviceGetMemoryInfo_v2": 200_000})
    for _ in range(3):
        assert b.ask()["memory_used_bytes", "1"] == 40e9


def test_an_answer_that_comes_after_all_is_taken_and_nothing_is_out_of_step(nvml):
    b = nvml(1, hang="100ms", fast="60s")
    b.ask()
    b.scenario.set({"delay_us.nvmlDeviceGetFieldValues": 1_000_000})
    child = b.collector._child
    child._send(b"r\n")
    child._asked = True
    assert child.ask(0.05) is None
    b.scenario.set({"delay_us.nvmlDeviceGetFieldValues": 0, "mem_used": 1e9})
    assert child.ask(20) is not None
    assert b.ask()["memory_used_bytes", "0"] == 1e9


@pytest.mark.parametrize("call", ["nvmlGpmSampleGet", "nvmlGpmMetricsGet", "nvmlGpmQueryDeviceSupport"])
def test_a_permission_withdrawn_in_mid_run_costs_activity_only_and_is_named(nvml, call):
    b = nvml(2)
    b.until_seen("sm_active_ratio", "1")
    if call == "nvmlGpmQueryDeviceSupport":
        b = nvml(2)
    b.scenario.set({f"fail.{call}": 4})
    b.until(lambda v: b.capability("gpm", "1") == "no_permission denied")
    b.until(lambda v: ("sm_active_ratio", "1") not in v)
    assert b.values["memory_used_bytes", "1"] == 40e9
    status = b.collector.probe()
    assert (status.state, status.reason) == (Availability.DEGRADED, "gpm_no_permission")
    assert "CAP_SYS_ADMIN" in status.fix


@pytest.mark.parametrize(
    ("code", "reason", "state"),
    [
        (9, "driver_not_loaded", Availability.UNAVAILABLE),
        (18, "driver_version_mismatch", Availability.UNAVAILABLE),
        (4, "driver_denied", Availability.DENIED),
        (999, "driver_unknown_error", Availability.UNAVAILABLE),
        (77, "driver_error_77", Availability.UNAVAILABLE),
    ],
)
def test_a_driver_that_does_not_start_is_named_and_tried_again_until_it_does(nvml, code, reason, state):
    b = nvml()
    b.scenario.set({"fail.nvmlInitWithFlags": code})
    status = b.collector.probe()
    assert (status.state, status.reason) == (state, reason)
    assert status.fix
    assert b.collector.probe() == status, "not again at once"
    b.scenario.set({"fail.nvmlInitWithFlags": 0})
    assert b.until_works()["up", "0"] == 1


@pytest.mark.parametrize("code", [1, 18, 999])
def test_a_driver_that_fails_as_a_whole_in_mid_run_is_begun_anew(nvml, code):
    b = nvml(2)
    b.ask()
    first = b.collector._child.pid
    b.scenario.set({"fail.any": code})
    assert b.until_failed().startswith("driver_")
    b.scenario.clear("fail.any")
    b.until_works()
    assert b.up() == {"0": 1, "1": 1}
    assert b.collector._child.pid != first


def test_an_unknown_error_of_one_gpu_is_no_reason_to_stop_reading_the_others(nvml):
    b = nvml(2)
    b.ask()
    pid = b.collector._child.pid
    b.scenario.set({"gpu0.fail.any": 999})
    b.until(lambda v: b.up() == {"0": 0, "1": 1})
    assert b.collector._child.pid == pid


@pytest.mark.parametrize("what", ["fail.nvmlDeviceGetEnforcedPowerLimit", "fielderr.186", "fail.nvmlGpmSampleGet"])
def test_an_unknown_error_of_one_call_costs_what_it_would_have_told_and_nothing_else(nvml, what):
    b = nvml(2)
    b.ask()
    b.scenario.set({f"gpu0.{what}": 999})
    gone = {"fielderr.186": "power_watts", "fail.nvmlGpmSampleGet": "sm_active_ratio"}.get(what, "power_limit_watts")
    b.until(lambda v: (gone, "1") in v and (gone, "0") not in v)
    assert b.up() == {"0": 1, "1": 1}
    assert b.values["memory_used_bytes", "0"] == 40e9


def test_devices_that_the_kernel_refuses_to_open_mean_a_withdrawn_device_cgroup(nvml, tmp_path):
    node = tmp_path / "nvidiactl"
    node.touch()
    if subprocess.run(["chattr", "+i", node], capture_output=True, check=False).returncode:
        pytest.skip("no right to make a file that cannot be opened even by root")
    try:
        b = nvml(dev_root=tmp_path)
        b.scenario.set({"fail.nvmlInitWithFlags": 999})
        status = b.collector.probe()
    finally:
        subprocess.run(["chattr", "-i", node], check=True)
    assert (status.state, status.reason) == (Availability.DENIED, "device_cgroup_lost")
    assert "restart the container" in status.fix


def test_on_request_the_sidecar_ends_after_so_many_failed_starts_for_only_a_new_container_heals_it(nvml):
    b = nvml(give_up_after=3)
    b.scenario.set({"fail.nvmlInitWithFlags": 999})
    seen = []
    for _ in range(5):
        b.collector.probe()
        seen.append(b.ended)
        b.clock.now += 100
    assert seen == [0, 0, 1, 1, 1]


def test_a_machine_without_a_gpu_starts_no_process(tmp_path):
    collector = NvmlCollector(NvmlSettings(dev_root=tmp_path))
    status = collector.probe()
    assert (status.state, status.reason) == (Availability.UNAVAILABLE, "no_device")
    assert collector._child is None
    with pytest.raises(CollectError):
        collector.sample(0)
    collector.close()


def test_a_library_that_is_not_there_is_named_with_ways_to_get_it(nvml, tmp_path):
    b = nvml()
    b.collector._settings = NvmlSettings(library_path=tmp_path / "libnvidia-ml.so.1")
    status = b.collector.probe()
    assert (status.state, status.reason) == (Availability.UNAVAILABLE, "no_library")
    assert "NVIDIA_DRIVER_CAPABILITIES=utility" in status.fix


def test_a_driver_that_shows_no_gpu_is_unavailable(nvml):
    b = nvml()
    b.scenario.set(count=0)
    status = b.collector.probe()
    assert (status.state, status.reason) == (Availability.UNAVAILABLE, "no_gpu")


def test_a_gpu_that_appears_later_is_found(nvml):
    b = nvml(1)
    b.ask()
    b.scenario.set(count=2)
    b.until(lambda v: b.up() == {"0": 1, "1": 1})
    b.scenario.set(count=1)
    b.until(lambda v: b.up() == {"0": 1})


def test_a_child_that_is_killed_is_replaced_and_its_counts_are_not_lost(nvml):
    b = nvml()
    b.scenario.set({"gpu0.xid": 0})
    b.ask()
    b.scenario.set({"gpu0.xid": 79})
    b.until(lambda v: v["xid_errors_total", "0 device 79"] == 1)
    calls = b.values["driver_calls_total", "nvmlDeviceGetMemoryInfo"]
    os.kill(b.collector._child.pid, signal.SIGKILL)
    assert b.until_failed() == "child_ended"
    b.until_works()
    assert b.values["xid_errors_total", "0 device 79"] == 1
    assert b.values["driver_calls_total", "nvmlDeviceGetMemoryInfo"] > calls


def test_where_its_parent_is_killed_the_child_goes_too_even_out_of_a_call_that_does_not_return(nvml, tmp_path):
    b = nvml()
    b.scenario.set({"hang.nvmlDeviceGetUtilizationRates": 1})
    code = (
        "import sys, time; from pathlib import Path; from sidecar.collectors.nvml.process import NvmlChild, Settings\n"
        "child = NvmlChild(Settings(sys.argv[1])); print(child.pid, flush=True); time.sleep(60)"
    )
    library = str(b.collector._settings.library_path)
    parent = subprocess.Popen([sys.executable, "-c", code, library], stdout=subprocess.PIPE, text=True)
    try:
        pid = int(parent.stdout.readline())
        board = Path(f"/proc/{pid}/stat")
        assert board.exists()
        time.sleep(0.3)
    finally:
        parent.kill()
        parent.wait(10)
        parent.stdout.close()
    end = time.monotonic() + 20
    while board.exists() and board.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < end, "the child stayed behind"
        time.sleep(0.02)


def test_closing_leaves_no_process_behind(nvml):
    b = nvml()
    b.ask()
    child = b.collector._child
    b.collector.close()
    assert child.state() in ("", "Z")
    assert child.reap()


def test_slowed_down_it_samples_activity_less_often(nvml):
    b = nvml(1, fast="150ms")
    b.until_seen("sm_active_ratio")
    b.collector.stretch(16)
    time.sleep(0.4)
    b.ask()
    calls = b.values["driver_calls_total", "nvmlGpmSampleGet"]
    time.sleep(0.8)
    b.ask()
    assert b.values["driver_calls_total", "nvmlGpmSampleGet"] - calls <= 1
    assert b.collector.cpu_seconds() > 0


class Other:
    """Another collector, which has nothing to do with GPUs."""

    name, settings, metrics = "other", CollectorSettings, ()

    def __init__(self):
        self.asked = threading.Semaphore(0)

    def probe(self):
        return Status(Availability.AVAILABLE)

    def sample(self, now_ms):
        self.asked.release()
        return [Sample("spikewatch_other", (), float(now_ms))]

    def close(self):
        pass


@pytest.mark.parametrize("how", ["hang", "dstate"])
def test_a_driver_that_hangs_delays_neither_a_tick_nor_another_collector(nvml, sink_of, how):
    from sidecar.clock import FakeClock

    b: NvmlBench = nvml(1)
    b.ask()
    b.scenario.set({f"{how}.nvmlDeviceGetMemoryInfo_v2": 1})
    sink, clock, other = sink_of(), FakeClock(10_000), Other()
    slow = NvmlSettings(deadline="1s", hang="20s", library_path=b.collector._settings.library_path)
    b.collector._settings = slow
    runner = Runner([(b.collector, slow), (other, CollectorSettings())], sink, clock)
    try:
        for _ in range(5):
            runner.tick(clock.now_ms())
            assert other.asked.acquire(timeout=20), "the other collector has its turn at every tick"
            clock.advance(1000)
        runner.tick(clock.now_ms())
        assert sink.last("spikewatch_collector_up", collector="nvml") == 0
        (status,) = [dict(lab) for lab in sink.now("spikewatch_collector_status") if ("collector", "nvml") in lab]
        assert status["reason"] == "deadline"
        assert sink.last("spikewatch_collector_up", collector="other") == 1
    finally:
        b.scenario.set({f"{how}.nvmlDeviceGetMemoryInfo_v2": 0})  # or the next child would hang as well
        os.kill(b.collector._child.pid, signal.SIGKILL)
        assert runner.close(20) == []
