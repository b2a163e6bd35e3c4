"""io_uring seen from outside: rings of real programs, and what the kernel leaves out while a ring is locked."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.collectors.io import features
from sidecar.collectors.io.rings import LINK, Rings, RingState, descriptors, parse
from sidecar.collectors.procfs import read_process

PROC = Path("/proc")

# A program with one ring. It does what it is told, line by line, and answers when it is done.
PROGRAM = """
import ctypes, os, sys
from sidecar.collectors.io.syscalls import IO_URING_SETUP, Kernel
from sidecar.collectors.io.uring import Ring
ring = Ring(4)
reader, writer = os.pipe()
zero = os.open("/dev/zero", os.O_RDONLY)
memory = ctypes.create_string_buffer(4096)
address = ctypes.addressof(memory)
print("ready", flush=True)
for line in sys.stdin:
    word, _, count = line.strip().partition(" ")
    if word == "wait":  # reads of an empty pipe: they stay under way
        for _ in range(int(count)):
            ring.prepare_read(reader, address, 1, (1 << 64) - 1, 0)
            ring.submit(0)
    elif word == "feed":
        os.write(writer, b"x" * int(count))
    elif word == "collect":  # waits until that many were taken
        taken = 0
        while taken < int(count):
            ring.submit(1)
            taken += len(ring.completions())
    elif word == "poll":  # a second ring, with a kernel thread that polls for it
        parameters = (ctypes.c_uint32 * 30)(0, 0, 2, 0, 10_000)  # IORING_SETUP_SQPOLL, idle after ten seconds
        Kernel()(IO_URING_SETUP, ctypes.c_uint(4), ctypes.byref(parameters))
    elif word == "flood":  # reads that complete at once, and nobody takes the results
        for _ in range(int(count)):
            ring.prepare_read(zero, address, 1, 0, 0)
            ring.submit(0)
    print("done", flush=True)
