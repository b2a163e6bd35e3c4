"""What a control group has used and been refused: in both layouts, and in a real group that is really throttled."""

import os
import subprocess
import sys
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.collectors.machine import control
from sidecar.collectors.machine.collector import CgroupCollector, CgroupSettings
from sidecar.model import Availability

MIB = 1 << 20

V2 = {
    "cgroup/cpu.max": "150000 100000\n",
    "cgroup/cpu.stat": "usage_usec 2500000\nuser_usec 1\nsystem_usec 1\nnr_periods 40\nnr_throttled 10\n"
    "throttled_usec 750000\nnr_bursts 0\nburst_usec 0\n",
    "cgroup/cpu.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\n"
    "full avg10=0.00 avg60=0.00 avg300=0.00 total=500000\n",
    "cgroup/memory.current": f"{90 * MIB}\n",
    "cgroup/memory.max": f"{100 * MIB}\n",
    "cgroup/memory.stat": f"anon 1\nfile {30 * MIB}\ninactive_file 5\n",
    "cgroup/memory.events": "low 0\nhigh 7\nmax 3\noom 2\noom_kill 2\n",
    "proc/self/cgroup": "0::/\n",
}
V1 = {
    "cgroup/cpu,cpuacct/cpu.cfs_quota_us": "200000\n",
    "cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
    "cgroup/cpu,cpuacct/cpu.stat": "nr_periods 40\nnr_throttled 10\nthrottled_time 750000000\n",
    "cgroup/cpu,cpuacct/cpuacct.usage": "2500000000\n",
    "cgroup/memory/memory.usage_in_bytes": f"{90 * MIB}\n",
    "cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "cgroup/memory/memory.stat": f"cache 1\ntotal_cache {30 * MIB}\n",
    "cgroup/memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
    "proc/self/cgroup": "4:memory:/\n3:cpu,cpuacct:/\n",
}


def write(root, files):
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def read(root, files):
    write(root, files)
    return control.read(root / "cgroup", root / "proc", "self")


def quota(root, pid="self", cgroup="cgroup", proc="proc"):
    found = control.room("trainer", root / cgroup, root / proc, pid)
    return [s.value for s in found if s.metric == "spikewatch_cgroup_cpu_quota_cores"]


def test_version_2_is_read(tmp_path):
    found = read(tmp_path, V2)
    assert (found.cpu_seconds, quota(tmp_path), found.periods) == (2.5, [1.5], 40)
    assert (found.throttled_periods, found.throttled_seconds) == (10, 0.75)
    assert (found.memory_used, found.memory_limit, found.memory_cache) == (90 * MIB, 100 * MIB, 30 * MIB)
    assert (found.memory_high, found.oom_kills) == (7, 2)
    assert found.pressure == {"cpu": {"some": 1.5, "full": 0.5}}


def test_version_1_is_read_and_no_limit_is_absent(tmp_path):
    found = read(tmp_path, V1)
    assert (found.cpu_seconds, quota(tmp_path), found.periods) == (2.5, [2.0], 40)
    assert (found.throttled_periods, found.throttled_seconds) == (10, 0.75)
    assert (found.memory_used, found.memory_limit, found.memory_cache) == (90 * MIB, None, 30 * MIB)
    assert (found.memory_high, found.oom_kills, found.pressure) == (None, 2, {})


def test_with_both_versions_each_controller_is_read_where_it_is(tmp_path):
    both = {name.replace("cgroup/", "cgroup/unified/", 1): text for name, text in V2.items() if "cpu." in name}
    both["cgroup/unified/cpu.stat"] = "usage_usec 99000000\n"  # of the whole machine: no controller is here
    found = read(tmp_path, {**both, **V1, "proc/self/cgroup": V1["proc/self/cgroup"] + "0::/\n"})
    assert (found.cpu_seconds, found.throttled_seconds) == (2.5, 0.75)
    assert found.pressure["cpu"]["some"] == 1.5


def test_a_group_without_controllers_has_no_series(tmp_path):
    assert list(control.samples("trainer", read(tmp_path, {"proc/self/cgroup": "0::/\n"}))) == []


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted({*V1, *V2})), st.text(max_size=30), max_size=8))
def test_no_content_of_the_files_makes_it_raise(tmp_path_factory, files):
    root = tmp_path_factory.mktemp("any")
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content.encode("utf-8", "surrogatepass"))
    list(control.samples("x", control.read(root / "cgroup", root / "proc", "self")))


