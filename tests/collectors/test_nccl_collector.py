"""The collector `nccl` as a whole, and `spikewatch parse`: files in, series and events out."""

import json
import os
import pickle
import subprocess
import sys
from types import SimpleNamespace

import pytest

from sidecar.cli import main
from sidecar.collectors.nccl.collector import NcclCollector, NcclSettings
from sidecar.collectors.nccl.routes import grade
from sidecar.model import Availability


def line(text, *, rank=0, pid=None, tid=77):
    return f"gpu-1:{40 + rank if pid is None else pid}:{tid} [{rank}] NCCL INFO {text}\n"


def init(rank=0, comm="0x1", phase="START", **who):
    return line(
        f"comm {comm} rank {rank} nranks 2 cudaDev {rank} nvmlDev {rank} busId 1000 commId 0x9 - Init {phase}",
        rank=rank,
        **who,
    )


def via(transport, a=0, b=1, channel=0, **who):
    return line(f"Channel {channel:02d}/0 : {a}[{a}] -> {b}[{b}] via {transport}", rank=a, **who)


def timing(rank, sn, us, source="kernel_gpu", op="AllReduce"):
    perf = {
        "coll": op,
        "coll_sn": sn,
        "coll_msg_size_bytes": 1000,
        "coll_exec_time_us": us,
        "coll_timing_source": source,
    }
    return json.dumps({"header": {"id": "0xab", "rank": rank, "n_ranks": 2}, "coll_perf": perf}) + "\n"


@pytest.fixture
def job(tmp_path):
    """A job that writes to files, and the collector that follows them."""
    log, records = tmp_path / "nccl.log", tmp_path / "insp.log"
    log.touch()
    records.touch()
    made = []

    def collector(**more):
        settings = {"logs": [str(log)], "inspector": [str(records)], "discover": False, **more}
        made.append(NcclCollector(NcclSettings.model_validate(settings)))
        return made[-1]

    def write(path, text):
        with path.open("a") as file:
            file.write(text)

    yield SimpleNamespace(
        folder=tmp_path,
        collector=collector,
        log=lambda *lines: write(log, "".join(lines)),
        record=lambda *lines: write(records, "".join(lines)),
    )
    for one in made:
        one.close()


def sample(collector, now_ms=1000):
    found = {}
    declared = {info.name: set(info.labels) for info in collector.metrics}
    for s in collector.sample(now_ms):
        assert {name for name, _ in s.labels} == declared[s.metric], s.metric
        key = (s.metric.removeprefix("spikewatch_nccl_"), *(v for _, v in s.labels))
        assert key not in found, "a series came twice"
        found[key] = s.value
    return found


def test_channels_are_counted_by_transport(job):
    collector = job.collector()
    job.log(via("P2P/CUMEM/read"), via("P2P/CUMEM/read", channel=1), via("SHM/direct/direct", a=1, b=0))
    job.log("some other line\n", via("NET/Socket/0"), line("Channel 00/0 : 1[1] -> 0[0] [receive] via NET/Socket/0"))
    found = sample(collector)
    assert {k[1]: v for k, v in found.items() if k[0] == "channels"} == {"P2P/CUMEM": 2, "SHM": 1, "NET/Socket": 1}
    assert found["downgraded_routes",] == 0
    assert found["log_lines_total",] == 6


def test_a_second_initialisation_over_something_slower_is_a_downgrade(job):
    collector = job.collector()
    job.log(init(), via("P2P/CUMEM"), via("P2P/CUMEM", channel=1))
    assert sample(collector)["downgraded_routes",] == 0
    job.log(init(pid=90, comm="0x7"), via("SHM/direct/direct", pid=90))
    found = sample(collector)
    assert found["downgraded_routes",] == 1
    assert {k[1]: v for k, v in found.items() if k[0] == "channels"} == {"SHM": 1}, "the old process is gone"
    job.log(init(pid=91, comm="0x8"), via("P2P/IPC", pid=91))
    assert sample(collector)["downgraded_routes",] == 0


def test_another_communicator_of_the_same_process_may_use_a_slower_transport(job):
    collector = job.collector()
    job.log(init(), via("P2P/CUMEM"), init(comm="0x2"), via("NET/IB/0/GDRDMA"))
    assert sample(collector)["downgraded_routes",] == 0
    job.log(init(pid=90), via("P2P/CUMEM", pid=90), init(pid=90, comm="0x2"), via("NET/Socket/0", pid=90))
    assert sample(collector)["downgraded_routes",] == 1


