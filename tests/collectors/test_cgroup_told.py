"""A trainer whose control group cannot be seen tells of it: its client reads the same as the sidecar would there."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import spikewatch
import spikewatch.groups
from sidecar.collectors.machine import control, told
from sidecar.collectors.machine.collector import CgroupCollector, CgroupSettings
from sidecar.collectors.machine.told import ToldGroup
from sidecar.model import Availability
from spikewatch.groups import Groups, GroupTeller

MIB = 1 << 20
ROOT = Path(spikewatch.groups.__file__).parents[1]

V2 = {
    "cpu.max": "150000 100000\n",
    "cpu.stat": "usage_usec 2500000\nnr_periods 40\nnr_throttled 10\nthrottled_usec 750000\n",
    "cpu.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\n"
    "full avg10=0.00 avg60=0.00 avg300=0.00 total=500000\n",
    "memory.current": f"{90 * MIB}\n",
    "memory.max": f"{100 * MIB}\n",
    "memory.stat": f"anon 1\nfile {30 * MIB}\n",
    "memory.events": "low 0\nhigh 7\noom 2\noom_kill 2\n",
}
V1_CPU = {
    "cpu.cfs_quota_us": "200000\n",
    "cpu.cfs_period_us": "100000\n",
    "cpu.stat": "nr_periods 41\nnr_throttled 11\nthrottled_time 850000000\n",
    "cpuacct.usage": "2600000000\n",
}
V1_MEMORY = {
    "memory.usage_in_bytes": f"{91 * MIB}\n",
    "memory.limit_in_bytes": "9223372036854771712\n",
    "memory.stat": f"cache 1\ntotal_cache {31 * MIB}\n",
    "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
}
WIDER = {"cpu.max": "max 100000\n", "memory.events": "oom_kill 5\n"}

# folder → files, /proc/self/cgroup; mounts follow from the folders
LAYOUTS = {
    "version 2, a namespace of its own": ({"": V2}, "0::/\n"),
    "version 2, below other groups": ({"": WIDER, "pods": {"cpu.max": "50000 100000\n"}, "pods/a": V2}, "0::/pods/a\n"),
    "version 2, a path from outside the namespace": ({"": V2}, "0::/../other\n"),
    "version 1": ({"cpu,cpuacct": V1_CPU, "memory": V1_MEMORY}, "4:memory:/\n3:cpu,cpuacct:/\n"),
    "version 1, below other groups": (
        {"cpu,cpuacct/a": V1_CPU, "memory/a": V1_MEMORY, "memory": {"memory.oom_control": "oom_kill 9\n"}},
        "4:memory:/a\n3:cpu,cpuacct:/a\n",
    ),
    "both, with the controllers in version 1": (
        {"unified": {"cpu.stat": "usage_usec 99000000\n", "cpu.pressure": V2["cpu.pressure"]}}
        | {"cpu,cpuacct": V1_CPU, "memory": V1_MEMORY},
        "4:memory:/\n3:cpu,cpuacct:/\n0::/\n",
    ),
    "no controllers": ({"": {}}, "0::/\n"),
}


def container(root, folders, membership):
    """The files a container shows: (cgroup root, proc root)."""
    cgroup, proc = root / "sys fs" / "cgroup", root / "proc"  # a space: mountinfo escapes it
    mounts = ["22 1 0:20 / / rw - ext4 /dev/sda rw"]
    for folder, files in folders.items():
        (cgroup / folder).mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (cgroup / folder / name).write_text(content)
    for top in sorted({folder.split("/")[0] for folder in folders if folder.split("/")[0] != "pods"}):
        where = str(cgroup / top).replace(" ", "\\040")
        kind = "cgroup2 none rw" if top in ("", "unified") else f"cgroup none rw,{top}"
        mounts.append(f"30 22 0:26 / {where.rstrip('/')} rw,nosuid shared:9 - {kind}")
    (proc / "self").mkdir(parents=True, exist_ok=True)
    (proc / "self" / "cgroup").write_text(membership)
    (proc / "meminfo").write_text("MemTotal: 999 kB\nMemAvailable: 40960 kB\n" if "memory" in folders else "")
    (proc / "self" / "mountinfo").write_text("\n".join(mounts) + "\n")
    return cgroup, proc


class Meter:
    errors = 0


def teller(run_dir, proc, every=0.0):
    meter = Meter()
    return meter, GroupTeller(str(run_dir), meter, proc_root=str(proc), every=every)


@pytest.fixture
def run_dir(tmp_path):
    made = tmp_path / "run"
    made.mkdir(mode=0o700)
    return made


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_trainer_tells_what_the_sidecar_would_read_there(tmp_path, run_dir, layout):
    cgroup, proc = container(tmp_path, *LAYOUTS[layout])
    group = ToldGroup(run_dir, time.time)
    group.ask()
    meter, client = teller(run_dir, proc)
    client.look()
    assert meter.errors == 0
    assert group.look()
    assert group.reading() == control.read(cgroup, proc, "self")
    assert list(group.room("trainer")) == list(control.room("trainer", cgroup, proc, "self"))


@pytest.mark.skipif(not os.path.exists("/proc/self/cgroup"), reason="no control groups here")
def test_on_this_machine_both_read_the_same_of_the_same_process():
    told_of = spikewatch.groups.read(Groups())
    seen = control.read(Path("/sys/fs/cgroup"), Path("/proc"), "self")
    for name in ("memory_limit", "memory_high", "oom_kills", "throttled_periods"):
        assert told_of.get(name) == getattr(seen, name), name
    for name in ("cpu_seconds", "memory_used"):  # these move while they are read
        assert (name in told_of) == (getattr(seen, name) is not None), name
    assert told_of["shm_size"] >= told_of["shm_used"]


TRAINER = """
import sys
sys.path.insert(0, sys.argv[1])
sys.stdin.readline()  # until it is in its group
throttled = 0
while not throttled:
    lines = open(sys.argv[2]).read().split()
    throttled = int(lines[lines.index("nr_throttled") + 1])
