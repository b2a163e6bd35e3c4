"""What processes read, what of it is in memory, and from which device: on real files and real processes."""

import ctypes
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidecar.collectors.io import devices, nfs, pressure
from sidecar.collectors.io.files import DataFile, PageCache, choose, named, opened
from sidecar.collectors.io.syscalls import CACHESTAT, Kernel
from sidecar.collectors.io.targets import Names, targets
from sidecar.collectors.io.usage import Usage
from sidecar.collectors.procfs import read_process

PROC = Path("/proc")
MIB = 1 << 20


@pytest.fixture
def cold(tmp_path):
    """A file of 8 MiB on a disk, none of which is in memory; skips where that cannot be had."""
    file = tmp_path / "data.bin"
    with file.open("wb") as f:
        f.write(os.urandom(8 * MIB))
        os.fsync(f.fileno())
    if not devices.devices_of([_number(file)], Path("/sys")):
        pytest.skip(f"{tmp_path} is on no block device")
    _drop(file)
    return file


def _number(path):
    status = os.stat(path)
    return os.major(status.st_dev), os.minor(status.st_dev)


def _drop(path):
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


@pytest.fixture
def page_cache(tmp_path):
    """Skips where the kernel has no cachestat (before 6.5)."""
    made = PageCache()
    (tmp_path / "any").write_bytes(b"x")
    if made.residency(str(tmp_path / "any")) is None:
        pytest.skip(f"cachestat cannot be used here: {made.problem}")
    return made


@pytest.fixture
def reader():
    """A program that reads a file as it is told."""
    code = """
import mmap, os, sys
print("ready", flush=True)
for line in sys.stdin:
    how, path = line.split()
    fd = os.open(path, os.O_RDONLY)
    if how == "read":
        while os.read(fd, 1 << 20): pass
    elif how == "mmap":
        m = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
        sum(m[i] for i in range(0, len(m), 4096))
        m.close()
    if how != "open":
        os.close(fd)
    print("done", flush=True)
"""
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert child.stdout.readline() == "ready\n"

    def tell(line):
        child.stdin.write(line + "\n")
        assert child.stdout.readline() == "done\n"

    child.tell = tell
    yield child
    child.stdin.close()
    child.wait(30)
    child.stdout.close()


def values(samples, prefix="spikewatch_io_"):
    return {(s.metric.removeprefix(prefix), *(v for _, v in s.labels)): s.value for s in samples}


# --- page cache -------------------------------------------------------------------------------------------------------


def test_how_much_of_a_file_is_in_memory_is_told_without_touching_it(cold, page_cache):
    assert page_cache.residency(str(cold)).cached == 0
    assert page_cache.residency(str(cold)).cached == 0, "asking reads nothing"
    cold.read_bytes()
    assert page_cache.residency(str(cold)).cached == 8 * MIB // os.sysconf("SC_PAGE_SIZE")


def test_files_that_cannot_be_asked_about_count_as_unknown_and_not_as_absent_from_memory(cold, page_cache):
    cold.read_bytes()
    files = [DataFile(str(cold), 8 * MIB, (0, 0)), DataFile(f"{cold}.gone", 8 * MIB, (0, 0))]
    found = values(page_cache.samples(files))
    assert found["page_cache_unknown_files",] == 1
    assert (found["page_cache_sampled_bytes",], found["page_cache_resident_bytes",]) == (8 * MIB, 8 * MIB)
    assert ("page_cache_resident_bytes",) not in values(page_cache.samples(files[1:]))


def test_a_refusal_by_the_kernel_is_unknown(cold):
    class Refusing(Kernel):
        def __call__(self, number, *arguments):
            raise PermissionError(1, "Operation not permitted") if number == CACHESTAT else AssertionError

    cache = PageCache(Refusing())
    assert cache.residency(str(cold)) is None
    assert cache.problem == "Operation not permitted"


def test_a_system_call_that_fails_raises_the_kernels_reason():
    with pytest.raises(OSError, match="Bad file descriptor"):
        Kernel()(CACHESTAT, ctypes.c_uint(9999), None, None, ctypes.c_uint(0))


# --- files ------------------------------------------------------------------------------------------------------------


def test_files_that_a_program_has_open_for_reading_are_found(cold, reader, tmp_path):
    small = tmp_path / "small"
    small.write_bytes(b"x" * 100)
    reader.tell(f"open {cold}")
    reader.tell(f"open {cold}")
    reader.tell(f"open {small}")
    (found,) = opened(PROC, [read_process(PROC, reader.pid)])
    assert found.size == 8 * MIB
    assert os.path.samefile(found.path, cold)


def test_files_are_found_by_name(tmp_path):
    (tmp_path / "a/b").mkdir(parents=True)
    for name in ("a/1.bin", "a/b/2.bin", "a/3.txt"):
        (tmp_path / name).write_bytes(b"x" * 10)
    assert {Path(f.path).name for f in named([f"{tmp_path}/**/*.bin"])} == {"1.bin", "2.bin"}


