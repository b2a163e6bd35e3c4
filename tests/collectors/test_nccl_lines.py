"""Lines of NCCL and PyTorch as launchers pass them on: what they mean, and that nothing makes the reader fail."""

import json

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sidecar.collectors.nccl import events, flightrecorder, inspector, ras
from sidecar.collectors.nccl.events import to_json
from sidecar.collectors.nccl.grammar import LogParser
from sidecar.collectors.nccl.messages import transport
from sidecar.collectors.nccl.warnings import FAMILIES, family_of

CHANNEL = "gpu-1:41:77 [3] NCCL INFO Channel 02/0 : 3[3] -> 4[4] via P2P/IPC/read"
COLLECTIVE = (
    "gpu-1:41:77 [3] NCCL INFO AllReduce: opCount 1f sendbuff 0x7f00000200 recvbuff 0x7f00000300 count 1000 "
    "datatype 9 op 0 root 0 comm 0x5566 [nranks=8] stream 0x77"
)
TIMED_OUT = (
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=_ALLGATHER_BASE, NumelIn=4, NumelOut=32, "
    "Timeout(ms)=1800000) ran for 1800042 milliseconds before timing out."
)
LINES = [
    CHANNEL,
    COLLECTIVE,
    f"[rank3]:[E101 10:00:00.1 ProcessGroupNCCL.cpp:632] [Rank 3] {TIMED_OUT}",
    "[rank3]:[E101 10:00:00.1 ProcessGroupNCCL.cpp:685] [PG ID 0 PG GUID 0(default_pg) Rank 3] failure detected by "
    "watchdog at work sequence id: 12 PG status: last enqueued work: 15, last completed work: 11",
    "NCCL version 2.27.5+cuda12.9",
    "gpu-1:41:77 [3] NCCL INFO comm 0x55 rank 3 nranks 8 cudaDev 3 nvmlDev 3 busId 4a000 commId 0x1 - Init COMPLETE",
    "gpu-1:41:77 [3] NCCL INFO Init timings - ncclCommInitRank: rank 3 nranks 8 total 1.5 (kernels 0.2, rest 0.1)",
    "[2026-05-05 06:16:47] gpu-1:41:77 [3] transport/net_ib.cc:12 (poll) NCCL WARN Call to connect to x failed",
    "gpu-1:41:77 [3] NCCL INFO Trees [0] 1/-1/-1->0->-1 [1] -1/-1/-1->0->1",
    "gpu-1:41:77 [3] NCCL INFO Channel 00/08 :    0   1   2   3",
    "[1] NCCL INFO AllReduce: op=SUM, dtype=FLOAT32, count=1048576, time=128.4ms "
    "(wait=97.1ms, compute=12ms, comm=19ms)",
    "[2] NCCL WARN Timed out waiting for GPU 0 to signal completion (wait > 100ms)",
    "Communicators... (0.10s)\n    0         1         4         8        32        32   RUNNING  MISMATCH",
    "#0-0 (ab) MISMATCH\n  30 ranks have launched up to operation 640",
    '{"header":{"id":"0x1","rank":0,"n_ranks":2},"coll_perf":{"coll":"AllReduce","coll_sn":1,'
    '"coll_msg_size_bytes":8,"coll_exec_time_us":5}}',
]


def one(line):
    (event,) = LogParser().parse(line)
    return event


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "[1,3]<stdout>:",
        "(RayTrainWorker pid=41, ip=10.1.2.3) ",
        "\x1b[36m(RayTrainWorker pid=41)\x1b[0m ",
        "[default3]:",
        "3: ",
        "2026-01-02T03:04:05.678Z stdout F ",
        "[2026-01-02 03:04:05] ",
        " 12%|##      | 3/25 [00:01<00:09]\r",
    ],
    ids=["none", "mpirun", "ray", "ray in colour", "torchrun", "srun", "containerd", "timestamp", "progress bar"],
)
def test_what_a_launcher_puts_before_a_line_does_not_change_it(prefix):
    event = one(prefix + CHANNEL)
    assert event.header[:4] == ("gpu-1", 41, 77, 3)
    assert (event.body.from_rank, event.body.to_rank, event.body.transport) == (3, 4, "P2P/IPC")


@pytest.mark.parametrize("prefix", ["", "[1,3]<stderr>:", "[80746] ", "\x1b[36m(W pid=1)\x1b[0m "])
@pytest.mark.parametrize("who", ["[Rank 3]", "[PG 1 Rank 3]", "[PG ID 0 PG GUID 0(default_pg) Rank 3]"])
def test_a_watchdog_time_out_is_read_in_every_form(prefix, who):
    event = one(f"{prefix}[rank3]:[E101 10:00:00.1 ProcessGroupNCCL.cpp:632] {who} {TIMED_OUT}")
    assert isinstance(event.body, events.WatchdogTimeout)
    assert (event.body.rank, event.body.op, event.body.sequence) == (3, "_ALLGATHER_BASE", 12)
    assert (event.body.timeout_seconds, event.body.ran_seconds) == (1800, 1800.042)


