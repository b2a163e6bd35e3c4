"""What the control group allows, on trees as the kernel lays them out."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.collectors.cgroup import facts

MIB = 1 << 20
UNLIMITED_V1 = 9223372036854771712


@pytest.fixture
def machine(tmp_path):
    """Writes files below a folder and returns the facts there."""

    def write(files, membership="0::/\n", meminfo="MemAvailable:    8000000 kB\n"):
        files = {f"cgroup/{name}": text for name, text in files.items()}
        files |= {"proc/self/cgroup": membership, "proc/meminfo": meminfo, "cgroup/here": ""}
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return facts(tmp_path / "cgroup", tmp_path / "proc")

    return write


def test_a_v2_quota_is_given_in_cores(machine):
    assert machine({"cpu.max": "150000 100000\n"})["cpu_quota"] == 1.5


def test_no_quota_is_an_absent_fact(machine):
    assert "cpu_quota" not in machine({"cpu.max": "max 100000\n"})


def test_the_tightest_enclosing_group_counts(machine):
    found = machine(
        {
            "pod/cpu.max": "100000 100000",
            "pod/trainer/cpu.max": "400000 100000",
            "pod/memory.max": str(100 * MIB),
            "pod/memory.current": str(90 * MIB),
            "pod/trainer/memory.max": str(80 * MIB),
            "pod/trainer/memory.current": str(10 * MIB),
        },
        membership="0::/pod/trainer\n",
    )
    assert found == {"cpu_quota": 1.0, "memory_available_bytes": 10 * MIB}


def test_page_cache_that_can_be_dropped_is_available(machine):
    found = machine(
        {
            "memory.max": str(100 * MIB),
            "memory.current": str(95 * MIB),
            "memory.stat": f"anon {20 * MIB}\nfile {75 * MIB}\ninactive_file {70 * MIB}\n",
        }
    )
    assert found["memory_available_bytes"] == 75 * MIB


def test_without_a_limit_the_machine_sets_it(machine):
    found = machine({"memory.max": "max\n", "memory.current": "12345\n"})
    assert found["memory_available_bytes"] == 8_000_000 * 1024


def test_usage_over_the_limit_leaves_nothing_rather_than_less(machine):
    assert machine({"memory.max": "100\n", "memory.current": "150\n"})["memory_available_bytes"] == 0


@pytest.mark.parametrize("folder", ["cpu", "cpu,cpuacct", "cpuacct,cpu"])
def test_a_v1_quota_is_found_under_every_spelling_of_its_mount(machine, folder):
    files = {f"{folder}/cpu.cfs_quota_us": "250000\n", f"{folder}/cpu.cfs_period_us": "100000\n"}
    assert machine(files, membership="3:cpu,cpuacct:/\n")["cpu_quota"] == 2.5


def test_v1_without_limits_says_nothing_of_its_own(machine):
    files = {
        "cpu/cpu.cfs_quota_us": "-1\n",
        "cpu/cpu.cfs_period_us": "100000\n",
        "memory/memory.limit_in_bytes": f"{UNLIMITED_V1}\n",
        "memory/memory.usage_in_bytes": "5000\n",
    }
    assert machine(files, membership="3:cpu:/\n4:memory:/\n", meminfo="") == {}


def test_v1_memory_counts_dropped_cache_of_the_whole_subtree(machine):
    files = {
        "memory/memory.limit_in_bytes": f"{100 * MIB}\n",
        "memory/memory.usage_in_bytes": f"{60 * MIB}\n",
        "memory/memory.stat": f"inactive_file 0\ntotal_inactive_file {10 * MIB}\n",
    }
    assert machine(files, membership="4:memory:/\n")["memory_available_bytes"] == 50 * MIB


@pytest.mark.parametrize("path", ["/kubepods/pod1/abc", "/../../../etc", "/../other"])
def test_a_group_the_mount_does_not_show_falls_back_to_the_mount(machine, path):
    assert machine({"cpu.max": "200000 100000"}, membership=f"0::{path}\n")["cpu_quota"] == 2.0


def test_a_machine_without_control_groups_has_no_facts(tmp_path):
    assert facts(tmp_path / "none", tmp_path / "nothing") == {}


def test_this_machine_has_memory_left():
    assert facts()["memory_available_bytes"] > 10 * MIB
    assert facts().get("cpu_quota", 1) > 0


@given(st.text(max_size=40), st.text(max_size=40), st.text(max_size=40))
def test_no_content_of_the_files_makes_it_raise(tmp_path_factory, quota, limit, membership):
    root = tmp_path_factory.mktemp("any")
    (root / "proc/self").mkdir(parents=True)
    for name, text in {
        "cpu.max": quota,
        "memory.max": limit,
        "memory.current": quota,
        "memory.stat": f"inactive_file {limit}",
        "proc/meminfo": f"MemAvailable: {quota}",
        "proc/self/cgroup": membership,
    }.items():
        Path(root / name).write_bytes(text.encode("utf-8", "surrogatepass"))
    facts(root, root / "proc")