def test_of_a_large_data_set_only_so_many_files_are_asked_for(tmp_path):
    for n in range(50):
        (tmp_path / f"{n}.bin").write_bytes(b"x")
    assert len(list(named([f"{tmp_path}/*.bin"], limit=20))) == 20


def test_of_many_files_every_part_has_a_chance():
    files = [DataFile(str(n), n, (0, 0)) for n in range(10_000)]
    chosen = choose(files, 100, seed=5)
    assert len({f.path for f in chosen}) == 100
    assert 3500 < sum(f.size for f in chosen) / 100 < 6500
    assert choose(files[:3], 100) == files[:3]


# --- processes --------------------------------------------------------------------------------------------------------


def used(usage, reader):
    return {k[0]: v for k, v in values(usage.samples([read_process(PROC, reader.pid)])).items()}


def test_reads_that_went_to_the_disk_are_told_from_those_that_did_not(cold, reader):
    usage = Usage()
    used(usage, reader)
    reader.tell(f"read {cold}")
    first = used(usage, reader)
    assert first["requested_read_bytes_total"] >= 8 * MIB
    assert first["storage_read_bytes_total"] >= 8 * MIB
    assert first["page_cache_hit_ratio"] < 0.05
    reader.tell(f"read {cold}")
    second = used(usage, reader)
    assert second["storage_read_bytes_total"] == first["storage_read_bytes_total"]
    assert second["page_cache_hit_ratio"] == 1
    assert "page_cache_hit_ratio" not in used(usage, reader), "nothing was read: there is no ratio"


def test_a_program_that_maps_its_files_has_no_hit_ratio(cold, reader):
    usage = Usage()
    used(usage, reader)
    reader.tell(f"mmap {cold}")
    found = used(usage, reader)
    assert found["storage_read_bytes_total"] >= 8 * MIB
    assert found["requested_read_bytes_total"] < MIB
    assert "page_cache_hit_ratio" not in found


def test_what_a_command_used_stays_when_its_process_ends(cold, reader):
    usage = Usage()
    used(usage, reader)
    reader.tell(f"read {cold}")
    before = used(usage, reader)
    after = {k[0]: v for k, v in values(usage.samples([])).items()}
    assert after["requested_read_bytes_total"] == before["requested_read_bytes_total"]
    assert "blocked_threads" not in after


def test_block_delay_is_absent_unless_the_kernel_counts_it(tmp_path):
    root = fake_process(tmp_path, delay_ticks=100)
    process = read_process(root, 7)
    usage = Usage(root)
    assert "block_delay_seconds_total" not in {k[0] for k in values(usage.samples([process]))}
    (root / "sys/kernel").mkdir(parents=True)
    (root / "sys/kernel/task_delayacct").write_text("1\n")
    usage = Usage(root)
    assert values(usage.samples([process]))["block_delay_seconds_total", "train"] == 0
    fake_process(tmp_path, delay_ticks=350)
    assert values(usage.samples([process]))["block_delay_seconds_total", "train"] == 250 / os.sysconf("SC_CLK_TCK")


def test_threads_that_sleep_uninterruptibly_are_counted(tmp_path):
    root = fake_process(tmp_path, threads="DSD")
    assert values(Usage(root).samples([read_process(root, 7)]))["blocked_threads", "train"] == 2


def fake_process(tmp_path, delay_ticks=0, threads="S"):
    """Process 7, `train`, in /proc's layout."""
    folder = tmp_path / "proc/7"
    for number, state in enumerate(threads, 7):
        (folder / f"task/{number}").mkdir(parents=True, exist_ok=True)
        (folder / f"task/{number}/stat").write_text(f"{number} (train) {state} 1 7")
    rest = ["S", "1", "7", "7", "0", "-1", "0", *["0"] * 10, str(len(threads)), "0", "5", "0", "3"]
    rest += ["0"] * (39 - len(rest)) + [str(delay_ticks), "0"]
    (folder / "stat").write_text("7 (train) " + " ".join(rest))
    (folder / "io").write_text(
        "rchar: 10\nwchar: 20\nsyscr: 1\nsyscw: 1\nread_bytes: 30\nwrite_bytes: 40\ncancelled_write_bytes: 0\n"
    )
    return tmp_path / "proc"


def test_the_sidecar_and_what_it_started_is_not_measured(reader):
    found = {p.pid for p in targets(PROC)}
    assert reader.pid not in found
    assert os.getpid() not in found


def test_only_the_commands_asked_for_are_looked_at(tmp_path):
    root = fake_process(tmp_path)
    assert [p.command for p in targets(root)] == ["train"]
    assert targets(root, ["other"]) == []


def test_commands_that_are_gone_make_room_for_new_ones():
    names = Names(limit=2)
    assert [names("a"), names("b"), names("c")] == ["a", "b", "other"]
    assert names.make_room({"b", "c"}) == {"a"}
    assert [names("b"), names("c"), names("a")] == ["b", "c", "other"]


# --- devices ----------------------------------------------------------------------------------------------------------


