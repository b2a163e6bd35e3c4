"""Flight recorder, Inspector and RAS: real dumps of PyTorch, records and a stand-in of the service."""

import json
import os
import pickle
import socket
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidecar.collectors.nccl import flightrecorder, inspector, plainpickle, ras
from sidecar.collectors.nccl.asking import Ras, RasSettings, safe
from sidecar.collectors.nccl.dumps import Dumps

# A job of one rank: PyTorch itself writes the dump; the backend is gloo, for want of a GPU.
RECORD = """
import sys, time
import torch, torch.distributed as dist, torch._C._distributed_c10d as c10d
store = dist.FileStore(sys.argv[1] + ".store", 1)
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
for _ in range(3):
    dist.all_reduce(torch.ones(4, 2))
until = time.monotonic() + 30  # that one has ended is written down by a thread of gloo's
while b'"last_completed_collective":"3"' not in c10d._dump_fr_trace_json(True, False) and time.monotonic() < until:
    time.sleep(0.01)
open(sys.argv[1] + ".pickle", "wb").write(c10d._dump_fr_trace(True, True, False))
open(sys.argv[1] + ".json", "wb").write(c10d._dump_fr_trace_json(True, False))
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def recorded(forked, tmp_path_factory):
    """Two real dumps of the same job: a pickle and a JSON."""
    pytest.importorskip("torch")
    file = tmp_path_factory.mktemp("recorder") / "dump"
    done = forked.start("-c", RECORD, str(file), env={"TORCH_FR_BUFFER_SIZE": "10"})
    try:
        _, errors = done.communicate(timeout=120)
    finally:
        done.kill()
    if "AttributeError" in errors:
        pytest.skip("this PyTorch records nothing on the CPU")
    assert done.returncode == 0, errors
    return file.with_suffix(".pickle").read_bytes(), file.with_suffix(".json").read_bytes()


def bodies(data, kind):
    return [event.body for event in flightrecorder.parse(data) if isinstance(event.body, kind)]


@pytest.mark.torch
@pytest.mark.timeout(150)
@pytest.mark.parametrize("form", [0, 1], ids=["pickle", "json"])
def test_a_dump_that_pytorch_wrote_is_read(recorded, form):
    data = recorded[form]
    entries = bodies(data, flightrecorder.Entry)
    assert [(e.op, e.sequence, e.input_sizes, e.input_dtypes) for e in entries] == [
        ("gloo:all_reduce", n, ((4, 2),), ("Float",)) for n in (1, 2, 3)
    ]
    assert {(e.group, e.description, e.point_to_point) for e in entries} == {("0", "default_pg", False)}
    assert entries[0].seconds is None, "no timing was asked for"
    assert entries[0].created_ns > 1_600_000_000_000_000_000
    (status,) = bodies(data, flightrecorder.GroupStatus)
    assert (status.group, status.last_enqueued, status.last_completed) == ("0", 3, 3)
    (head,) = bodies(data, flightrecorder.Recording)
    assert head.entries == 3


@pytest.mark.torch
@pytest.mark.timeout(150)
def test_our_reader_of_pickles_agrees_with_pythons_on_a_real_dump(recorded):
    assert plainpickle.loads(recorded[0]) == pickle.loads(recorded[0])


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=300),
    lambda inner: (
        st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plain, st.sampled_from([2, 4, 5]))
def test_plain_values_come_back_as_pickle_wrote_them(value, protocol):
    assert plainpickle.loads(pickle.dumps(value, protocol)) == value


class Bomb:
    def __reduce__(self):
        return os.system, ("touch /tmp/spikewatch-was-here",)


@pytest.mark.parametrize("value", [Bomb(), {"entries": [Bomb()]}, os.getcwd, {1, 2}, bytearray(b"x")])
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_would_run_something_is_refused(value, protocol):
    with pytest.raises(plainpickle.PickleRefused, match="byte"):
        plainpickle.loads(pickle.dumps(value, protocol))


def test_a_pickle_cannot_reserve_memory_that_it_does_not_fill():
    assert plainpickle.loads(b"\x80\x02]r\xff\xff\xff\xff.") == []
    with pytest.raises(plainpickle.PickleRefused):
        plainpickle.loads(b"\x80\x02X\xff\xff\xff\x7fabc.")


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=200) | plain.map(lambda v: pickle.dumps(v, 2)).flatmap(
    lambda data: st.tuples(st.integers(0, len(data) - 1), st.integers(0, 255)).map(
        lambda change: data[: change[0]] + bytes([change[1]]) + data[change[0] + 1 :]
    )
))  # fmt: skip
def test_bytes_that_are_no_pickle_are_refused_and_nothing_else(data):
    try:
        plainpickle.loads(data)
    except plainpickle.PickleRefused:
        pass


def dump(rank, *, seconds=None, completed=9, retired=True, state="completed"):
    entry = {
        "record_id": 1,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": 9,
        "profiling_name": "nccl:all_reduce",
        "state": state,
        "retired": retired,
        "is_p2p": False,
        "frames": [
            {"name": "wrapper", "filename": "/x/torch/distributed/c10d.py", "line": 3},
            {"name": "train", "filename": "/job/train.py", "line": 41},
        ],
    } | ({} if seconds is None else {"duration_ms": seconds * 1000})
    status = {
        "0": {"last_enqueued_collective": 9, "last_started_collective": 9, "last_completed_collective": completed}
    }
    return pickle.dumps({"version": "2.5", "pg_status": status, "entries": [entry]}, 2)


def test_an_entry_tells_where_the_program_called_it():
    (entry,) = bodies(dump(0), flightrecorder.Entry)
    assert entry.frame == "/job/train.py:41 train"


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"entries": 3}', pickle.dumps([1], 2), b"\x80\x02}."])
def test_a_file_that_is_no_dump_is_refused(data):
    with pytest.raises(flightrecorder.DumpRefused, match="not a flight recorder dump"):
        list(flightrecorder.parse(data))


def values(samples):
    return {(s.metric.removeprefix("spikewatch_nccl_"), *(v for _, v in s.labels)): s.value for s in samples}


def test_dumps_are_read_when_they_appear_and_again_when_they_change(tmp_path):
    dumps = Dumps(f"{tmp_path}/trace_rank_", "")
    assert list(dumps.new()) == []
    (tmp_path / "trace_rank_0").write_bytes(dump(0))
    (tmp_path / "trace_rank_3").write_bytes(dump(3, completed=8, retired=False, state="started"))
    (tmp_path / "trace_rank_x").write_bytes(b"no number")
    assert [rank for rank, _ in dumps.new()] == [0, 3]
    assert list(dumps.new()) == []
    found = values(dumps.samples())
    assert (found["stuck_collectives", "0"], found["stuck_collectives", "3"]) == (0, 1)
    assert dumps.progress == {0: (9, 9), 3: (9, 8)}
    (tmp_path / "trace_rank_3").write_bytes(dump(3, completed=8) + b"half a new du")
    assert [rank for rank, _ in dumps.new()] == [3], "what stands behind the end of a pickle does not matter"
    (tmp_path / "trace_rank_3").write_bytes(dump(3)[:20])
    assert list(dumps.new()) == []
    assert values(dumps.samples())["flight_recorder_refused_total",] == 1


def test_a_dump_is_asked_for_through_the_pipe_of_each_rank_that_listens(tmp_path):
    os.mkfifo(tmp_path / "fr_0.pipe")
    os.mkfifo(tmp_path / "fr_1.pipe")
    reader = os.open(tmp_path / "fr_1.pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert Dumps("", f"{tmp_path}/fr_").request() == 1
        assert os.read(reader, 10) == b"1"
    finally:
        os.close(reader)


# --- Inspector --------------------------------------------------------------------------------------------------------


def record(rank=0, sn=1, us=250.0, **more):
    return json.dumps(
        {
            "header": {"id": "0xab", "rank": rank, "n_ranks": 2, "nnodes": 1},
            "metadata": {
                "inspector_output_format_version": "v4.0",
                "dump_timestamp_us": 1_700_000,
                "hostname": "gpu-1",
                "pid": 41,
            },
            "coll_perf": {
                "coll": "AllReduce",
                "coll_sn": sn,
                "coll_msg_size_bytes": 1 << 20,
                "coll_exec_time_us": us,
                "coll_timing_source": "kernel_gpu",
                "coll_algobw_gbs": 4.2,
                "coll_busbw_gbs": 4.1,
            }
            | more,
        }
    )


def test_a_record_of_the_inspector_tells_how_long_a_collective_took():
    (event,) = inspector.parse(record(rank=1, sn=7))
    body = event.body
    assert (body.comm, body.op, body.sequence, body.rank, body.ranks) == ("0xab", "AllReduce", 7, 1, 2)
    assert (body.seconds, body.size_bytes, body.timing_source) == (0.00025, 1 << 20, "kernel_gpu")
    assert (body.host, body.pid, body.bus_gbs) == ("gpu-1", 41, 4.1)


@pytest.mark.parametrize(
    "line",
    [record()[:-5], record(us="soon"), record(us=-1), record(us=float("nan")), '{"coll_perf": 3}', "_perf", "[]"],
    ids=["cut", "no number", "negative", "nan", "no header", "no json", "no record"],
)
def test_a_line_that_is_no_record_gives_nothing(line):
    assert list(inspector.parse(line)) == []


# --- RAS --------------------------------------------------------------------------------------------------------------

TEXT = "NCCL version 2.24.3 compiled with CUDA 12.6\n"


def report(missing=(), version="2.28.9", counts=(640, 641)):
    return json.dumps(
        {
            "nccl_version": version,
            "communicators": [
                {
                    "hash": "0xfa",
                    "size": len(counts) + len(missing),
                    "ranks_count": len(counts),
                    "missing_ranks_count": len(missing),
                    "ranks": [
                        {
                            "rank": rank,
                            "host": "10.0.0.1",
                            "pid": 40 + rank,
                            "cuda_dev": rank,
                            "status": {"async_error": 0},
                            "collective_counts": {"AllReduce": count, "Broadcast": 1},
                        }
                        for rank, count in enumerate(counts)
                    ],
                    "missing_ranks": [
                        {"rank": rank, "host": "10.0.0.2", "pid": 50, "status": {"considered_dead": True}}
                        for rank in missing
                    ],
                }
            ],
        }
    )


class Service:
    """Speaks RAS's protocol on the loopback; `json_ok` False is a service from before 2.28.7."""

    def __init__(self, answer, json_ok=True, greeting=b"SERVER PROTOCOL 2\n"):
        self.answer, self.json_ok, self.greeting = answer, json_ok, greeting
        self.commands = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as lines:
                self._talk(connection, lines)

    def _talk(self, connection, lines):
        form = "text"
        for line in lines:
            command = line.decode().strip().lower()
            self.commands.append(command)
            if command.startswith("client protocol"):
                connection.sendall(self.greeting)
            elif command.startswith("timeout"):
                connection.sendall(b"OK\n")
            elif command.startswith("set format") and self.json_ok:
                form = command.split()[-1]
                connection.sendall(b"OK\n")
            elif command in ("status", "verbose status"):
                connection.sendall((self.answer if form == "json" else TEXT).encode())
                return
            else:
                connection.sendall(b"ERROR: Unknown command\n")

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)


