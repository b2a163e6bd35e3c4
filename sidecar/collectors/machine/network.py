"""The collector `network`: interfaces, TCP retransmissions, and RDMA ports, which the interfaces do not see."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from sidecar.collectors.machine.groups import number, text, whole
from sidecar.errors import CollectError
from sidecar.hooks import CollectorSettings
from sidecar.model import Availability, Evidence, Finding, MetricInfo, Sample, Status
from sidecar.settings import Duration

KERNEL = Evidence("device", "2026-11-29", "Linux 6.18")
LAYOUT = Evidence("fake", "2026-11-29", "files in the kernel's layout; no RDMA device here")

_WORD = 4  # the IB counters of data count words of four bytes
_RDMA = "class/infiniband"
# Files of counters/ and hw_counters/ that tell of trouble; which of them exist depends on the device.
RDMA_ERRORS = (
    "symbol_error",
    "link_downed",
    "link_error_recovery",
    "port_rcv_errors",
    "port_xmit_discards",
    "port_xmit_wait",
    "out_of_sequence",
    "packet_seq_err",
    "rnr_nak_retry_err",
    "local_ack_timeout_err",
    "roce_adp_retrans",
    "req_transport_retries_exceeded",
    "retrans_timeout_events",
    "rx_drops",
)

_PORT = ("device", "port")


def _info(
    name: str,
    unit: str,
    help_: str,
    labels: tuple[str, ...],
    source: str,
    scope: Literal["pod", "device"] = "pod",
    verified: Evidence = KERNEL,
) -> MetricInfo:
    kind: Literal["counter", "gauge"] = "counter" if name.endswith("_total") else "gauge"
    return MetricInfo(f"spikewatch_{name}", kind, unit, help_, labels, source, scope, "exact", verified)


METRICS: tuple[MetricInfo, ...] = (
    *(
        _info(f"network_{name}", unit, help_, ("interface",), "/proc/net/dev")
        for name, unit, help_ in (
            ("receive_bytes_total", "bytes", "Bytes received. RDMA is not in it."),
            ("transmit_bytes_total", "bytes", "Bytes sent. RDMA is not in it."),
            ("receive_errors_total", "", "Packets received with an error."),
            ("transmit_errors_total", "", "Packets that could not be sent."),
            ("receive_drops_total", "", "Packets received and dropped."),
            ("transmit_drops_total", "", "Packets dropped instead of sent."),
        )
    ),
    _info("network_tcp_segments_sent_total", "", "TCP segments sent.", (), "/proc/net/snmp"),
    _info("network_tcp_retransmitted_segments_total", "", "TCP segments sent again.", (), "/proc/net/snmp"),
    _info("rdma_receive_bytes_total", "bytes", "Bytes an RDMA port received.", _PORT, _RDMA, "device", LAYOUT),
    _info("rdma_transmit_bytes_total", "bytes", "Bytes an RDMA port sent.", _PORT, _RDMA, "device", LAYOUT),
    _info("rdma_errors_total", "", "What went wrong at an RDMA port.", (*_PORT, "counter"), _RDMA, "device", LAYOUT),
    _info("rdma_port_active", "", "Whether the port's link is up.", _PORT, _RDMA, "device", LAYOUT),
)


class NetworkSettings(CollectorSettings):
    """`collectors: {network: …}`."""

    interval: Duration = Field(1_000, ge=50)
    max_interfaces: int = Field(32, ge=1, le=1024)
    proc_root: Path = Path("/proc")
    sys_root: Path = Path("/sys")


class NetworkCollector:
    """The containers of a pod share their network, so what we see of it is the trainer's."""

    name: ClassVar[str] = "network"
    settings: ClassVar[type[CollectorSettings]] = NetworkSettings
    metrics: ClassVar[tuple[MetricInfo, ...]] = METRICS

    def __init__(self, settings: NetworkSettings) -> None:
        self._settings = settings

    def probe(self) -> Status:
        """Whether the kernel shows the network."""
        if text(self._settings.proc_root / "net/dev") is None:
            return Status(Availability.UNAVAILABLE, "no_proc_net", "mount /proc into the container")
        return Status(Availability.AVAILABLE)

    def sample(self, now_ms: int) -> Iterable[Sample]:
        """Every interface but the loopback, TCP, and every RDMA port. Raises CollectError."""
        proc = self._settings.proc_root / "net"
        interfaces = text(proc / "dev")
        if interfaces is None:
            raise CollectError(self.name, "no_proc_net", f"{proc}/dev cannot be read")
        yield from _interfaces(interfaces, self._settings.max_interfaces)
        yield from _tcp(text(proc / "snmp") or "")
        yield from _ports(self._settings.sys_root / _RDMA)

    def findings(self) -> Iterator[Finding]:
        """For `spikewatch doctor`."""
        found = [path for path in (self._settings.sys_root / _RDMA).glob("*/ports/*")]
        state = Availability.AVAILABLE if found else Availability.UNAVAILABLE
        fix = "" if found else "none is needed where the nodes have no RDMA; else mount /sys of the node read-only"
        yield Finding("RDMA ports", Status(state, "" if found else "no_rdma_port", fix), f"{len(found)} ports")

    def close(self) -> None:
        """Holds nothing."""


