"""The read probe: what it reads, when it is let loose, and that it can hang without holding anybody up."""

import ctypes
import errno
import json
import os
import platform
import subprocess
import sys
import threading

import pytest

from sidecar.collectors.io import features
from sidecar.collectors.io.collector import IoCollector, IoSettings
from sidecar.collectors.io.files import DataFile
from sidecar.collectors.io.prober import Prober, ReadProbeSettings
from sidecar.collectors.io.readprobe import Plan, measure
from sidecar.collectors.io.syscalls import IO_URING_SETUP, Kernel
from sidecar.model import Availability

MIB = 1 << 20


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """8 MiB on whatever holds temporary files."""
    file = tmp_path_factory.mktemp("probe") / "data.bin"
    with file.open("wb") as f:
        f.write(os.urandom(8 * MIB))
        os.fsync(f.fileno())
    return file


class Refusing(Kernel):
    """A kernel that answers io_uring_setup with one error."""

    def __init__(self, code):
        super().__init__()
        self.code = code

    def __call__(self, number, *arguments):
        if number == IO_URING_SETUP:
            raise OSError(self.code, os.strerror(self.code))
        return super().__call__(number, *arguments)


ENGINES = ["io_uring", "preadv"]


def plan(data, **more):
    return Plan((str(data),), **{"block": 64 << 10, "depth": 8, "max_bytes": 4 * MIB, "seconds": 30, **more})


def measured(data, engine, **more):
    if engine == "io_uring" and not features.probe().works:
        pytest.skip(f"io_uring may not be used here: {features.probe().reason}")
    return measure(plan(data, engine=engine, **more))


@pytest.mark.parametrize("engine", ENGINES)
def test_it_reads_exactly_as_much_as_it_may(data, engine):
    found = measured(data, engine)
    assert (found.engine, found.bytes, found.reads, found.errors) == (engine, 4 * MIB, 64, 0)
    assert found.bytes_per_second > 0


@pytest.mark.parametrize("engine", ENGINES)
def test_it_ends_when_its_time_is_up(data, engine):
    found = measured(data, engine, seconds=0.2, max_bytes=1 << 40)
    assert found.seconds >= 0.19
    assert 0 < found.bytes < 1 << 40


@pytest.mark.parametrize("engine", ENGINES)
def test_what_it_reads_comes_from_the_disk_and_not_from_memory(data, engine):
    """Counted by the kernel: bytes fetched from storage for this process."""
    data.read_bytes()

    def fetched():
        with open("/proc/self/io") as f:
            return int(f.read().split("\nread_bytes: ")[1].split()[0])

    before = fetched()
    found = measured(data, engine)
    if not found.direct:
        pytest.skip("this file system takes no direct reads")
    if fetched() == before:
        pytest.skip("this file system has no storage that the kernel counts")
    assert fetched() - before == 4 * MIB


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOSYS, errno.ENOMEM])
def test_without_io_uring_it_reads_with_threads_and_says_why(data, code):
    before = threading.active_count()
    found = measure(plan(data), Refusing(code))
    assert (found.engine, found.bytes, found.fallback) == ("preadv", 4 * MIB, errno.errorcode[code].lower())
    assert threading.active_count() == before


def test_who_insists_on_io_uring_gets_the_error(data):
    with pytest.raises(PermissionError):
        measure(plan(data, engine="io_uring"), Refusing(errno.EPERM))


@pytest.mark.parametrize("engine", ENGINES)
def test_reads_that_fail_are_counted_and_nothing_is_left_behind(data, engine):
    fds = set(os.listdir("/proc/self/fd"))
    found = measured(data, engine, block=5000, max_bytes=50_000)  # no multiple of a sector: direct reads are refused
    if not found.direct:
        pytest.skip("this file system takes no direct reads")
    assert (found.errors, found.reads, found.bytes) == (10, 0, 0)
    assert set(os.listdir("/proc/self/fd")) == fds


@pytest.mark.parametrize("paths", [("/nowhere/data",), ("/dev/null",)])
def test_nothing_to_read_is_an_error(paths):
    with pytest.raises(OSError, match=r"No such file|as large as a block"):
        measure(Plan(paths))


