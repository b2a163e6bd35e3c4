"""Excerpts of real logs: every line's meaning, written down by hand."""

import os
from pathlib import Path

import pytest

from sidecar.collectors.nccl import ras
from sidecar.collectors.nccl.events import to_json
from sidecar.collectors.nccl.grammar import LogParser

pytestmark = pytest.mark.corpus


def channel(number, connection, a, da, b, db, transport, direction=""):
    return {
        "kind": "channel",
        "channel": number,
        "connection": connection,
        "from_rank": a,
        "from_device": da,
        "to_rank": b,
        "to_device": db,
        "transport": transport,
        "direction": direction,
    }


def other(message):
    return {"kind": "other", "level": "INFO", "message": message}


def timings(rank, ranks, total, **parts):
    return {"kind": "init_timings", "rank": rank, "ranks": ranks, "total_seconds": total, "parts": parts}


def completion(peer, message_end):
    return {
        "kind": "warn",
        "family": "ib_completion",
        "peer": peer,
        "status": "12",
        "where": "ib_plugin.c:1615",
        "device": 4,
        "message": message_end,
    }


MEANINGS = {
    "01_init_2.21_commsplit_socket_shm.txt": {
        1: {"kind": "plugin", "host": "node-a", "pid": 532, "tid": 1764, "device": 1},
        2: {"kind": "network", "network": "Socket"},
        3: {"kind": "split", "parent": "0x56224e876520", "rank": 0, "ranks": 4, "color": 116666945, "key": 0},
        4: {"kind": "split", "comm": "0x7f8298e6e1d0", "rank": 1, "ranks": 4, "key": 1, "device": 1},
        5: {
            "kind": "init",
            "phase": "start",
            "rank": 0,
            "ranks": 4,
            "device": 0,
            "nvml_device": 4,
            "bus_id": "9a000",
            "comm_id": "0xdf334f4a507dd4c1",
        },
        6: channel(7, None, 2, "6", 3, "7", "SHM"),
        7: channel(8, None, 2, "6", 3, "7", "SHM"),
        8: {"kind": "connected", "pattern": "rings", "pid": 532},
        9: {"kind": "connected", "pattern": "rings", "pid": 531},
        10: channel(0, None, 3, "7", 2, "6", "SHM"),
    },
    "02_ray_ansi_prefixed_p2p_ipc.txt": {
        1: {"kind": "driver", "version": 12010, "repeated": 6, "host": "pod-a", "pid": 5310, "device": 7},
        2: {"kind": "bootstrap", "interface": "eth0", "address": "10.0.0.79<0>", "repeated": 6},
        3: channel(0, 0, 0, "101c0", 1, "101d0", "P2P/IPC"),
        4: channel(1, 0, 0, "101c0", 1, "101d0", "P2P/IPC"),
        5: {
            "kind": "plugin",
            "message": "Plugin Path : /opt/hpcx/nccl_rdma_sharp_plugin/lib/libnccl-net.so",
            "repeated": 6,
        },
        6: {"kind": "plugin", "message": "P2P plugin IBext", "repeated": 6},
        7: {"kind": "net_devices", "network": "IB", "devices": (), "repeated": 12},
    },
    "03_vllm_mixed_app_lines_2.21.5.txt": {
        3: {"kind": "bootstrap", "interface": "wlan0", "address": "10.0.0.19<0>"},
        4: {"kind": "plugin", "message": "NET/Plugin: No plugin found (libnccl-net.so)"},
        5: {"kind": "plugin"},
        6: {"kind": "plugin", "message": "NET/Plugin: Using internal network plugin."},
        7: {"kind": "driver", "version": 12060, "device": 0},
        8: {"kind": "version", "version": "2.21.5", "cuda": "12.4"},
        9: {"kind": "driver", "version": 12060, "device": 1},
    },
    "05_b200_init_channels.txt": {
        1: other("Check P2P Type intraNodeP2pSupport 1 directMode 0"),
        2: other("[Proxy Service] Device 6 CPU core 104"),
        3: other("threadThresholds 8/8/64 | 64/8/64 | 512 | 512"),
        4: {
            "kind": "channel_counts",
            "counts": {"coll": 32, "collnet": 32, "nvls": 32, "p2p": 32, "p2p_per_peer": 32},
        },
    },
    "06_init_timings_2.22.txt": {
        1: timings(
            5, 8, 2.46, kernels=0.18, bootstrap=1.6, allgathers=0, topo=0.52, graphs=0.01, connections=0.12, rest=0.02
        ),
        2: timings(
            6, 8, 2.45, kernels=0.18, bootstrap=1.61, allgathers=0, topo=0.52, graphs=0.01, connections=0.12, rest=0.02
        ),
    },
    "07_warn_netib_completion_plugin.txt": {
        2: completion(
            "10.0.0.59<44206>",
            "NET/IB : Got completion from peer 10.0.0.59<44206> with status=12 opcode=129 len=65536 vendor err 129 "
            "(Recv) localGid ::ffff:10.0.1.182 remoteGids::ffff:10.0.1.221",
        ),
        3: {"kind": "unwind", "where": "transport/net.cc:1298", "result": 6},
        4: {"kind": "unwind", "where": "proxy.cc:694", "result": 6},
        5: {"kind": "unwind", "where": "proxy.cc:874", "result": 6},
        7: completion(
            "10.0.0.236<54862>",
            "NET/IB : Got completion from peer 10.0.0.236<54862> with status=12 opcode=0 len=0 vendor err 129 (Recv) "
            "localGid fd00:0:0:5000:4:200:3:ff22 remoteGidsfd00:0:0:5000:4:200:3:ff1f",
        ),
    },
    "09_graph_topology_h20.txt": {
        1: {"kind": "affinity", "gpu": 1, "mask": "02,00000000,00000000,00000002"},
        2: {
            "kind": "pattern",
            "pattern": 4,
            "cross_nic": 1,
            "channels": 4,
            "intra_gbs": 24.0,
            "inter_gbs": 24.0,
            "link": "NVL/PIX",
        },
        3: other(" 0 : NET/3 GPU/0 GPU/1 NET/2"),
        4: other(" 1 : NET/2 GPU/1 GPU/0 NET/3"),
        5: {"kind": "environment", "name": "NCCL_PXN_DISABLE", "value": "1"},
        6: other("=== System : maxBw 48.0 totalBw 370.8 ==="),
        7: other("CPU/0 (1/1/2)"),
        8: other("+ PCI[48.0] - PCI/16000 (1000c0301000100b)"),
        9: {"kind": "other"},
        10: {"kind": "other"},
        11: {"kind": "other"},
        12: {"kind": "other"},
    },
    "10_graph_nvls_heads_h100.txt": {
        1: {"kind": "pattern", "pattern": 5, "channels": 7, "intra_gbs": 3.0, "link": "NVL/PHB"},
        2: {"kind": "other"},
        3: {
            "kind": "comm_shape",
            "comm": "0x55d35c3a9ec0",
            "rank": 0,
            "ranks": 16,
            "nodes": 2,
            "local_ranks": 8,
            "local_rank": 0,
        },
        4: other("NVLS Head  0:  0  8"),
    },
    "12_legacy_2.8_gdrdma.txt": {
        1: {"kind": "net_devices", "network": "IB", "devices": ("mlx5_bond_0:1/RoCE",)},
        2: {"kind": "network", "network": "IB"},
        3: {"kind": "version", "version": "2.8.3", "cuda": "10.2"},
        4: channel(3, None, 15, "b2000", 6, "b1000", "NET/IB/GDRDMA", "send"),
        5: channel(3, None, 9, "1b000", 8, "1a000", "P2P/direct pointer"),
    },
    "13_torch_watchdog_2.4_tagged.txt": {
        1: {
            "kind": "watchdog_timeout",
            "rank": 0,
            "op": "ALLREDUCE",
            "sequence": 1580,
            "elements_in": 466119168,
            "elements_out": 466119168,
            "timeout_seconds": 600.0,
            "ran_seconds": 600.06,
        },
        2: {
            "kind": "watchdog_status",
            "rank": 0,
            "group": "1",
            "failed": 1580,
            "last_enqueued": 1582,
            "last_completed": 1579,
        },
    },
    "14_torch_watchdog_2.5.txt": {
        1: {
            "kind": "watchdog_timeout",
            "rank": 1,
            "op": "ALLREDUCE",
            "sequence": 808,
            "elements_in": 9801523,
            "timeout_seconds": 600.0,
            "ran_seconds": 600.02,
        },
        2: {
            "kind": "watchdog_status",
            "rank": 1,
            "group": "0(default_pg)",
            "failed": 808,
            "last_enqueued": 811,
            "last_completed": 807,
        },
        3: {"kind": "watchdog_other", "rank": 3, "group": "1", "topic": "dump_timeout"},
        4: {"kind": "watchdog_other", "rank": 4, "topic": "data_inconsistent"},
        5: {"kind": "watchdog_other", "rank": 4, "topic": "abort"},
    },
    "19_ras_socket_lines_and_crash_2.26.2.txt": {
        1: {"kind": "environment", "name": "NCCL_IB_FIFO_TC", "value": "224"},
        2: {"kind": "other", "pid": 1886888, "device": 7},
        3: {"kind": "ras_listening", "address": "::1<28028>"},
    },
    "20_profiler_example_plugin_trace.txt": {},
    "22_docs_2.30_warn_timestamp_and_nvls.txt": {
        1: {"kind": "version", "version": "2.30.3", "cuda": "13.0"},
        2: {
            "kind": "warn",
            "timestamp": "2026-05-05 06:16:47",
            "host": "node-01",
            "device": 3,
            "where": "plugin/net.cc:334",
            "family": "plugin",
            "message": "Failed to initialize any NET plugin",
        },
        3: {
            "kind": "init",
            "phase": "start",
            "comm": "0x55",
            "rank": 0,
            "ranks": 2,
            "nvml_device": 0,
            "bus_id": "1000",
            "comm_id": "0x66",
        },
        4: channel(0, 0, 0, "0", 1, "1", "P2P/CUMEM"),
        5: channel(0, 0, 0, "0", 1, "1", "NET/Socket", "send"),
        6: {
            "kind": "algorithm",
            "op": "AllReduce",
            "size_bytes": 33554432,
            "algorithm": "RING",
            "protocol": "SIMPLE",
            "channels": (0, 31),
        },
        7: {
            "kind": "collective",
            "op": "AllReduce",
            "op_count": 0,
            "send_buffer": 1,
            "receive_buffer": 2,
            "elements": 2,
            "datatype": 7,
            "root": 0,
            "comm": "0x3",
            "ranks": 2,
            "aligned": False,
        },
        8: timings(
            0,
            2,
            0.37,
            kernels=0.28,
            alloc=0.05,
            bootstrap=0,
            allgathers=0,
            topo=0.03,
            graphs=0,
            connections=0.01,
            rest=0,
        ),
        9: other("NVLS Created Multicast group 0x5 nranks 8 size 2097152 on rank 0"),
        10: {"kind": "call", "call": "ncclGroupStart()", "pid": 986207},
    },
}

