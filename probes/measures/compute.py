"""The multiprocessors: tensor throughput with the clock it ran at, bank conflicts, a fusion that saves traffic."""

from __future__ import annotations

import math
from ctypes import c_uint, c_ulonglong

from probes.device import Device
from probes.measures.memory import noise
from probes.reading import Findings, Size, Wrong
from probes.timing import Stopwatch

MMA_FLOP = 16 * 8 * 16 * 2
WGMMA_FLOP = 4 * 2 * 64 * 128 * 16
FLOP_PER_CLOCK = {(8, 0): 2048, (8, 6): 512, (8, 9): 1024, (9, 0): 4096}
"""Dense bf16 operations a multiprocessor does in a clock, by compute capability (rated FLOP/s ÷ SMs ÷ boost clock)."""
_PATHS = {"mma_sync": {(8, 0), (8, 6), (8, 9)}, "wgmma": {(9, 0)}}
"""Where a path can reach the rated figure: only there a share of the peak is said."""


def tensor(device: Device, size: Size, found: Findings) -> None:
    """mma.sync in bf16 and fp16, and wgmma where the GPU has it."""
    facts = device.facts
    warps = 8 if not facts.fake else 1
    blocks = 2 * facts.multiprocessors if not facts.fake else 1
    iterations = size.iterations * 2 if not facts.fake else size.iterations
    for dtype, name in (("bf16", "mma_bf16"), ("f16", "mma_f16")):
        flop = blocks * warps * iterations * 4 * MMA_FLOP
        _tensor(device, found, ("tensor", name), (blocks, 32 * warps, iterations), flop, (dtype, "mma_sync"))
    if (facts.major, facts.minor) == (9, 0) and not facts.fake:
        blocks, iterations = 4 * facts.multiprocessors, size.iterations
        flop = blocks * iterations * WGMMA_FLOP
        _tensor(device, found, ("wgmma", "wgmma_bf16"), (blocks, 128, iterations), flop, ("bf16", "wgmma"))


def _tensor(
    device: Device,
    found: Findings,
    kernel_name: tuple[str, str],
    shape: tuple[int, int, int],
    flop: int,
    label: tuple[str, str],
) -> None:
    blocks, threads, iterations = shape
    dtype, path = label
    with Stopwatch(device) as watch, device.memory(4 * blocks * threads) as out, device.memory(16 * blocks) as times:
        kernel = device.kernel(*kernel_name)
        arguments = [c_ulonglong(out), c_uint(iterations), c_ulonglong(times)]
        took = watch.time(lambda: device.launch(kernel, blocks, threads, arguments), 3)
        found.gpu_seconds += took.total
        sums = memoryview(device.download(out, 4 * threads)).cast("f").tolist()
        if not all(map(math.isfinite, sums)) or not any(sums):
            raise Wrong(f"{kernel_name[1]} gave {sums[:2]}: its operands are small, its sums finite and not all zero")
        cycles, nanoseconds = memoryview(device.download(times, 16)).cast("Q").tolist()
    found.add("tensor_flops_per_second", flop / took.best, dtype=dtype, path=path)
    if not cycles or not nanoseconds:
        return
    clock = cycles / nanoseconds * 1e9
    found.add("sm_clock_hertz", clock, dtype=dtype, path=path)
    capability = (device.facts.major, device.facts.minor)
    if capability in _PATHS[path] and dtype == "bf16" and not device.facts.fake:
        rated = FLOP_PER_CLOCK[capability] * device.facts.multiprocessors * clock
        found.add("tensor_peak_ratio", flop / took.best / rated, dtype=dtype, path=path)


