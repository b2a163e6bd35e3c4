"""Interfaces, TCP and RDMA ports: the kernel's own files here, and its layout where there is no such device."""

import socket
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.collectors.machine.network import NetworkCollector, NetworkSettings
from sidecar.errors import CollectError
from sidecar.model import Availability

DEV = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo: 100 1 0 0 0 0 0 0 100 1 0 0 0 0 0 0
  eth0:1000 10 1 2 0 0 0 0 2000 20 3 4 0 0 0 0
"""
SNMP = "Ip: a b\nIp: 1 2\nTcp: MaxConn InSegs OutSegs RetransSegs\nTcp: -1 90 100 5\nUdp: x\nUdp: 1\n"


@pytest.fixture
def machine(tmp_path):
    (tmp_path / "proc/net").mkdir(parents=True)
    (tmp_path / "proc/net/dev").write_text(DEV)
    (tmp_path / "proc/net/snmp").write_text(SNMP)

    def port(device, files, number="1"):
        for name, content in files.items():
            path = tmp_path / "sys/class/infiniband" / device / "ports" / number / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)

    port("mlx5_0", {"state": "4: ACTIVE\n", "counters/port_rcv_data": "250\n", "counters/port_xmit_data": "500\n"})
    port("mlx5_0", {"hw_counters/out_of_sequence": "7\n", "counters/port_xmit_wait": "9\n"})
    port("rdmap0", {"hw_counters/rx_bytes": "11\n", "hw_counters/tx_bytes": "22\n", "counters/port_rcv_data": "0\n"})
    port("rdmap0", {"state": "1: DOWN\n"})
    return tmp_path


def made(root, **more):
    return NetworkCollector(NetworkSettings(proc_root=root / "proc", sys_root=root / "sys", **more))


def sample(collector):
    declared = {info.name: set(info.labels) for info in collector.metrics}
    found = {}
    for s in collector.sample(0):
        assert {name for name, _ in s.labels} == declared[s.metric], s.metric
        assert list(s.labels) == sorted(s.labels)
        found[(s.metric.removeprefix("spikewatch_"), *(v for _, v in s.labels))] = s.value
    return found


def test_interfaces_are_counted_and_the_loopback_is_not(machine):
    found = sample(made(machine))
    assert (found["network_receive_bytes_total", "eth0"], found["network_transmit_bytes_total", "eth0"]) == (1000, 2000)
    assert (found["network_receive_drops_total", "eth0"], found["network_transmit_errors_total", "eth0"]) == (2, 3)
    assert not [key for key in found if "lo" in key]


def test_tcp_retransmissions_are_counted(machine):
    found = sample(made(machine))
    assert (found["network_tcp_segments_sent_total",], found["network_tcp_retransmitted_segments_total",]) == (100, 5)


def test_rdma_ports_count_words_of_four_bytes_or_bytes_of_their_own(machine):
    found = sample(made(machine))
    assert (found["rdma_receive_bytes_total", "mlx5_0", "1"], found["rdma_transmit_bytes_total", "mlx5_0", "1"]) == (
        1000,
        2000,
    )
    assert (found["rdma_receive_bytes_total", "rdmap0", "1"], found["rdma_transmit_bytes_total", "rdmap0", "1"]) == (
        11,
        22,
    )
    assert found["rdma_errors_total", "out_of_sequence", "mlx5_0", "1"] == 7
    assert (found["rdma_port_active", "mlx5_0", "1"], found["rdma_port_active", "rdmap0", "1"]) == (1, 0)


def test_a_node_with_very_many_interfaces_is_cut_off(machine):
    rows = "".join(f"  veth{n}: " + "1 " * 16 + "\n" for n in range(100))
    (machine / "proc/net/dev").write_text(DEV + rows)
    found = sample(made(machine, max_interfaces=3))
    assert {key[1] for key in found if key[0] == "network_receive_bytes_total"} == {"eth0", "veth0", "veth1"}


def test_a_machine_without_rdma_is_available_and_says_so(tmp_path, machine):
    collector = NetworkCollector(NetworkSettings(proc_root=machine / "proc", sys_root=tmp_path / "none"))
    assert collector.probe().state is Availability.AVAILABLE
    assert [(f.status.state, f.status.reason) for f in collector.findings()] == [
        (Availability.UNAVAILABLE, "no_rdma_port")
    ]
    assert not [key for key in sample(collector) if key[0].startswith("rdma")]


def test_without_proc_net_it_is_unavailable(tmp_path):
    collector = made(tmp_path)
    assert collector.probe().state is Availability.UNAVAILABLE
    with pytest.raises(CollectError, match="no_proc_net|cannot be read"):
        list(collector.sample(0))


def test_what_this_machine_sends_is_counted():
    collector = NetworkCollector(NetworkSettings())
    before = sample(collector)["network_tcp_segments_sent_total",]
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        with accepted:
            client.sendall(b"x")
            assert accepted.recv(1) == b"x"
    assert sample(collector)["network_tcp_segments_sent_total",] > before


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=100), st.text(max_size=100))
def test_no_content_of_the_files_makes_it_raise(tmp_path_factory, dev, snmp):
    root = tmp_path_factory.mktemp("net")
    (root / "proc/net").mkdir(parents=True)
    Path(root / "proc/net/dev").write_bytes(b"a\nb\n" + dev.encode("utf-8", "surrogatepass"))
    Path(root / "proc/net/snmp").write_bytes(b"Tcp: OutSegs\nTcp: " + snmp.encode("utf-8", "surrogatepass"))
    sample(made(root))