import spikewatch
run = spikewatch.attach()
print("attached", flush=True)
sys.stdin.read()
run.close()
"""


def test_a_real_trainer_in_a_group_of_its_own_tells_how_it_is_held_back(tmp_path, run_dir, small_group):
    (tmp_path / "proc").mkdir()  # a PID namespace in which there is nobody
    collector = CgroupCollector(CgroupSettings(proc_root=tmp_path / "proc", run_dir=run_dir))
    status = collector.probe()
    assert (status.state, status.reason) == (Availability.DEGRADED, "trainer_group_not_visible")
    environ = {**os.environ, "SPIKEWATCH_SOCKET": str(run_dir / "trainer.sock")}
    command = [sys.executable, "-I", "-S", "-c", TRAINER, str(ROOT), str(small_group / "cpu.stat")]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ)
    try:
        (small_group / "cgroup.procs").write_text(str(child.pid))
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == "attached\n"
        now = 0
        while not (found := values(collector, now)).get("cgroup_cpu_throttled_periods_total"):
            assert child.poll() is None  # the time limit of the test ends a wait in vain
            time.sleep(0.02)
            now += 10_000
        assert collector.probe().state is Availability.AVAILABLE
        assert found["cgroup_cpu_throttled_seconds_total"] > 0
        assert found["cgroup_cpu_quota_cores"] == 0.1
        assert found["shm_size_bytes"] > 0
        words = (small_group / "cpu.stat").read_text().split()
        assert 0 < found["cgroup_cpu_periods_total"] <= int(words[words.index("nr_periods") + 1])
    finally:
        child.communicate("", timeout=60)
    collector.close()
    assert not (run_dir / told.FOLDER).exists(), "the question is taken back"


def values(collector, now_ms=0):
    found = collector.sample(now_ms)
    return {s.metric.removeprefix("spikewatch_"): s.value for s in found if ("group", "trainer") in s.labels}


# --- the client -------------------------------------------------------------------------------------------------------


def test_nobody_asked_means_nothing_is_read_or_written(tmp_path, run_dir):
    meter, client = teller(run_dir, tmp_path / "no proc here")
    for _ in range(20):
        client.look()
    assert meter.errors == 0
    assert not list(run_dir.iterdir())


def test_what_cannot_be_read_is_counted_and_given_up(tmp_path, run_dir):
    ToldGroup(run_dir, time.time).ask()
    meter, client = teller(run_dir, tmp_path / "no proc here")
    for _ in range(20):
        client.look()
    assert meter.errors == spikewatch.groups.MOST_FAILURES


def test_it_reads_no_more_often_than_it_is_to(tmp_path, run_dir):
    _, proc = container(tmp_path, *LAYOUTS["version 1"])
    ToldGroup(run_dir, time.time).ask()
    now = [100.0]
    client = GroupTeller(str(run_dir), Meter(), proc_root=str(proc), clock=lambda: now[0])
    client.look()
    answer = run_dir / told.FOLDER / told.FILE
    answer.unlink()
    now[0] += spikewatch.groups.EVERY / 2
    client.look()
    assert not answer.exists()
    now[0] += spikewatch.groups.EVERY
    client.look()
    assert answer.exists()


@given(
    st.dictionaries(st.sampled_from(["self/cgroup", "self/mountinfo"]), st.text(max_size=80)),
    st.text(max_size=60),
)
def test_no_content_of_proc_makes_it_raise(tmp_path_factory, files, stat):
    root = tmp_path_factory.mktemp("any")
    cgroup, proc = container(root, {"": {}}, "0::/\n")
    (cgroup / "cpu.stat").write_bytes(stat.encode("utf-8", "surrogatepass"))
    for name, content in files.items():
        (proc / name).write_bytes(content.encode("utf-8", "surrogatepass"))
    json.dumps(spikewatch.groups.read(Groups(str(proc)), str(root)), allow_nan=False)


@pytest.mark.parametrize(("local_rank", "tells"), [("0", True), ("1", False)])
def test_one_rank_of_a_container_tells(run_dir, monkeypatch, local_rank, tells):
    monkeypatch.setenv("LOCAL_RANK", local_rank)
    ToldGroup(run_dir, time.time).ask()
    run = spikewatch.attach(socket=str(run_dir / "trainer.sock"))
    run._parts.agent.stop(20)  # after its last turn
    run.close()
    assert (run_dir / told.FOLDER / told.FILE).exists() == tells


# --- the sidecar ------------------------------------------------------------------------------------------------------


def test_both_ends_agree_on_the_file():
    assert (spikewatch.groups.FOLDER, spikewatch.groups.FILE) == (told.FOLDER, told.FILE)
    assert spikewatch.groups.EVERY < told.FRESH_S / 3


def answered(run_dir, content):
    folder = run_dir / told.FOLDER
    folder.mkdir(exist_ok=True)
    (folder / told.FILE).write_text(json.dumps(content))
    return folder / told.FILE


def test_a_trainer_that_no_longer_tells_has_no_series(tmp_path, run_dir):
    (tmp_path / "proc").mkdir()
    now = [time.time()]
    collector = CgroupCollector(CgroupSettings(proc_root=tmp_path / "proc", run_dir=run_dir), lambda: now[0])
    answered(run_dir, {"cpu_seconds": 3, "quota_cores": 2, "shm_size": 5, "pressure": {"cpu": {"some": 1.5}}})
    assert collector.probe().state is Availability.AVAILABLE
    found = values(collector)
    assert found["cgroup_cpu_seconds_total"] == 3
    assert (found["cgroup_cpu_quota_cores"], found["shm_size_bytes"]) == (2, 5)
    assert found["cgroup_pressure_seconds_total"] == 1.5
    now[0] += 2 * told.FRESH_S
    assert values(collector, 20_000) == {}
    assert collector.probe().reason == "trainer_group_not_visible"


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers(-(10**30), 10**400) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["cpu", "some", "x"]), inner),
    max_leaves=5,
)


@given(
    st.dictionaries(
        st.sampled_from([*told._COUNTS, *told._SECONDS, "quota_cores", "memory_available", "shm_size", "pressure"]),
        json_values,
    )
)
def test_whatever_stands_in_the_file_gives_numbers_or_nothing(tmp_path_factory, content):
    run_dir = tmp_path_factory.mktemp("run")
    answered(run_dir, content)
    group = ToldGroup(run_dir, time.time)
    group.look()
    samples = [*control.samples("t", group.reading()), *group.room("t"), *group.shm("t")]
    assert all(isinstance(s.value, int | float) and 0 <= s.value < 1e19 for s in samples)
