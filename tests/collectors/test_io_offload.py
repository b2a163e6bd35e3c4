"""Where parameters are offloaded to: which device that is, what it moved, and when it is measured. On a real disk."""

import mmap
import os
from pathlib import Path

import pytest

from sidecar.collectors.io import devices
from sidecar.collectors.io.collector import IoCollector, IoSettings
from sidecar.collectors.io.offload import Offload
from sidecar.collectors.procfs import read_process
from sidecar.model import Availability

MIB = 1 << 20


@pytest.fixture
def swap(tmp_path):
    """A folder on a disk with a file of 4 MiB in it; skips where temporary files are on none."""
    folder = tmp_path / "zero[3]"
    (folder / "rank0").mkdir(parents=True)
    (folder / "rank0/param_1.tensor.swp").write_bytes(os.urandom(4 * MIB))
    (folder / "rank0/small").write_bytes(b"x")
    number = os.stat(folder).st_dev
    if devices.device_of((os.major(number), os.minor(number)), Path("/sys")) is None:
        pytest.skip(f"{tmp_path} is on no block device")
    return folder


@pytest.fixture
def collector():
    made = []

    def start(**settings):
        made.append(IoCollector(IoSettings.model_validate(settings)))
        return made[-1]

    yield start
    for one in made:
        one.close()


def moved(samples):
    return {
        dict(s.labels)["direction"]: s.value for s in samples if s.metric == "spikewatch_io_offload_device_bytes_total"
    }


def write_past_the_cache(path, size):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
    with mmap.mmap(-1, MIB) as memory:
        for offset in range(0, size, MIB):
            os.pwritev(fd, [memory], offset)
    os.close(fd)


def test_what_is_written_below_the_path_is_counted_by_its_device(collector, swap):
    one = collector(offload_paths=[str(swap)])
    before = moved(one.sample(0))
    write_past_the_cache(swap / "rank0/param_2.tensor.swp", 8 * MIB)
    after = moved(one.sample(1_000))
    assert set(after) == {"read", "write"}
    assert after["write"] - before["write"] >= 8 * MIB
    assert one._offload.missing == []


def test_the_devices_own_counters_are_told_also_where_no_data_files_are_on_it(collector, swap, tmp_path):
    (tmp_path / "proc").mkdir()
    one = collector(offload_paths=[str(swap)], proc_root=tmp_path / "proc")
    busy = [s for s in one.sample(0) if s.metric == "spikewatch_io_device_busy_seconds_total"]
    assert [dict(s.labels)["device"] for s in busy] == [one._offload.devices()[0].name]


def test_without_paths_nothing_is_told(collector):
    assert moved(collector().sample(0)) == {}


def test_a_path_that_only_the_trainer_sees_is_found_through_it(swap, tmp_path):
    root = tmp_path / "proc"
    (root / "77").mkdir(parents=True)
    (root / "77/root").symlink_to(swap.parent)
    trainer = read_process(Path("/proc"), os.getpid())._replace(pid=77)
    one = Offload([Path("/zero[3]")], proc_root=root)
    one.look([])
    assert one.missing == [Path("/zero[3]")]
    one.look([trainer])
    assert one.missing == []
    one.list_files()
    ((_, files, _),) = one.measurable()
    assert [Path(f.path).name for f in files] == ["param_1.tensor.swp"]


def test_two_folders_on_one_device_count_once(swap):
    one = Offload([swap, swap.parent, swap / "none"])
    one.look([])
    assert len(one.devices()) == 1
    assert len(list(one.samples(0))) == 2
    assert one.missing == [swap / "none"]


def test_a_path_on_no_block_device_is_a_finding_with_the_change_that_would_help(collector):
    one = collector(offload_paths=["/proc"])
    assert moved(one.sample(0)) == {}
    (found,) = [f for f in one.findings() if f.what == "offload to /proc"]
    assert (found.status.state, found.status.reason) == (Availability.DEGRADED, "no_block_device")
    assert "offload_paths" in found.status.fix


@pytest.fixture
def stacked(tmp_path):
    """A stacked device over a disk, as /sys lays them out; the file system under tmp_path is said to be on it."""
    root, number = tmp_path / "sys", os.stat(tmp_path).st_dev
    (root / "devices/md0/slaves").mkdir(parents=True)
    (root / "devices/nvme1n1").mkdir()
    (root / "devices/md0/slaves/nvme1n1").symlink_to(root / "devices/nvme1n1")
    (root / "dev/block").mkdir(parents=True)
    (root / f"dev/block/{os.major(number)}:{os.minor(number)}").symlink_to(root / "devices/md0")

    def stat(read_sectors, written_sectors, busy_ms):
        text = f" 10 0 {read_sectors} 0 10 0 {written_sectors} 0 0 {busy_ms} 0\n"
        for name in ("md0", "nvme1n1"):
            (root / "devices" / name / "stat").write_text(text)

    return root, stat


def test_a_stacked_device_is_not_counted_again_by_its_parts(tmp_path, stacked):
    root, stat = stacked
    stat(16, 32, 0)
    one = Offload([tmp_path], root)
    one.look([])
    assert [(dict(s.labels), s.value) for s in one.samples(0)] == [
        ({"device": "md0", "direction": "read"}, 8192),
        ({"device": "md0", "direction": "write"}, 16384),
    ]


def test_a_device_that_is_unplugged_has_no_series(tmp_path, stacked):
    root, _ = stacked
    one = Offload([tmp_path], root)
    one.look([])
    assert list(one.samples(0)) == []


def test_a_busy_device_is_measured_although_the_kernel_counts_no_pressure(collector, tmp_path, stacked):
    root, stat = stacked
    (tmp_path / "proc").mkdir()
    swap = tmp_path / "swap"
    swap.write_bytes(os.urandom(2 * MIB))
    probe = {"enabled": True, "max_bytes": MIB}
    one = collector(offload_paths=[str(tmp_path)], sys_root=root, proc_root=tmp_path / "proc", read_probe=probe)
    stat(0, 0, 0)
    list(one.sample(0))
    stat(0, 0, 100)
    list(one.sample(1_000))
    assert not one._prober.busy, "a tenth of the time"
    stat(0, 0, 900)
    list(one.sample(2_000))
    assert one._prober.busy
    one._prober._child.wait(60)
    found = {s.metric: dict(s.labels) for s in one.sample(3_000)}
    assert found.get("spikewatch_storage_probe_bytes_per_second", {"device": "md0"})["device"] == "md0"
    assert ("spikewatch_storage_probe_bytes_per_second" in found) != bool(one._prober.problem)
    assert one._turns == {"md0": 2_000}
