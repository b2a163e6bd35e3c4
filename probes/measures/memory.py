"""Device memory: contiguous read and copy, strides, alignment, the L2 cache, a reduction's local part."""

from __future__ import annotations

import random
from ctypes import c_uint, c_ulonglong

from probes.device import Device
from probes.reading import Findings, Size, Wrong
from probes.timing import Stopwatch

STRIDES = (1, 2, 4, 8, 16, 32, 64)
OFFSETS = (0, 4, 32, 64, 124)
_CHECKED_VECTORS = 512


def noise(size: int, seed: int = 1) -> bytes:
    """Random bytes: zeros would be moved and multiplied with less power, and faster."""
    return random.Random(seed).randbytes(size)


def fill(device: Device, address: int, size: int) -> None:
    """The same MiB of noise over and over."""
    piece = noise(min(size, 1 << 20))
    for at in range(0, size, len(piece)):
        device.upload(address + at, piece[: size - at])


def contiguous(device: Device, size: Size, found: Findings) -> None:
    """Reads and copies with 16-byte loads: bytes are 1 × and 2 × what is covered."""
    _verify(device)
    half = size.footprint // 2
    with Stopwatch(device) as watch, device.memory(size.footprint) as data, device.memory(64) as out:
        fill(device, data, size.footprint)
        vectors = size.footprint // 16
        read = device.kernel("memory", "read_vec4")
        arguments = [c_ulonglong(out), c_ulonglong(data), c_ulonglong(vectors), c_uint(1)]
        took = watch.time(lambda: device.launch(read, size.blocks, size.threads, arguments))
        found.add("memory_read_bytes_per_second", size.footprint / took.best, statistic="best")
        found.add("memory_read_bytes_per_second", size.footprint / took.median, statistic="median")
        found.gpu_seconds += took.total
        copy = device.kernel("memory", "copy_vec4")
        there = [c_ulonglong(data + half), c_ulonglong(data), c_ulonglong(half // 16)]
        took = watch.time(lambda: device.launch(copy, size.blocks, size.threads, there))
        found.add("memory_copy_bytes_per_second", 2 * half / took.best, statistic="best")
        found.add("memory_copy_bytes_per_second", 2 * half / took.median, statistic="median")
        found.gpu_seconds += took.total


def _verify(device: Device) -> None:
    """Once a child: the fold of random data that the device computes is the host's. Raises Wrong."""
    data = noise(16 * _CHECKED_VECTORS, seed=7)
    threads = 64
    with device.memory(len(data)) as source, device.memory(4 * threads) as out:
        device.upload(source, data)
        kernel = device.kernel("memory", "read_vec4_checked")
        device.launch(kernel, 1, threads, [c_ulonglong(out), c_ulonglong(source), c_ulonglong(_CHECKED_VECTORS)])
        device.wait()
        folded = memoryview(device.download(out, 4 * threads)).cast("I").tolist()
    words = memoryview(data).cast("I").tolist()
    wanted = [0] * threads
    for vector in range(_CHECKED_VECTORS):
        a, b, c, d = words[4 * vector : 4 * vector + 4]
        wanted[vector % threads] ^= a ^ b ^ c ^ d
    if folded != wanted:
        raise Wrong("reading memory gave other values than were written")


def strides(device: Device, size: Size, found: Findings) -> None:
    """Useful bytes of words apart from each other, as a share of those next to each other; constant footprint."""
    with Stopwatch(device) as watch, device.memory(size.footprint) as data, device.memory(64) as out:
        fill(device, data, size.footprint)
        kernel = device.kernel("memory", "strided_read")
        speeds = {}
        for stride in STRIDES:
            words = size.footprint // 4 // stride
            arguments = [c_ulonglong(out), c_ulonglong(data), c_ulonglong(words), c_ulonglong(stride), c_uint(0)]
            took = watch.time(lambda a=arguments: device.launch(kernel, size.blocks, size.threads, a), 3)  # type: ignore[misc]
            speeds[stride] = 4 * words / took.best
            found.gpu_seconds += took.total
        for stride, speed in speeds.items():
            found.add("memory_stride_efficiency_ratio", speed / speeds[1], stride_bytes=str(4 * stride))


def alignment(device: Device, size: Size, found: Findings) -> None:
    """Reads that start within a sector, from memory and from the L2 cache, as a share of aligned ones."""
    levels = {"memory": size.footprint // 2, "l2": min(size.footprint // 4, max(device.facts.l2_bytes // 4, 4096))}
    with Stopwatch(device) as watch, device.memory(size.footprint) as data, device.memory(64) as out:
        fill(device, data, size.footprint)
        kernel = device.kernel("memory", "strided_read")
        for level, covered in levels.items():
            speeds = {}
            for offset in OFFSETS:
                words = covered // 4 - 32
                arguments = [
                    c_ulonglong(out), c_ulonglong(data), c_ulonglong(words), c_ulonglong(1), c_uint(offset // 4)
                ]  # fmt: skip
                took = watch.time(lambda a=arguments: device.launch(kernel, size.blocks, size.threads, a), 3)  # type: ignore[misc]
                speeds[offset] = words / took.best
                found.gpu_seconds += took.total
            for offset, speed in speeds.items():
                ratio = speed / speeds[0]
                found.add("memory_alignment_efficiency_ratio", ratio, offset_bytes=str(offset), level=level)


def cache(device: Device, size: Size, found: Findings) -> None:
    """Reads a quarter of the L2 cache again and again."""
    covered = min(size.footprint, max(device.facts.l2_bytes // 4, 4096)) // 4096 * 4096
    passes = 8
    with Stopwatch(device) as watch, device.memory(covered) as data, device.memory(64) as out:
        fill(device, data, covered)
        kernel = device.kernel("memory", "read_vec4")
        arguments = [c_ulonglong(out), c_ulonglong(data), c_ulonglong(covered // 16), c_uint(passes)]
        took = watch.time(lambda: device.launch(kernel, size.blocks, size.threads, arguments), 3)
        found.add("l2_read_bytes_per_second", passes * covered / took.best)
        found.gpu_seconds += took.total


def reduction(device: Device, size: Size, found: Findings) -> None:
    """a + b → c: bytes are 3 × one array."""
    piece = size.footprint // 4 // 4096 * 4096
    with Stopwatch(device) as watch, device.memory(3 * piece) as data:
        fill(device, data, 2 * piece)
        kernel = device.kernel("memory", "reduce_vec4")
        arguments = [
            c_ulonglong(data + 2 * piece),
            c_ulonglong(data),
            c_ulonglong(data + piece),
            c_ulonglong(piece // 16),
        ]
        took = watch.time(lambda: device.launch(kernel, size.blocks, size.threads, arguments), 3)
        found.add("reduce_bytes_per_second", 3 * piece / took.best)
        found.gpu_seconds += took.total
