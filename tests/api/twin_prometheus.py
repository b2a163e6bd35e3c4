"""A real Prometheus beside a listener of ours, both with the same samples."""

import json
import socket
import struct
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from sidecar.model import labels_of
from sidecar.store import Store

START_MS = (time.time_ns() // 60_000_000_000 - 3) * 60_000
"""A few minutes ago: what is much older Prometheus may move to its disk, where it is in another order."""


@dataclass(frozen=True)
class Line:
    """One series with its samples as (milliseconds after START_MS, value)."""

    metric: str
    labels: dict
    samples: tuple


def samples():
    """Counters and gauges with every kind of number and of label value that is spelled in its own way."""
    for factor, instance in enumerate("bac", start=1):
        points = tuple((i * 1000, float(i * factor)) for i in range(120))
        yield Line("requests_total", {"instance": instance, "job": "x"}, points)
    yield Line("gauge", {"instance": "a", "zone": "<z>"}, tuple((i * 1000 + 250, float(i % 7)) for i in range(30)))
    yield Line("ended", {"instance": "a"}, ((0, 1.0), (10_000, 2.0)))
    odd = (0.1, 1e-7, 1e21, float("nan"), float("inf"), float("-inf"), -0.0, 1e-5, 123456789012345680000.0, 1 / 3)
    for n, value in enumerate((*odd, 5e-324, 1.5e300, -1e-6, 1e16, 123456.75)):
        yield Line("odd", {"n": f"{n:02}"}, ((59_000, value),))
    yield Line("weird", {"l": '<a>&"\\\n\t\u2028é\x01\x7f'}, ((59_000, 1.0),))
    for le, count in (("0.1", 3), ("1", 7), ("+Inf", 10)):
        points = tuple((i * 1000, float(i * count)) for i in range(60))
        yield Line("latency_seconds_bucket", {"le": le}, points)


def store_of(lines):
    """Our store with the samples."""
    store = Store()
    moments = {}
    for line in lines:
        handle = store.series(line.metric, line.labels)
        for offset, value in line.samples:
            moments.setdefault((offset, handle.block), {})[handle.column] = value
    for (offset, block), values in sorted(moments.items(), key=lambda item: item[0]):
        store.push(block, START_MS + offset, values)
    return store


def remote_write(lines):
    """The samples as a body of the remote write protocol: protocol buffers, inside a snappy frame of literals."""
    raw = b"".join(_field(1, _series(line)) for line in lines)
    pieces = [raw[i : i + 60_000] for i in range(0, len(raw), 60_000)]
    return _varint(len(raw)) + b"".join(b"\xf4" + struct.pack("<H", len(p) - 1) + p for p in pieces)


def _series(line):
    labels = labels_of({**line.labels, "__name__": line.metric})
    body = b"".join(_field(1, _field(1, name.encode()) + _field(2, value.encode())) for name, value in labels)
    for offset, value in line.samples:
        body += _field(2, b"\x09" + struct.pack("<d", value) + b"\x10" + _varint(START_MS + offset))
    return body


def _field(number, content):
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(number):
    out = b""
    while number >= 128:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


@contextmanager
def prometheus(binary, folder, config=None):
    """A client of a real one."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{s.getsockname()[1]}"
    Path(folder, "prometheus.yml").write_text(json.dumps(config or {"global": {"evaluation_interval": "1s"}}))
    process = subprocess.Popen(
        [
            binary,
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/tsdb",
            f"--web.listen-address={address}",
            "--web.enable-remote-write-receiver",
        ],
        stderr=subprocess.DEVNULL,
    )
    try:
        with httpx.Client(base_url=f"http://{address}", trust_env=False, timeout=10) as client:
            _wait(client)
            yield client
    finally:
        process.kill()
        process.wait(10)


def _wait(client):
    until = time.monotonic() + 15
    while True:
        try:
            if client.get("/-/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        assert time.monotonic() < until, "Prometheus did not get ready"
        time.sleep(0.02)


def fill(client, lines):
    """Sends the samples to a real one."""
    headers = {"Content-Encoding": "snappy", "Content-Type": "application/x-protobuf"}
    answer = client.post("/api/v1/write", content=remote_write(lines), headers=headers)
    assert answer.status_code == 204, answer.text
