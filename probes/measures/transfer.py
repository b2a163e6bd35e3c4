"""Between host, device and peers: copies, copies beside a kernel, and what can be allocated in one piece."""

from __future__ import annotations

import ctypes
import time
from ctypes import byref, c_int, c_ulonglong, c_void_p

from probes.device import Device
from probes.driver import CudaError
from probes.reading import Findings, Size
from probes.timing import Stopwatch

HEADROOM, SHARE = 2 << 30, 20
"""Bytes, and one so-many-th of the memory: what the search for a large piece leaves to the trainer."""
PIECE = 2 << 20


def host_copies(device: Device, size: Size, found: Findings) -> None:
    """Host to device from pinned and pageable memory, alone and beside a kernel that takes as long."""
    length = min(size.footprint // 2, 16 << 20)
    with device.memory(length) as there, device.memory(32) as when, device.stream() as a, device.stream() as b:
        with device.pinned(length) as host:
            ctypes.memset(host, 1, length)
            _copies(device, found, (host, there, length, when), (a, b), "pinned")
        pageable = ctypes.create_string_buffer(length)
        _copies(device, found, (ctypes.addressof(pageable), there, length, when), (a, b), "pageable")


def _copies(
    device: Device, found: Findings, what: tuple[int, int, int, int], on: tuple[c_void_p, c_void_p], memory: str
) -> None:
    host, there, length, when = what
    spin = device.kernel("timing", "spin")

    def copy() -> None:
        device.driver("cuMemcpyHtoDAsync_v2", there, host, length, on[0])

    copy()
    alone = min(_wall(device, copy) for _ in range(3))
    ns = min(int(alone * 1e9), 2_000_000)

    def kernel() -> None:
        device.launch(spin, 1, 32, [c_ulonglong(ns), c_ulonglong(when)], on[1])

    def both() -> None:
        copy()
        kernel()

    beside = min(_wall(device, kernel) for _ in range(3))
    together = min(_wall(device, both) for _ in range(3))
    found.add("h2d_bytes_per_second", length / alone, memory=memory)
    overlap = (alone + beside - together) / max(alone, beside, 1e-9)
    found.add("copy_compute_overlap_ratio", max(0.0, min(1.0, overlap)), memory=memory)
    found.gpu_seconds += 6 * ns / 1e9


def _wall(device: Device, run: object) -> float:
    assert callable(run)
    device.wait()
    began = time.perf_counter()
    run()
    device.wait()
    return time.perf_counter() - began


def peers(device: Device, size: Size, found: Findings) -> None:
    """Reads a peer's memory by this device's threads, where the two can reach each other."""
    devices = c_int()
    device.driver("cuDeviceGetCount", byref(devices))
    for index in range(devices.value):
        if index == device.facts.index:
            continue
        able = c_int()
        device.driver("cuDeviceCanAccessPeer", byref(able), device.facts.index, index)
        if able.value:
            _peer(device, size, found, index)


def _peer(device: Device, size: Size, found: Findings, index: int) -> None:
    length = min(size.footprint, 32 << 20)
    here = device.context
    with Device(device.driver, index) as other, other.memory(length) as far:
        device.driver("cuCtxSetCurrent", here)
        device.driver("cuCtxEnablePeerAccess", other.context, 0)
        with Stopwatch(device) as watch, device.memory(64) as out:
            kernel = device.kernel("memory", "read_vec4")
            arguments = [c_ulonglong(out), c_ulonglong(far), c_ulonglong(length // 16), ctypes.c_uint(1)]
            took = watch.time(lambda: device.launch(kernel, size.blocks, size.threads, arguments), 3)
        found.add("p2p_bytes_per_second", length / took.best, peer=other.facts.uuid, path="sm")
        found.gpu_seconds += took.total
        device.driver("cuCtxSetCurrent", other.context)
    device.driver("cuCtxSetCurrent", here)


def allocatable(device: Device, size: Size, found: Findings) -> None:
    """The largest piece that can be had at once, by bisection, leaving the trainer's headroom alone."""
    free = device.free_bytes()
    allowed = free - max(HEADROOM, device.facts.total_bytes // SHARE)
    if device.facts.fake:
        allowed = min(free, 64 << 20)
    low, high = 0, max(0, allowed) // PIECE
    while low < high:
        middle = (low + high + 1) // 2
        try:
            with device.memory(middle * PIECE):
                low = middle
        except CudaError as e:
            if e.code != 2:
                raise
            high = middle - 1
    found.add("allocatable_contiguous_bytes", float(low * PIECE))
    if allowed > 0:
        found.add("allocatable_ratio", low * PIECE / (allowed // PIECE * PIECE or 1))