def test_every_part_of_a_file_can_be_read(tmp_path):
    """Random extents reach the first and the last block."""
    from sidecar.collectors.io.readprobe import _Extents, _File

    extents = _Extents([_File(3, 10 * 4096 + 5)], Plan((), block=4096, max_bytes=8000 * 4096, seconds=60))
    offsets = set()
    while (place := extents.next()) is not None:
        offsets.add(place[1])
    assert offsets == {n * 4096 for n in range(10)}


def test_the_idle_priority_is_that_of_the_calling_thread_only():
    number = {"x86_64": 252, "aarch64": 31}.get(platform.machine())
    if number is None:
        pytest.skip("no number for ioprio_get on this machine")
    found = []

    def work():
        kernel = Kernel()
        kernel.idle_io_priority()
        found.append(kernel(number, ctypes.c_int(1), ctypes.c_int(0)) >> 13)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [3]
    assert Kernel()(number, ctypes.c_int(1), ctypes.c_int(0)) >> 13 != 3


# --- when -------------------------------------------------------------------------------------------------------------


def values(samples):
    return {(s.metric.removeprefix("spikewatch_storage_"), *(v for _, v in s.labels)): s.value for s in samples}


@pytest.fixture
def prober():
    made = []

    def start(command=None, **settings):
        kwargs = {} if command is None else {"command": command}
        made.append(Prober(ReadProbeSettings(**{"enabled": True, "max_bytes": MIB, **settings}), **kwargs))
        return made[-1]

    yield start
    for one in made:
        one.close()


def finish(prober, now_ms):
    """Lets the child end by itself."""
    prober._child.wait(60)
    prober.visit(now_ms, [], "", None)


FILE = [DataFile("/x", 8 * MIB, (0, 0))]


def test_a_suspicion_leads_to_a_measurement_in_a_process_of_its_own(data, prober):
    one = prober()
    assert values(one.samples()) == {("probes_total", o): 0 for o in ("measured", "failed", "timeout")}
    one.visit(5_000, [DataFile(str(data), 8 * MIB, (0, 0))], "nvme0n1", 0.5)
    assert one.busy
    finish(one, 6_000)
    found = values(one.samples())
    assert found["probes_total", "measured"] == 1, one.problem
    speed = [v for k, v in found.items() if k[:2] == ("probe_bytes_per_second", "nvme0n1")]
    assert (len(speed) == 1 and speed[0] > 0) or "direct" in one.problem


@pytest.mark.parametrize(
    ("settings", "files", "pressure"),
    [({"enabled": False}, FILE, 0.9), ({}, FILE, 0.1), ({}, FILE, None), ({}, [], 0.9), ({}, FILE[:0], 0.9)],
    ids=["off", "no suspicion", "pressure unknown", "nothing to read", "no files"],
)
def test_nothing_is_read_without_need(prober, settings, files, pressure):
    one = prober(**settings)
    one.visit(0, files, "", pressure)
    assert not one.busy


def test_between_two_probes_there_are_ten_minutes(prober):
    one = prober([sys.executable, "-c", "raise SystemExit('broken disk')"])
    one.visit(0, FILE, "", 0.9)
    finish(one, 1_000)
    assert values(one.samples())["probes_total", "failed"] == 1
    assert one.problem == "broken disk"
    one.visit(599_999, FILE, "", 0.9)
    assert not one.busy
    one.visit(600_000, FILE, "", 0.9)
    assert one.busy


def test_a_probe_that_hangs_is_killed_and_counted_and_blocks_nothing(prober):
    one = prober([sys.executable, "-c", "import sys; sys.stdin.read(); import signal; signal.pause()"])
    one.visit(0, FILE, "", 0.9)
    one.visit(11_000, FILE, "", 0.9)
    assert values(one.samples())["probes_total", "timeout"] == 0
    one.visit(13_000, FILE, "", 0.9)
    assert values(one.samples())["probes_total", "timeout"] == 1
    finish(one, 14_000)
    assert not one.busy
    assert values(one.samples())["probes_total", "failed"] == 0, "it is counted once"