def test_transports_are_ordered_from_memory_to_sockets():
    order = ["P2P/CUMEM", "P2P/indirect", "SHM", "NET/IB/GDRDMA", "NET/IB", "NET/Socket"]
    assert sorted(reversed(order), key=grade) == order
    assert grade("P2P/IPC") == grade("P2P/direct pointer")


def test_what_did_not_happen_counts_zero_and_what_is_unknown_is_absent(job):
    found = sample(job.collector())
    assert found["warnings_total", "ib_completion"] == 0
    assert found["watchdog_timeouts_total", "AllReduce"] == 0
    absent = {"channels", "downgraded_routes", "buffers_total", "init_seconds", "slow_collectives_consecutive"}
    assert not absent & {key[0] for key in found}


def test_buffers_are_counted_by_their_alignment_and_one_used_in_place_once(job):
    collector = job.collector()
    text = (
        "AllReduce: opCount 0 sendbuff 0x{} recvbuff 0x{} count 8 datatype 7 op 0 root 0 comm 0x1 [nranks=2] stream 0x2"
    )
    job.log(line(text.format("200", "400")), line(text.format("200", "200")), line(text.format("200", "210")))
    found = sample(collector)
    assert (found["buffers_total", "true"], found["buffers_total", "false"]) == (4, 1)


def test_watchdog_lines_tell_the_operation_and_who_is_behind(job):
    collector = job.collector()
    for rank, enqueued in ((0, 15), (1, 12)):
        job.log(
            f"[rank{rank}]:[E1 ProcessGroupNCCL.cpp:6] [Rank {rank}] Watchdog caught collective operation timeout: "
            "WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=1000) ran for 9 milliseconds\n",
            f"[rank{rank}]:[E1 ProcessGroupNCCL.cpp:6] [PG 0 Rank {rank}] failure detected by watchdog at work "
            f"sequence id: 12 PG status: last enqueued work: {enqueued}, last completed work: 11\n",
        )
    found = sample(collector)
    assert found["watchdog_timeouts_total", "AllReduce"] == 2
    assert (found["last_enqueued_collective", "0"], found["last_enqueued_collective", "1"]) == (15, 12)


def test_synthetic_lines_are_counted_as_such_and_as_nothing_else(job):
    collector = job.collector()
    before = sample(collector)
    job.log(
        "[1] NCCL INFO AllReduce: op=SUM, dtype=FLOAT32, count=1, time=128.4ms (wait=97ms, compute=12ms, comm=19ms)\n",
        "[2] NCCL WARN Timed out waiting for GPU 0 to signal completion (wait > 100ms)\n",
    )
    after = sample(collector)
    changed = {key[0] for key in after if after[key] != before.get(key)}
    assert changed == {"synthetic_lines_total", "log_lines_total", "log_bytes_total"}


def test_the_wait_of_each_rank_comes_from_the_inspector(job):
    collector = job.collector()
    job.record(timing(0, 1, 150_000), timing(1, 1, 30_000), timing(0, 2, 20_000), timing(1, 2, 20_000))
    found = sample(collector)
    assert found["collective_wait_seconds", "AllReduce", "0"] == pytest.approx(0.12)
    assert found["collective_waited_seconds_total", "AllReduce", "1"] == 0
    assert found["collective_seconds_total", "AllReduce", "0"] == pytest.approx(0.17)
    assert (found["collectives_total", "AllReduce", "1"], found["collective_bytes_total", "AllReduce", "1"]) == (
        2,
        2000,
    )
    assert found["wait_limit_seconds",] == 0.1
    assert found["slow_collectives_consecutive", "AllReduce"] == 1
    assert ("collective_wait_seconds", "AllReduce", "0") not in sample(collector, 12_000), "it was long ago"


def test_records_timed_by_the_enqueueing_thread_are_not_taken_for_waits(job):
    collector = job.collector()
    job.record(timing(0, 1, 5, "collective_cpu"), timing(1, 1, 9, "collective_cpu"), "cut off {coll_perf\n")
    found = sample(collector)
    assert found["unmatched_records_total",] == 3
    assert not [key for key in found if key[0].startswith("collective")]