def banks(device: Device, size: Size, found: Findings) -> None:
    """Cycles of a column walk with a pitch of 32 words over those with 33, and bytes a clock without conflict."""
    warps = 32 if not device.facts.fake else 2
    blocks = device.facts.multiprocessors if not device.facts.fake else 1
    cycles: dict[int, float] = {}
    with Stopwatch(device) as watch, device.memory(4 * 32 * warps * blocks) as out, device.memory(8 * blocks) as clocks:
        kernel = device.kernel("shared", "bank_walk")
        for pitch in (32, 33):
            arguments = [c_ulonglong(out), c_uint(pitch), c_uint(size.iterations), c_ulonglong(clocks)]
            took = watch.time(lambda a=arguments: device.launch(kernel, blocks, 32 * warps, a), 2)  # type: ignore[misc]
            found.gpu_seconds += took.total
            values = memoryview(device.download(clocks, 8 * blocks)).cast("Q").tolist()
            cycles[pitch] = max(1.0, float(sorted(values)[len(values) // 2]))
            _check_walk(device.download(out, 4 * 32), pitch, size.iterations)
    found.add("shared_conflict_slowdown_ratio", cycles[32] / cycles[33])
    found.add("shared_bytes_per_clock", 4 * 32 * warps * size.iterations / cycles[33])


def _check_walk(raw: bytes, pitch: int, iterations: int) -> None:
    wanted = [sum(lane * pitch + k % 32 for k in range(iterations)) & 0xFFFFFFFF for lane in range(32)]
    if memoryview(raw).cast("I").tolist() != wanted:
        raise Wrong("the walk over shared memory summed up other values than it holds")


def fusion(device: Device, size: Size, found: Findings) -> None:
    """RMSNorm and a projection as two kernels over one; few outputs, so that the rows' traffic is what costs."""
    width, columns = (1024, 8) if not device.facts.fake else (64, 8)
    rows = max(2, size.footprint // 4 // width // 2)
    rows = rows if not device.facts.fake else 4
    x_bytes, out_bytes = 4 * rows * width, 4 * rows * columns
    with (
        Stopwatch(device) as watch,
        device.memory(2 * x_bytes) as x,
        device.memory(4 * width * (columns + 1)) as g,
        device.memory(2 * out_bytes) as out,
    ):
        small = (bytes(noise(4 * width * (columns + 1), 3)), bytes(noise(min(x_bytes, 1 << 20), 5)))
        device.upload(g, _floats(small[0]))
        piece = _floats(small[1])
        for at in range(0, x_bytes, len(piece)):
            device.upload(x + at, piece[: x_bytes - at])
        w, y = g + 4 * width, x + x_bytes
        norm, project = device.kernel("fused", "rmsnorm"), device.kernel("fused", "project")
        both = device.kernel("fused", "rmsnorm_project")
        first = [c_ulonglong(y), c_ulonglong(x), c_ulonglong(g), c_uint(width)]
        second = [c_ulonglong(out), c_ulonglong(y), c_ulonglong(w), c_uint(width), c_uint(columns)]
        one = [
            c_ulonglong(out + out_bytes),
            c_ulonglong(x),
            c_ulonglong(g),
            c_ulonglong(w),
            c_uint(width),
            c_uint(columns),
        ]

        def separate() -> None:
            device.launch(norm, rows, 128, first)
            device.launch(project, rows, 128, second)

        apart = watch.time(separate, 3)
        fused = watch.time(lambda: device.launch(both, rows, 128, one), 3)
        found.gpu_seconds += apart.total + fused.total
        head = 4 * columns * 2
        a, b = (memoryview(device.download(out + at, head)).cast("f").tolist() for at in (0, out_bytes))
        if not all(math.isclose(p, q, rel_tol=1e-3, abs_tol=1e-3) for p, q in zip(a, b, strict=True)):
            raise Wrong("the fused kernel and the two separate ones disagree")
    found.add("fusion_speedup_ratio", apart.best / fused.best)
    found.add("fusion_saved_bytes", float(3 * x_bytes))


def _floats(raw: bytes) -> bytes:
    """Noise as floats between -1 and 1."""
    words = memoryview(raw).cast("I").tolist()
    from array import array

    return array("f", [w / 2147483648.0 - 1.0 for w in words]).tobytes()