@pytest.fixture
def service():
    made = []

    def start(*args, **kwargs):
        made.append(Service(*args, **kwargs))
        return made[-1]

    yield start
    for one in made:
        one.close()


def test_the_service_is_asked_for_json(service):
    running = service(report())
    kinds = [e.body.kind for e in ras.parse(ras.query("127.0.0.1", running.port))]
    assert kinds == ["ras_version", "ras_communicator", "ras_counts", "ras_counts"]
    assert running.commands == ["client protocol 2", "timeout 5", "set format json", "verbose status"]


def test_an_old_service_answers_in_words(service):
    text = ras.query("127.0.0.1", service(report(), json_ok=False).port)
    (event,) = ras.parse(text)
    assert event.body.version == "2.24.3"


def test_who_does_not_speak_the_protocol_is_left_alone(service):
    with pytest.raises(ras.RasError, match="no RAS service"):
        ras.query("127.0.0.1", service("", greeting=b"220 mail ready\n").port)


def test_a_report_that_is_too_large_is_refused(service):
    with pytest.raises(ras.RasError, match="larger than 100 bytes"):
        ras.query("127.0.0.1", service(report()).port, max_bytes=100)


def test_nobody_there_is_an_error_that_names_the_address():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(ras.RasError, match=f"127.0.0.1:{port}"):
        ras.query("127.0.0.1", port, timeout_s=1)