def exchange(rank, sn, us, op="Send", source="kernel_gpu"):
    perf = {
        "p2p": op,
        "p2p_sn": sn,
        "p2p_peer": 1 - rank,
        "p2p_msg_size_bytes": 500,
        "p2p_exec_time_us": us,
        "p2p_timing_source": source,
    }
    return json.dumps({"header": {"id": "0xab", "rank": rank, "n_ranks": 2}, "p2p_perf": perf}) + "\n"


def test_sends_and_receives_are_counted_and_nobody_waits_in_them(job):
    collector = job.collector()
    job.record(exchange(0, 1, 300_000), exchange(0, 2, 500_000), exchange(1, 1, 900_000, "Recv"))
    job.record(exchange(0, 3, 7, source="p2p_cpu"))
    found = sample(collector)
    assert (found["collective_seconds_total", "Send", "0"], found["collectives_total", "Send", "0"]) == (0.8, 2)
    assert (found["collective_seconds_total", "Recv", "1"], found["collective_bytes_total", "Send", "0"]) == (0.9, 1000)
    assert found["unmatched_records_total",] == 1, "the enqueueing thread's"
    assert not [key for key in found if "wait" in key[0] and key != ("wait_limit_seconds",)]


def test_slow_collectives_in_a_row_lead_to_a_request_for_dumps_and_their_times_count(job):
    os.mkfifo(job.folder / "fr_0.pipe")
    reader = os.open(job.folder / "fr_0.pipe", os.O_RDONLY | os.O_NONBLOCK)
    recorder = {"dumps": f"{job.folder}/trace_", "pipes": f"{job.folder}/fr_", "request": True}
    collector = job.collector(flight_recorder=recorder)
    try:
        job.record(*(timing(rank, sn, 200_000 * (1 - rank)) for sn in (1, 2) for rank in (0, 1)))
        assert sample(collector)["flight_recorder_requests_total",] == 0
        job.record(*(timing(rank, 3, 200_000 * (1 - rank)) for rank in (0, 1)))
        assert sample(collector, 2000)["slow_collectives_consecutive", "AllReduce"] == 3
        assert os.read(reader, 9) == b"1"
        assert sample(collector, 3000)["flight_recorder_requests_total",] == 1, "at most one a minute"
    finally:
        os.close(reader)
    for rank, ms in ((0, 400.0), (1, 100.0)):
        entry = {
            "process_group": ("1", "tp"),
            "collective_seq_id": 5,
            "profiling_name": "nccl:all_gather",
            "state": "completed",
            "duration_ms": ms,
        }
        (job.folder / f"trace_{rank}").write_bytes(pickle.dumps({"version": "2.5", "entries": [entry]}, 2))
    found = sample(collector, 4000)
    assert found["collective_wait_seconds", "AllGather", "0"] == pytest.approx(0.3)
    assert found["flight_recorder_dumps_total",] == 2


def test_nothing_to_read_is_said_with_the_change_that_would_help(tmp_path):
    collector = NcclCollector(NcclSettings(proc_root=tmp_path))
    status = collector.probe()
    assert (status.state, status.reason) == (Availability.DEGRADED, "nothing_to_read")
    assert "NCCL_DEBUG_FILE" in status.fix


def test_without_a_log_nothing_is_zero(tmp_path):
    collector = NcclCollector(NcclSettings(proc_root=tmp_path))
    assert set(sample(collector)) == {
        ("wait_limit_seconds",),
        *((f"log_{name}",) for name in ("bytes_total", "lines_total", "skipped_bytes_total", "gaps_total", "files")),
    }


def test_a_configured_log_that_is_not_there_is_said(tmp_path):
    collector = NcclCollector(NcclSettings(proc_root=tmp_path, logs=(f"{tmp_path}/none.log",)))
    assert collector.probe().reason == "no_file_matches"
    log, inspector = collector.findings()
    assert (log.status.state, log.status.reason) == (Availability.UNAVAILABLE, "no_file")
    assert "Inspector" in inspector.status.fix