"""


@pytest.fixture
def program():
    """A real program with a ring; skips where io_uring is not allowed."""
    allowed = features.probe()
    if not allowed.works:
        pytest.skip(f"io_uring may not be used here: {allowed.reason}")
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )

    def tell(line):
        child.stdin.write(line + "\n")
        assert child.stdout.readline() == "done\n"

    assert child.stdout.readline() == "ready\n"
    child.tell = tell
    yield child
    child.stdin.close()
    child.wait(30)
    child.stdout.close()


@pytest.fixture
def rings(program):
    found = Rings()
    found.discover([read_process(PROC, program.pid)])
    return found


def values(rings):
    return {s.metric.removeprefix("spikewatch_io_uring_"): s.value for s in rings.samples()}


def test_a_ring_of_another_program_is_found_once_however_many_descriptors_lead_to_it(program, rings):
    links = [os.readlink(fd) for fd in (PROC / str(program.pid) / "fd").iterdir()]
    assert links.count(LINK) > 1, "each mapping holds a copy"
    assert len(rings) == 1
    assert values(rings)["rings"] == 1


def test_requests_under_way_are_counted(program, rings):
    assert values(rings)["in_flight"] == 0
    program.tell("wait 3")
    assert values(rings)["in_flight"] == 3
    program.tell("feed 3")
    program.tell("collect 3")
    found = values(rings)
    assert (found["in_flight"], found["unreaped_completions"], found["completions_total"]) == (0, 0, 3)


def test_results_that_the_program_does_not_take_are_counted_and_overflow(program, rings):
    values(rings)
    program.tell("flood 6")
    assert values(rings)["unreaped_completions"] == 6
    program.tell("flood 6")  # the queue holds eight
    found = values(rings)
    assert (found["unreaped_completions"], found["overflowing_completions"], found["cq_overflows_total"]) == (8, 4, 4)
    program.tell("flood 1")
    assert values(rings)["cq_overflows_total"] == 5
    assert values(rings)["cq_overflows_total"] == 5, "the same ones are not counted twice"


def test_a_ring_with_a_kernel_thread_that_polls_is_told_from_one_without(program, rings):
    assert "sqpoll_seconds_total" not in values(rings)
    program.tell("poll")
    rings.discover([read_process(PROC, program.pid)])
    found = values(rings)
    assert found["rings"] == 2
    assert 0 <= found["sqpoll_busy_seconds_total"] <= found["sqpoll_seconds_total"]


def test_counters_stay_when_the_ring_is_gone(program, rings):
    values(rings)
    program.tell("wait 2")
    program.tell("feed 2")
    program.tell("collect 2")
    assert values(rings)["completions_total"] == 2
    program.stdin.close()
    program.wait(30)
    found = values(rings)
    assert (found["rings"], found["completions_total"]) == (0, 2)
    assert "in_flight" not in found


def test_a_pod_without_rings_has_no_series():
    rings = Rings()
    rings.discover([])
    assert list(rings.samples()) == []


def test_the_ring_of_fio_is_read_while_it_works(tmp_path):
    """A program that is not ours, with its queue full. Its lock is often taken: such readings are unknown."""
    if shutil.which("fio") is None:
        pytest.skip("fio is not installed (Debian: apt-get install fio)")
    if not features.probe().works:
        pytest.skip(f"io_uring may not be used here: {features.probe().reason}")
    command = ["fio", "--name=x", f"--filename={tmp_path}/data", "--size=16m", "--rw=randread", "--bs=64k"]
    command += ["--iodepth=16", "--ioengine=io_uring", "--time_based", "--runtime=20", "--thread", "--output=/dev/null"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as fio:
        try:
            seen, rings = [], Rings()
            while fio.poll() is None and len(seen) < 5:
                if not len(rings):
                    rings.discover([read_process(PROC, fio.pid)])
                found = values(rings)
                if found.get("completions_total") and "in_flight" in found:
                    seen.append(found["in_flight"])
        finally:
            fio.kill()
    assert len(seen) == 5, "fio ended before its ring was seen at work"
    assert all(0 <= n <= 16 for n in seen)
    assert max(seen) > 0


LOCKED = "pos:\t0\nflags:\t02000002\nmnt_id:\t15\nino:\t1057\n"
OLD = LOCKED + "SqThread:\t4711\nSqThreadCpu:\t1\nUserFiles:\t0\nUserBufs:\t0\nPollList:\n"
POLLED = (
    LOCKED
    + "SqMask:\t0x7f\nSqHead:\t10\nSqTail:\t12\nCachedSqHead:\t2\nCqMask:\t0xff\nCqHead:\t4294967290\nCqTail:\t1\n"
    "CachedCqTail:\t4294967295\nSQEs:\t1\n   11: opcode:READ, fd:5, flags:0, off:0, addr:0x0, rw_flags:0x0, "
    "buf_index:0 user_data:7\nCQEs:\t1\n    3: user_data:9, res:4096, flags:0\nSqThread:\t4711\nSqThreadCpu:\t1\n"
    "SqTotalTime:\t2000000\nSqWorkTime:\t500000\nUserFiles:\t0\nUserBufs:\t0\nPollList:\n"
    "CqOverflowList:\n  user_data=1, res=0, flags=0\n  user_data=2, res=-5, flags=2\n"
)


def test_a_locked_ring_is_unknown_and_not_idle():
    assert parse(LOCKED) is None


def test_counters_that_have_wrapped_round_are_still_counters():
    state = parse(POLLED)
    assert (state.in_flight, state.unreaped, state.overflowed) == (3, 7, 2)
    assert (state.poll_thread, state.poll_total_us, state.poll_work_us) == (4711, 2_000_000, 500_000)


def test_an_old_kernel_that_prints_no_counters_leaves_them_unknown():
    state = parse(OLD)
    assert (state.in_flight, state.unreaped, state.overflowed, state.poll_thread) == (None, None, None, 4711)


def ring_state(completed, total_us=None, overflowed=0):
    return RingState(completed, completed, 0, overflowed, total_us and 9, total_us, total_us and total_us // 2)


def test_a_ring_that_is_locked_again_and_again_counts_as_unknown_and_loses_nothing(program):
    readings = iter([ring_state(10), None, ring_state(25)])
    rings = Rings(read=lambda root, pid, fd: next(readings))
    rings.discover([read_process(PROC, program.pid)])
    assert values(rings)["completions_total"] == 0
    locked = values(rings)
    assert "in_flight" not in locked
    assert locked["unknown_readings_total"] == 1
    assert values(rings)["completions_total"] == 15


def test_the_time_of_a_polling_kernel_thread_is_told(program):
    readings = iter([ring_state(1, 1_000_000), ring_state(1, 3_000_000)])
    rings = Rings(read=lambda root, pid, fd: next(readings))
    rings.discover([read_process(PROC, program.pid)])
    assert values(rings)["sqpoll_seconds_total"] == 1
    found = values(rings)
    assert (found["sqpoll_seconds_total"], found["sqpoll_busy_seconds_total"]) == (3, 1.5)


def test_where_all_rings_share_an_inode_none_is_left_out(program):
    inode = os.stat(PROC / str(program.pid) / "fd" / str(descriptors(PROC, program.pid, set(), -1)[0])).st_ino
    assert len(descriptors(PROC, program.pid, set(), inode)) > 1


def test_a_process_that_ended_has_no_rings_and_is_not_called_denied(program, tmp_path):
    rings = Rings(tmp_path)
    rings.discover([read_process(PROC, program.pid)])
    assert (len(rings), rings.denied) == (0, 0)


@settings(deadline=None)
@given(st.text(alphabet="SqMaskCTlHead:0x \t\n-9,=", max_size=200))
def test_no_content_makes_the_reader_raise(text):
    parse(text)
    parse("SqMask:\t0x1\n" + text)


# --- what is allowed --------------------------------------------------------------------------------------------------

# Sets a seccomp filter that answers io_uring's system calls with EPERM, as container runtimes do by default.
DENY = """
import ctypes, struct, sys
def deny():
    program = b"".join(struct.pack("HBBI", *row) for row in (
        (0x20, 0, 0, 0),               # load the number of the call
        (0x35, 0, 2, 425),             # below io_uring_setup: allow
        (0x25, 1, 0, 427),             # above io_uring_register: allow
        (0x06, 0, 0, 0x00050000 | 1),  # EPERM
        (0x06, 0, 0, 0x7FFF0000),
    ))
    code = ctypes.create_string_buffer(program)
    class Filter(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # no new privileges
    filter = Filter(5, ctypes.addressof(code))
    assert libc.prctl(22, 2, ctypes.byref(filter), 0, 0) == 0, ctypes.get_errno()
deny()
"""


def under_seccomp(code, *arguments):
    """What `code` prints, as JSON, in a process that may not use io_uring."""
    done = subprocess.run(
        [sys.executable, "-c", DENY + code, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_seccomp_filter_that_denies_io_uring_is_named_with_its_remedy():
    code = "import json; from dataclasses import asdict; from sidecar.collectors.io import features\n"
    found = under_seccomp(code + "print(json.dumps(asdict(features.probe())))")
    assert (found["works"], found["reason"]) == (False, "seccomp")
    assert "seccomp profile" in found["fix"]


def test_a_node_that_forbids_io_uring_is_told_apart_from_a_filter(tmp_path):
    (tmp_path / "sys/kernel").mkdir(parents=True)
    (tmp_path / "sys/kernel/io_uring_disabled").write_text("2\n")
    code = "import json, pathlib; from dataclasses import asdict; from sidecar.collectors.io import features\n"
    found = under_seccomp(code + "print(json.dumps(asdict(features.probe(pathlib.Path(sys.argv[1])))))", str(tmp_path))
    assert found["reason"] == "sysctl"


def test_the_read_probe_falls_back_to_threads_under_a_filter(tmp_path):
    file = tmp_path / "data.bin"
    file.write_bytes(bytes(4 << 20))
    code = (
        "import json; from dataclasses import asdict; from sidecar.collectors.io.readprobe import Plan, measure\n"
        "print(json.dumps(asdict(measure(Plan((sys.argv[1],), max_bytes=2 << 20, depth=4)))))"
    )
    found = under_seccomp(code, str(file))
    assert (found["engine"], found["fallback"], found["errors"], found["bytes"]) == ("preadv", "eperm", 0, 2 << 20)