@pytest.mark.parametrize(
    ("version", "fine"),
    [("2.26.2", False), ("2.28.8", False), ("2.28.9", True), ("2.29.7", False), ("2.30.3", True), ("", False)],
)
def test_versions_that_crash_when_asked_are_known(version, fine):
    assert safe(version) is fine


def asked(running, now_ms=100_000, suspicion=True, version="2.28.9", complete_ms=0, **more):
    made = Ras(RasSettings(enabled=True, host="127.0.0.1", port=running.port, **more))
    made.visit(now_ms, suspicion=suspicion, version=version, complete_ms=complete_ms)
    return made


def test_a_suspicion_leads_to_one_question_in_thirty_seconds(service):
    running = service(report(missing=(7,)))
    one = asked(running)
    found = values(one.samples(100_000))
    assert found["ras_missing_ranks",] == 1
    assert (found["ras_launched_collectives", "AllReduce", "0"], found["ras_queries_total", "answered"]) == (640, 1)
    for now_ms in (100_001, 129_999):
        one.visit(now_ms, suspicion=True, version="2.28.9", complete_ms=0)
    assert running.commands.count("verbose status") == 1
    one.visit(130_000, suspicion=True, version="2.28.9", complete_ms=0)
    assert running.commands.count("verbose status") == 2
    assert ("ras_missing_ranks",) not in values(one.samples(130_000 + 300_001)), "an old report says nothing about now"


@pytest.mark.parametrize(
    "case",
    [{"version": "2.26.2"}, {"version": ""}, {"complete_ms": None}, {"complete_ms": 40_001}],
    ids=["crashes", "unknown version", "not known to be complete", "complete for less than a minute"],
)
def test_the_service_is_not_asked_where_that_could_harm(service, case):
    running = service(report())
    one = asked(running, **case)
    assert running.commands == []
    assert one.refusal
    assert values(one.samples(100_000))["ras_queries_total", "refused"] == 1


def test_nothing_is_asked_without_a_suspicion_or_while_it_is_off(service):
    running = service(report())
    asked(running, suspicion=False)
    off = Ras(RasSettings(host="127.0.0.1", port=running.port))
    off.visit(100_000, suspicion=True, version="2.28.9", complete_ms=0)
    assert running.commands == []
    assert list(off.samples(0)) == []


def test_who_insists_may_ask_a_version_that_is_known_to_crash(service):
    running = service(report(version="2.26.2"))
    assert values(asked(running, version="2.26.2", force=True).samples(100_000))["ras_queries_total", "answered"] == 1