def test_closing_ends_a_probe_that_is_running(prober):
    one = prober([sys.executable, "-c", "import signal; signal.pause()"])
    one.visit(0, FILE, "", 0.9)
    child = one._child
    one.close()
    assert child.returncode == -9


def test_the_child_says_on_its_error_stream_what_is_wrong():
    command = [sys.executable, "-I", "-m", "sidecar.collectors.io.readprobe", json.dumps({"paths": ["/nowhere"]})]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "No such file" in done.stderr


# --- the collector ----------------------------------------------------------------------------------------------------


@pytest.fixture
def collector():
    made = []

    def start(**settings):
        made.append(IoCollector(IoSettings.model_validate(settings)))
        return made[-1]

    yield start
    for one in made:
        one.close()


def sample(collector, now_ms):
    declared = {info.name: set(info.labels) for info in collector.metrics}
    found = {}
    for s in collector.sample(now_ms):
        assert {name for name, _ in s.labels} == declared[s.metric], s.metric
        key = (s.metric.removeprefix("spikewatch_io_"), *(v for _, v in s.labels))
        assert key not in found, "a series came twice"
        found[key] = s.value
    return found


def test_a_sample_of_this_machine_holds_what_can_be_seen(collector, data):
    one = collector(files=[str(data)])
    assert one.probe().state in (Availability.AVAILABLE, Availability.DEGRADED)
    found = sample(one, 0)
    assert found["uring_allowed",] == float(features.probe().works)
    if os.path.exists("/proc/pressure/io"):
        assert found["pressure_seconds_total", "some", "node"] >= found["pressure_seconds_total", "full", "node"]
    assert found.get(("page_cache_sampled_bytes",), 8 * MIB) == 8 * MIB
    assert [f.what for f in one.findings()][0] == "io_uring"


def test_named_files_are_looked_for_once_in_ten_minutes(collector, tmp_path):
    root = tmp_path / "proc"
    root.mkdir()
    folder = tmp_path / "data"
    folder.mkdir()
    one = collector(files=[f"{folder}/*"], proc_root=root)
    (folder / "a").write_bytes(b"x")
    sample(one, 0)
    (folder / "b").write_bytes(b"x")
    sample(one, 590_000)
    assert len(one._files) == 1
    sample(one, 600_000)
    assert len(one._files) == 2


def test_a_pod_that_shows_no_other_processes_is_told_with_the_change_that_would_help(collector, tmp_path):
    (tmp_path / "proc").mkdir()
    status = collector(proc_root=tmp_path / "proc").probe()
    assert (status.state, status.reason) == (Availability.DEGRADED, "no_other_processes_visible")
    assert "shareProcessNamespace" in status.fix


def test_a_container_without_proc_is_unavailable(collector, tmp_path):
    assert collector(proc_root=tmp_path / "none").probe().state is Availability.UNAVAILABLE


def test_high_pressure_between_two_samples_starts_the_probe(collector, tmp_path, data):
    root = tmp_path / "proc"
    (root / "pressure").mkdir(parents=True)

    def stood_still(seconds):
        (root / "pressure/io").write_text(f"some avg10=0.00 avg60=0.00 avg300=0.00 total={int(seconds * 1e6)}\n")

    one = collector(proc_root=root, files=[str(data)], read_probe={"enabled": True, "max_bytes": MIB})
    stood_still(10)
    sample(one, 0)
    stood_still(10.1)
    sample(one, 1_000)
    assert not one._prober.busy
    stood_still(10.6)
    sample(one, 2_000)
    assert one._prober.busy
    one._prober._child.wait(60)
    found = sample(one, 3_000)
    assert found["spikewatch_storage_probes_total", "measured"] == 1


def test_each_metric_belongs_to_one_part_and_parts_together_are_the_sample(collector, data):
    one = collector(files=[str(data)])
    seen = {}
    for section in one.sections(0):
        for s in section.samples:
            assert seen.setdefault(s.metric, section.name) == section.name
    assert seen
    assert all(section.samples is None for section in one.sections(1)), "nothing was read again a millisecond later"