def _interfaces(content: str, limit: int) -> Iterator[Sample]:
    for line in content.splitlines()[2:]:
        name, _, rest = line.partition(":")
        words = rest.split()
        if name.strip() == "lo" or len(words) < 12 or limit <= 0:
            continue
        limit -= 1
        labels = (("interface", name.strip()),)
        for metric, at in (
            ("receive_bytes_total", 0),
            ("receive_errors_total", 2),
            ("receive_drops_total", 3),
            ("transmit_bytes_total", 8),
            ("transmit_errors_total", 10),
            ("transmit_drops_total", 11),
        ):
            value = whole(words[at])
            if value is not None:
                yield Sample(f"spikewatch_network_{metric}", labels, value)


def _tcp(content: str) -> Iterator[Sample]:
    lines = [line.split() for line in content.splitlines() if line.startswith("Tcp:")]
    if len(lines) < 2:
        return
    values = dict(zip(lines[0], lines[1], strict=False))
    for metric, key in (("segments_sent_total", "OutSegs"), ("retransmitted_segments_total", "RetransSegs")):
        value = whole(values.get(key, ""))
        if value is not None:
            yield Sample(f"spikewatch_network_tcp_{metric}", (), value)


def _ports(root: Path) -> Iterator[Sample]:
    try:
        devices = sorted(os.listdir(root))
    except OSError:
        return  # no RDMA here
    for device in devices:
        try:
            ports = sorted(os.listdir(root / device / "ports"))
        except OSError:
            continue
        for port in ports:
            yield from _port(root / device / "ports" / port, (("device", device), ("port", port)))


def _port(folder: Path, labels: tuple[tuple[str, str], ...]) -> Iterator[Sample]:
    for metric, words, plain in (
        ("receive_bytes_total", "port_rcv_data", "rx_bytes"),
        ("transmit_bytes_total", "port_xmit_data", "tx_bytes"),
    ):
        value = number(folder / "counters" / words)
        # some network cards for clouds (EFA) count bytes, elsewhere, and leave the standard counter out or at 0
        own = number(folder / "hw_counters" / plain)
        if own is not None or value is not None:
            yield Sample(f"spikewatch_rdma_{metric}", labels, own if own is not None else (value or 0) * _WORD)
    for name in RDMA_ERRORS:
        for place in ("counters", "hw_counters"):
            count = number(folder / place / name)
            if count is not None:
                yield Sample("spikewatch_rdma_errors_total", (("counter", name), *labels), count)
                break
    state = text(folder / "state")
    if state is not None:
        yield Sample("spikewatch_rdma_port_active", labels, float("ACTIVE" in state))