@pytest.mark.parametrize("prefix", ["", "[default0]:", "[1,3]<stdout>:", "(RayTrainWorker pid=41) ", "0: ", "host | "])
def test_the_version_stands_alone_behind_whatever_a_launcher_puts_before_it(prefix):
    body = one(prefix + "NCCL version 2.27.5+cuda12.9").body
    assert (body.version, body.cuda) == ("2.27.5", "12.9")


@pytest.mark.parametrize(
    "line",
    [
        "[rank3]:[E1 ProcessGroupNCCL.cpp:1515] [PG 1 Rank 3] Process group watchdog thread terminated with "
        f"exception: [Rank 3] {TIMED_OUT}",
        f"  what():  [PG 1 Rank 3] NCCL watchdog thread terminated with exception: [Rank 3] {TIMED_OUT}",
    ],
    ids=["watchdog", "exception"],
)
def test_a_time_out_that_is_told_again_as_the_reason_of_the_end_is_not_another_time_out(line):
    body = one(line).body
    assert (body.kind, body.topic, body.rank, body.group) == ("watchdog_other", "terminated", 3, "1")


def test_a_time_out_of_an_old_release_that_tells_shapes_is_read():
    body = one(
        "[E ProcessGroupNCCL.cpp:828] [Rank 5] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, "
        "OpType=ALLREDUCE, TensorShape=[1, 2], Timeout(ms)=1800000) ran for 1800128 milliseconds before timing out."
    ).body
    assert (body.rank, body.op, body.sequence, body.timeout_seconds) == (5, "ALLREDUCE", 7, 1800)
    assert body.elements_in is None


@pytest.mark.parametrize(
    "tail",
    [
        "Timeout at NCCL work: 12, last enqueued NCCL work: 15, last completed NCCL work: 11.",
        "Exception (either an error or timeout) detected by watchdog at work: 12, last enqueued NCCL work: 15, "
        "last completed NCCL work: 11.",
        "failure detected by watchdog at work sequence id: 12 PG status: last enqueued work: 15, "
        "last completed work: 11",
    ],
)
def test_how_far_a_rank_came_is_read_from_old_and_new_releases(tail):
    body = one(f"[rank3]:[E1 ProcessGroupNCCL.cpp:1] [PG 1 Rank 3] {tail}").body
    assert (body.rank, body.group, body.failed, body.last_enqueued, body.last_completed) == (3, "1", 12, 15, 11)


def test_a_collective_tells_whether_its_buffers_are_aligned():
    body = one(COLLECTIVE).body
    assert (body.op, body.op_count, body.elements, body.datatype, body.ranks) == ("AllReduce", 0x1F, 1000, 9, 8)
    assert not body.aligned()
    assert body.aligned(256)
    assert one(COLLECTIVE.replace("300", "400")).body.aligned()


@pytest.mark.parametrize(
    ("via", "name"),
    [
        ("P2P/IPC/read", "P2P/IPC"),
        ("P2P/CUMEM", "P2P/CUMEM"),
        ("P2P/direct pointer", "P2P/direct pointer"),
        ("P2P/indirect/3[3]", "P2P/indirect"),
        ("SHM/direct/direct", "SHM"),
        ("NET/Socket/0", "NET/Socket"),
        ("NET/IB/2(5)/GDRDMA/Shared", "NET/IB/GDRDMA"),
        ("NET/AWS Libfabric/0", "NET/AWS Libfabric"),
        ("COLLNET/direct", "COLLNET"),
    ],
)
def test_a_transport_is_named_without_device_numbers(via, name):
    assert transport(via) == name


def test_rings_and_trees_are_read():
    ring, trees = one(LINES[9]).body, one(LINES[8]).body
    assert (ring.channel, ring.channels, ring.order) == (0, 8, (0, 1, 2, 3))
    assert trees.trees == {0: "1/-1/-1->0->-1", 1: "-1/-1/-1->0->1"}


def test_a_warning_keeps_its_text_and_gets_a_family():
    event = one(LINES[7])
    assert event.header.timestamp == "2026-05-05 06:16:47"
    assert (event.body.family, event.body.where) == ("connect", "transport/net_ib.cc:12")
    assert event.body.message == "Call to connect to x failed"