def test_the_doctor_hears_what_is_followed_and_why_ras_was_not_asked(job):
    collector = job.collector(ras={"enabled": True})
    job.log("[0] [Rank 0] " + "ProcessGroupNCCL.cpp:1] [Rank 0] Watchdog caught collective operation timeout: "
            "WorkNCCL(SeqNum=1, OpType=ALLREDUCE, Timeout(ms)=1) ran for 2 milliseconds\n")  # fmt: skip
    assert sample(collector)["ras_queries_total", "refused"] == 1
    found = {finding.what: finding for finding in collector.findings()}
    assert found["NCCL logs"].status.state is Availability.AVAILABLE
    assert found["NCCL logs"].detail == "1 files match, 1 are followed"
    assert found["NCCL RAS"].detail == "no log has shown that the initialisation is complete"


def test_a_trainer_tells_in_its_environment_where_it_writes(tmp_path):
    """A real process: its NCCL_DEBUG_FILE and its own output are found and read."""
    environment = {
        **os.environ,
        "NCCL_DEBUG_FILE": f"{tmp_path}/nccl.%h.%p.txt",
        "NCCL_INSPECTOR_DUMP_DIR": f"{tmp_path}/i",
    }
    (tmp_path / "i").mkdir()
    (tmp_path / "nccl.gpu-1.41.txt").write_text(via("P2P/IPC"))
    (tmp_path / "i" / "gpu-1-pid41.log").write_text(timing(0, 1, 50))
    says = "print('NCCL version 2.27.5+cuda12.9', flush=True); print(file=sys.stderr, flush=True)"
    code = f"import sys; {says}; sys.stdin.read()"
    with (tmp_path / "out.txt").open("w") as output:
        trainer = subprocess.Popen(
            [sys.executable, "-c", code], env=environment, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.PIPE
        )
    try:
        trainer.stderr.readline()  # comes when it has written
        collector = NcclCollector(NcclSettings())
        assert collector.probe().state is Availability.AVAILABLE
        found = sample(collector)
        assert found["channels", "P2P/IPC"] >= 1
        assert found["info", "2.27.5"] == 1
        assert found["collectives_total", "AllReduce", "0"] == 1
        collector.close()
    finally:
        trainer.communicate(timeout=30)


def run_parse(capsys, *args):
    with pytest.raises(SystemExit) as stop:
        main(["parse", *map(str, args)])
    done = capsys.readouterr()
    return stop.value.code, done.out, done.err


def test_the_command_prints_one_json_object_for_each_recognised_line(job, capsys):
    job.log("epoch 1\n", via("P2P/IPC"), "loss 3\n", line("flux capacitor charged"))
    code, out, _ = run_parse(capsys, "nccl", job.folder / "nccl.log")
    first, second = map(json.loads, out.splitlines())
    assert code in (0, None)
    assert (first["kind"], first["line"], first["transport"], first["pid"]) == ("channel", 2, "P2P/IPC", 40)
    assert (second["kind"], second["line"], second["message"]) == ("other", 4, "flux capacitor charged")


def test_the_command_counts_lines_over_the_whole_of_a_long_file(job, capsys):
    job.log("a line of the program\n" * 100_000, via("SHM/direct"), "x\n" * 600_000, via("P2P/IPC"))
    _, out, _ = run_parse(capsys, "nccl", job.folder / "nccl.log")
    assert [json.loads(row)["line"] for row in out.splitlines()] == [100_001, 700_002]


@pytest.mark.parametrize(
    ("what", "content", "kinds"),
    [
        ("inspector", timing(0, 1, 5).encode() * 2, ["collective_timing"] * 2),
        ("ras", b"NCCL version 2.26.2 compiled with CUDA 12.6\nError", ["ras_version"]),
        ("flight-recorder", b'{"version":"2.10","entries":[{"record_id":1}]}', ["flight_recorder", "flight_entry"]),
    ],
)
def test_the_command_reads_the_other_sources_too(tmp_path, capsys, what, content, kinds):
    (tmp_path / "file").write_bytes(content)
    _, out, _ = run_parse(capsys, what, tmp_path / "file")
    assert [json.loads(row)["kind"] for row in out.splitlines()] == kinds


def test_a_file_that_is_no_dump_ends_the_command_with_an_error(tmp_path, capsys):
    (tmp_path / "file").write_bytes(pickle.dumps(os.getcwd))
    code, out, _ = run_parse(capsys, "flight-recorder", tmp_path / "file")
    assert "not a flight recorder dump" in str(code)
    assert out == ""