REPORTS = {
    "16_ras_text_mismatch_2.26.2.txt": {
        1: {"kind": "ras_version", "version": "2.26.2", "cuda": "12.6"},
        2: {"kind": "ras_driver", "runtime": 12060, "driver": 12060},
        9: {"kind": "ras_job", "nodes": 4, "processes_per_node": "8", "processes": 32, "gpus": 32},
        16: {"kind": "ras_group", "communicators": 1, "ranks": 32, "status": "RUNNING", "errors": "MISMATCH"},
        24: {"kind": "ras_problem", "communicator": "0-0", "hash": "fa93daea854b060b", "problem": "MISMATCH"},
        25: {"kind": "ras_mismatch", "op": "AllGather"},
        26: {"kind": "ras_launched", "ranks": 30, "operation": 640},
        27: {"kind": "ras_launched", "ranks": 2, "operation": 641},
        28: {"kind": "ras_rank", "rank": 12, "gpu": "4", "pid": 323032, "node": "10.0.0.124"},
        29: {"kind": "ras_rank", "rank": 13, "gpu": "5", "pid": 323033, "node": "10.0.0.124"},
    },
    "18_ras_text_ok_during_hang_2.26.2.txt": {
        1: {"kind": "ras_version", "version": "2.26.2", "cuda": "12.4"},
        2: {"kind": "ras_driver", "runtime": 12040, "driver": 12040},
        9: {"kind": "ras_job", "nodes": 32, "gpus": 256},
        16: {"kind": "ras_group", "ranks": 256, "status": "RUNNING", "errors": "OK"},
    },
}