@pytest.mark.parametrize(
    ("message", "family"),
    [
        ("NET/IB : mlx5_0:1 async fatal event: port error", "ib_async_event"),
        ("Cuda failure 'out of memory'", "cuda"),
        ("Proxy append out of bounds", "proxy"),
        ("Mismatched NCCL version detected : rank 0 version 2.21 rank 1 version 2.20", "version_mismatch"),
        ("socketProgress: Connection closed by remote peer gpu-2<41>", "socket"),
        ("something entirely new", "other"),
    ],
)
def test_warnings_are_told_apart(message, family):
    assert family_of(message) == family
    assert family in FAMILIES


def test_the_lines_of_the_example_are_read_and_called_synthetic():
    timed, late = (to_json(one(line)) for line in LINES[10:12])
    assert timed["kind"] == "synthetic_collective"
    assert (timed["seconds"], timed["wait_seconds"], timed["compute_seconds"]) == (0.1284, 0.0971, 0.012)
    assert (timed["op"], timed["datatype"], timed["count"], timed["device"]) == ("AllReduce", "FLOAT32", 1048576, 1)
    assert late == {
        "kind": "synthetic_timeout",
        "line": 1,
        "device": 2,
        "late_device": 0,
        "limit_seconds": 0.1,
    }


def test_an_unknown_line_of_nccl_is_kept_as_other():
    event = one("gpu-1:41:77 [3] NCCL INFO flux capacitor charged")
    assert to_json(event)["kind"] == "other"
    assert event.body.message == "flux capacitor charged"


@pytest.mark.parametrize(
    "line",
    [
        "step 5 loss 0.3",
        "we use NCCL INFO level logging",
        "INFO pynccl.py:69] vLLM is using nccl==2.21.5",
        "Supported NCCL version 2.20 or newer",
        "",
    ],
)
def test_lines_of_the_program_itself_are_no_events(line):
    assert list(LogParser().parse(line)) == []


def test_lines_are_numbered_across_pieces():
    parser = LogParser()
    assert [e.line for e in parser.parse(f"x\n{CHANNEL}\r\n")] == [2]
    assert [e.line for e in parser.parse(CHANNEL, 4)] == [4]


def test_the_same_message_from_many_ranks_keeps_who_said_it():
    text = "\n".join(f"gpu-1:{40 + n}:77 [{n}] NCCL INFO Connected all rings" for n in range(5))
    assert [e.header.device for e in LogParser().parse(text)] == [0, 1, 2, 3, 4]


def test_a_parser_does_not_grow_with_the_log():
    parser = LogParser()
    text = "\n".join(f"h{n}:1:2 [0] NCCL INFO message {n}" for n in range(20_000))
    assert sum(1 for _ in parser.parse(text)) == 20_000
    assert len(parser._headers) + len(parser._meanings) <= 2 * 4096


HEAD = "gpu-1:41:77 [3] NCCL INFO "
HARMFUL = [
    "[" + "11:11" * 8000 + " NCCL INFO x",
    "a" * 40_000 + " NCCL INFO x",
    "a:1:" * 10_000 + " NCCL INFO x",
    HEAD + "comm a rank 1 nranks 1 cudaDev 1 busId 1 " * 1000,
    HEAD + "Trees " + "[1] 1/" * 6000,
    "NCCL ProcessGroupNCCL.cpp: last enqueued " + "[PG " * 10_000,
    "h:1:2 [0] NCCL WARN " + "connect " * 5000,
    HEAD + " " * 30_000 + "[repeated 1x",
]


def test_a_line_made_to_do_harm_costs_no_more_than_any_other():
    """Work that grew with the square of a line's length would take minutes here, and the time limit would end it."""
    text = "\n".join(HARMFUL * 20)
    assert len(list(LogParser().parse(text))) >= 20


@st.composite
def mutated(draw):
    """Two real lines, spliced, cut, repeated and sprinkled with foreign characters."""
    text = draw(st.sampled_from(LINES))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(text)))
        until = draw(st.integers(at, len(text)))
        new = draw(
            st.one_of(
                st.text(max_size=8),
                st.sampled_from(LINES),
                st.sampled_from(["9" * 20, "9" * 5000, "\x1b[3", "[", "(", " NCCL ", "-1", "0x", "\0", "\n"]),
                st.just(text[at:until] * 3),
            )
        )
        text = text[:at] + new + text[until:]
    return text


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(mutated())
@example("gpu-1:41:77 [3] NCCL INFO Init timings: rank 1 nranks 2 total 1.2.3 (kernels 1)")
@example("[Rank 3] " + TIMED_OUT.replace("1800042", "9" * 5000))
def test_no_mutation_of_a_line_makes_a_reader_raise_and_every_event_is_json(text):
    found = [*LogParser().parse(text), *inspector.parse(text), *ras.parse(text)]
    for event in found:
        json.dumps(to_json(event), allow_nan=False)
    for data in (text.encode("utf-8", "surrogatepass"),):
        try:
            list(flightrecorder.parse(data))
        except flightrecorder.DumpRefused:
            pass