def test_the_device_under_a_file_counts_what_is_read_from_it(cold):
    (device,) = devices.devices_of([_number(cold)], Path("/sys"))
    before = values(devices.samples([device]))
    fd = os.open(cold, os.O_RDONLY | os.O_DIRECT)
    with mmap.mmap(-1, MIB) as memory:
        for offset in range(0, 8 * MIB, MIB):
            os.preadv(fd, [memory], offset)
    os.close(fd)
    after = values(devices.samples([device]))
    key = ("device_read_bytes_total", device.name)
    assert after[key] - before[key] >= 8 * MIB
    assert after["device_readahead_bytes", device.name] == 1024 * int(
        Path(f"/sys/block/{device.name}/queue/read_ahead_kb").read_text()
    )


@pytest.fixture
def sys_tree(tmp_path):
    """A disk with a partition, and a stacked device over two disks, as /sys lays them out."""
    root = tmp_path / "sys"
    for path in ("nvme0n1/nvme0n1p1", "nvme1n1", "dm-0/slaves"):
        (root / "devices" / path).mkdir(parents=True)
    (root / "devices/nvme0n1/nvme0n1p1/partition").write_text("1\n")
    (root / "devices/nvme0n1/stat").write_text(" 10 0 16 2000 20 0 32 4000 3 5000 6000 0 0 0 0 0 0\n")
    for name in ("nvme0n1", "nvme1n1"):
        (root / "devices/dm-0/slaves" / name).symlink_to(root / "devices" / name)
    for place, target in {
        "dev/block/259:1": "nvme0n1/nvme0n1p1",
        "dev/block/253:0": "dm-0",
        "class/block/nvme1n1": "nvme1n1",
    }.items():
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).symlink_to(root / "devices" / target)
    return root


def test_a_partition_leads_to_its_disk_and_a_stacked_device_to_its_parts(sys_tree):
    def names(*numbers):
        return [d.name for d in devices.devices_of(numbers, sys_tree)]

    assert names((259, 1)) == ["nvme0n1"]
    assert names((253, 0)) == ["dm-0", "nvme0n1", "nvme1n1"]
    assert names((0, 99)) == []


def test_a_file_system_with_made_up_numbers_leads_to_the_device_it_is_mounted_from(sys_tree, tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text("36 35 0:41 / /data rw,noatime shared:1 - btrfs /dev/nvme1n1 rw\n")
    assert [d.name for d in devices.devices_of([(0, 41)], sys_tree, tmp_path / "proc")] == ["nvme1n1"]


def test_sectors_and_milliseconds_become_bytes_and_seconds(sys_tree):
    found = values(devices.samples(devices.devices_of([(259, 1)], sys_tree)))
    disk = {
        name: found[f"device_{name}", "nvme0n1"] for name in ("read_bytes_total", "read_seconds_total", "in_flight")
    }
    assert disk == {"read_bytes_total": 8192, "read_seconds_total": 2, "in_flight": 3}
    assert found["device_weighted_seconds_total", "nvme0n1"] == 6
    assert ("device_readahead_bytes", "nvme0n1") not in found


# --- NFS and pressure -------------------------------------------------------------------------------------------------

MOUNTSTATS = """device rootfs mounted on / with fstype ext4
device server:/export mounted on /data with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.1
\tage:\t600
\tbytes:\t100 200 0 0 5000 6000 7 8
\tper-op statistics
\t        NULL: 1 1 0 44 24 0 0 0 0
\t        READ: 50 52 1 9000 500000 100 2000 2500 0
\t       WRITE: 3 3 0 1 1 1 1 1 0
device tmpfs mounted on /dev/shm with fstype tmpfs
"""


def test_an_nfs_mount_tells_its_traffic_and_how_long_requests_took(tmp_path):
    (tmp_path / "7").mkdir()
    (tmp_path / "7/mountstats").write_text(MOUNTSTATS)
    found = values(nfs.samples(nfs.read(tmp_path, [7, 7, 8])), "spikewatch_io_nfs_")
    assert (found["read_bytes_total", "/data"], found["written_bytes_total", "/data"]) == (5000, 6000)
    read = {
        name: found[name, "/data", "read"] for name in ("requests_total", "retransmissions_total", "timeouts_total")
    }
    assert read == {"requests_total": 50, "retransmissions_total": 2, "timeouts_total": 1}
    assert found["rtt_seconds_total", "/data", "read"] == 2
    assert found["request_seconds_total", "/data", "read"] == 2.5


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(MOUNTSTATS.split("\n")).flatmap(
    lambda line: st.integers(0, len(line)).map(lambda n: line[:n])
)))  # fmt: skip
def test_no_cut_mountstats_makes_the_reader_raise(lines):
    list(nfs.samples(nfs.parse("\n".join(lines))))


def test_pressure_is_read_as_seconds(tmp_path):
    file = tmp_path / "io.pressure"
    file.write_text(
        "some avg10=1.00 avg60=0.50 avg300=0.10 total=2500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1000\n"
    )
    assert pressure.totals(file) == {"some": 2.5, "full": 0.001}
    assert pressure.totals(tmp_path / "missing") == {}


def test_this_machine_tells_its_pressure_or_nothing():
    found = pressure.totals(PROC / "pressure/io")
    assert set(found) in ({"some", "full"}, set())
