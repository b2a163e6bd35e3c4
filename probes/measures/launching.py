"""What it costs to start work: dispatch, throughput, round trip, a node of a graph; and whether streams overlap."""

from __future__ import annotations

import ctypes
import statistics
import time
from ctypes import byref, c_ulonglong, c_void_p

from probes.device import Device
from probes.reading import Findings, Size

LAUNCHES, ROUND_TRIPS, NODES, REPLAYS = 200, 20, 20, 20
SPIN_NS = 200_000
EMPTY_S = 2e-6
"""Device seconds of an empty kernel, about: too short to time each."""


def latency(device: Device, size: Size, found: Findings) -> None:
    """Host and device side of empty kernels. The cost of calling through ctypes is measured and taken off."""
    kernel = device.kernel("timing", "noop")
    launch = device.driver.function("cuLaunchKernel")
    nothing = (c_void_p * 1)()
    own = _call_cost(device)

    def train(count: int) -> None:
        for _ in range(count):
            launch(kernel, 1, 1, 1, 1, 1, 1, 0, None, nothing, None)

    train(10)
    device.wait()
    began = time.perf_counter()
    train(LAUNCHES)
    queued = time.perf_counter()
    device.wait()
    done = time.perf_counter()
    found.add("launch_dispatch_seconds", max(0.0, (queued - began) / LAUNCHES - own))
    found.add("launch_throughput_seconds", (done - began) / LAUNCHES)
    trips = []
    for _ in range(ROUND_TRIPS):
        began = time.perf_counter()
        train(1)
        device.wait()
        trips.append(time.perf_counter() - began)
    found.add("launch_roundtrip_seconds", statistics.median(trips))
    found.gpu_seconds += (LAUNCHES + ROUND_TRIPS) * EMPTY_S
    if not device.facts.fake:
        found.add("graph_node_seconds", _graph_node(device, kernel))


def _call_cost(device: Device) -> float:
    version, value = device.driver.function("cuDriverGetVersion"), ctypes.c_int()
    began = time.perf_counter()
    for _ in range(LAUNCHES):
        version(byref(value))
    return (time.perf_counter() - began) / LAUNCHES


def _graph_node(device: Device, kernel: c_void_p) -> float:
    """Seconds a node of a graph of empty kernels takes when it is replayed."""
    call = device.driver
    with device.stream() as stream:
        call("cuStreamBeginCapture_v2", stream, 0)
        for _ in range(NODES):
            device.launch(kernel, 1, 1, (), stream)
        graph, ready = c_void_p(), c_void_p()
        call("cuStreamEndCapture", stream, byref(graph))
        try:
            call("cuGraphInstantiateWithFlags", byref(ready), graph, 0)
            try:
                call("cuGraphLaunch", ready, stream)
                call("cuStreamSynchronize", stream)
                began = time.perf_counter()
                for _ in range(REPLAYS):
                    call("cuGraphLaunch", ready, stream)
                call("cuStreamSynchronize", stream)
                return (time.perf_counter() - began) / REPLAYS / NODES
            finally:
                call.function("cuGraphExecDestroy")(ready)
        finally:
            call.function("cuGraphDestroy")(graph)


def streams(device: Device, size: Size, found: Findings) -> None:
    """Two spins of one block on two streams: side by side they take the time of one. The data of a heat map."""
    kernel = device.kernel("timing", "spin")
    with device.stream() as one, device.stream() as two, device.memory(64) as when:
        alone = _spun(device, kernel, [one], when)
        both = _spun(device, kernel, [one, two], when)
        spans = memoryview(device.download(when, 32)).cast("Q").tolist()
    found.add("stream_overlap_ratio", max(0.0, min(1.0, 2 - both / alone)))
    first, last = min(spans[0], spans[2]), max(spans[1], spans[3])
    for index, stream in enumerate(("0", "1")):
        began, ended = spans[2 * index], spans[2 * index + 1]
        found.add("stream_active_ratio", (ended - began) / max(1, last - first), stream=stream)
        found.add("stream_launch_delay_seconds", (began - first) / 1e9, stream=stream)
    shared = max(0, min(spans[1], spans[3]) - max(spans[0], spans[2]))
    found.add("stream_implicit_wait_seconds", max(0.0, (SPIN_NS - shared) / 1e9))
    found.gpu_seconds += 4 * SPIN_NS / 1e9


def _spun(device: Device, kernel: c_void_p, on: list[c_void_p], when: int) -> float:
    """Wall seconds of a spin on each of the streams."""
    device.wait()
    began = time.perf_counter()
    for index, stream in enumerate(on):
        device.launch(kernel, 1, 32, [c_ulonglong(SPIN_NS), c_ulonglong(when + 16 * index)], stream)
    device.wait()
    return time.perf_counter() - began