def test_a_process_over_its_quota_is_seen_to_be_throttled(small_group):
    code = "import sys; sys.stdin.readline(); print('go', flush=True)\nwhile True: pass"
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        (small_group / "cgroup.procs").write_text(str(child.pid))
        child.stdin.write("\n")
        child.stdout.readline()
        root = Path("/sys/fs/cgroup")
        while not (found := control.read(root, Path("/proc"), child.pid)).throttled_seconds:
            assert child.poll() is None  # the time limit of the test ends a wait in vain
        assert found.throttled_periods > 0
        assert quota(Path("/"), child.pid, "sys/fs/cgroup") == [0.1]
        assert found.periods >= found.throttled_periods
    finally:
        child.kill()
        child.communicate()


# --- the collector ----------------------------------------------------------------------------------------------------


def trainer(root, pid=7, rss=1000):
    """A process with a file system of its own, as another container's is seen from here."""
    rest = ["S", "1", *["0"] * 15, "1", "0", "5", "0", str(rss)]
    write(root, {f"proc/{pid}/stat": f"{pid} (python) " + " ".join(rest), f"proc/{pid}/cgroup": "0::/../other\n"})
    inside = {name.replace("cgroup/", f"proc/{pid}/root/sys/fs/cgroup/", 1): text for name, text in V2.items()}
    write(root, {name: text for name, text in inside.items() if name.startswith("proc/7")})
    (root / f"proc/{pid}/root/dev/shm").mkdir(parents=True)


def sample(collector, now_ms=0):
    declared = {info.name: set(info.labels) for info in collector.metrics}
    found = {}
    for s in collector.sample(now_ms):
        assert {name for name, _ in s.labels} == declared[s.metric], s.metric
        found[(s.metric.removeprefix("spikewatch_"), *(v for _, v in s.labels))] = s.value
    return found


def made(root, **more):
    (root / "proc").mkdir(exist_ok=True)
    return CgroupCollector(CgroupSettings(proc_root=root / "proc", **more))


def test_the_trainers_group_is_read_through_its_own_file_system(tmp_path):
    trainer(tmp_path)
    collector = made(tmp_path)
    assert collector.probe().state is Availability.AVAILABLE
    found = sample(collector)
    assert found["cgroup_cpu_throttled_seconds_total", "trainer"] == 0.75
    assert found["cgroup_oom_kills_total", "trainer"] == 2
    assert found["cgroup_pressure_seconds_total", "trainer", "some", "cpu"] == 1.5
    assert found["shm_size_bytes", "trainer"] > 0


def test_a_trainer_that_is_not_visible_is_said_with_the_change_that_would_help(tmp_path):
    collector = made(tmp_path)
    status = collector.probe()
    assert (status.state, status.reason) == (Availability.DEGRADED, "trainer_group_not_visible")
    assert "shareProcessNamespace" in status.fix
    assert {key[1] for key in sample(collector)} <= {"sidecar"}


def test_without_any_control_group_it_is_unavailable(tmp_path):
    collector = made(tmp_path, cgroup_root=tmp_path / "none")
    assert collector.probe().state is Availability.UNAVAILABLE


def test_the_own_group_of_this_machine_is_read():
    collector = CgroupCollector(CgroupSettings())
    collector.probe()
    found = sample(collector)
    assert found["shm_size_bytes", "sidecar"] >= found["shm_used_bytes", "sidecar"]
    if os.path.exists("/sys/fs/cgroup/cpuacct/cpuacct.usage"):
        assert found["cgroup_cpu_seconds_total", "sidecar"] > 0


def test_each_metric_belongs_to_one_part_and_parts_together_are_the_sample(tmp_path):
    trainer(tmp_path)
    one = made(tmp_path)
    seen = {}
    for section in one.sections(0):
        for s in section.samples:
            assert seen.setdefault(s.metric, section.name) == section.name
    assert seen
    assert all(section.samples is None for section in one.sections(1)), "nothing was read again a millisecond later"