@pytest.fixture(scope="module")
def excerpts():
    folder = os.environ.get("SPIKEWATCH_CORPUS")
    if not folder or not (Path(folder) / "nccl_logs").is_dir():
        pytest.skip("SPIKEWATCH_CORPUS is not set to a folder with nccl_logs/")
    return Path(folder) / "nccl_logs"


def agree(found, wanted):
    """The same lines are recognised, and each says what was written down."""
    assert [event["line"] for event in found] == sorted(wanted)
    for event in found:
        expected = wanted[event["line"]]
        assert {key: event.get(key) for key in expected} == expected


@pytest.mark.parametrize("name", sorted(MEANINGS))
def test_every_line_of_a_real_log_means_what_a_reader_says(excerpts, name):
    text = (excerpts / name).read_text()
    agree([to_json(event) for event in LogParser().parse(text)], MEANINGS[name])


@pytest.mark.parametrize("name", sorted(REPORTS))
def test_every_line_of_a_real_ras_report_means_what_a_reader_says(excerpts, name):
    agree([to_json(event) for event in ras.parse((excerpts / name).read_text())], REPORTS[name])


def test_no_excerpt_was_left_out(excerpts):
    assert {path.name for path in excerpts.glob("*.txt")} == set(MEANINGS) | set(REPORTS)
