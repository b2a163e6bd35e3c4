"""The shipped PTX itself, run by an interpreter: exact results, and exactly the traffic and work it says it does."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_machine import run
from ptx_memory import Fault, Memory

NEVER = 0x5BD1E995


@pytest.fixture
def memory():
    return Memory()


@pytest.fixture
def chance():
    return np.random.default_rng(7)


def words(chance, count):
    return chance.integers(0, 1 << 32, count, dtype=np.uint32)


@pytest.mark.parametrize("reps", [1, 3])
def test_a_read_loads_every_byte_once_a_pass_in_full_sectors(kernels, memory, chance, reps):
    source, out = memory.put(words(chance, 4 * 256)), memory.room(64)
    counts = run(kernels["read_vec4"], memory, 2, 64, out, source, 256, reps)
    assert counts["global_ld_bytes"] == 16 * 256 * reps
    assert counts["global_ld_requests"] == 256 // 32 * reps, "16 bytes a lane"
    assert counts["global_ld_sectors"] * 32 == counts["global_ld_bytes"]
    assert counts["global_st_requests"] == 0


def test_the_checked_read_folds_what_the_host_folds(kernels, memory, chance):
    data = words(chance, 4 * 256)
    source, out = memory.put(data), memory.room(4 * 64)
    run(kernels["read_vec4_checked"], memory, 1, 64, out, source, 256)
    by_vector = np.bitwise_xor.reduce(data.reshape(256, 4), axis=1)
    wanted = np.bitwise_xor.reduce(by_vector.reshape(4, 64), axis=0)
    assert (memory.get(out, np.uint32, 64) == wanted).all()


@pytest.mark.parametrize("count", [1, 31, 64, 257])
def test_a_copy_copies_and_stops_at_the_end(kernels, memory, chance, count):
    data = words(chance, 4 * count)
    source, target = memory.put(data), memory.room(16 * count)
    counts = run(kernels["copy_vec4"], memory, 2, 64, target, source, count)
    assert (memory.get(target, np.uint32, 4 * count) == data).all()
    assert counts["global_ld_bytes"] == counts["global_st_bytes"] == 16 * count


@pytest.mark.parametrize(
    ("stride", "sectors"), [(1, 4), (2, 8), (4, 16), (8, 32), (16, 32), (32, 32)], ids=lambda v: str(v)
)
def test_a_stride_touches_more_sectors_a_request_until_each_lane_has_its_own(kernels, memory, chance, stride, sectors):
    source, out = memory.put(words(chance, 128 * stride)), memory.room(64)
    counts = run(kernels["strided_read"], memory, 1, 64, out, source, 128, stride, 0)
    assert counts["global_ld_bytes"] == 4 * 128
    assert counts["global_ld_sectors"] == sectors * counts["global_ld_requests"]


@pytest.mark.parametrize(("offset", "sectors", "lines"), [(0, 4, 1), (1, 5, 2), (8, 4, 2), (31, 5, 2), (32, 4, 1)])
def test_an_offset_within_a_sector_costs_one_sector_more(kernels, memory, chance, offset, sectors, lines):
    source, out = memory.put(words(chance, 256)), memory.room(64)
    counts = run(kernels["strided_read"], memory, 1, 64, out, source, 64, 1, offset)
    assert counts["global_ld_sectors"] == sectors * counts["global_ld_requests"]
    assert counts["global_ld_lines"] == lines * counts["global_ld_requests"]


def test_a_reduction_adds_and_moves_three_times_its_length(kernels, memory, chance):
    a, b = (chance.normal(size=4 * 100).astype(np.float32) for _ in range(2))
    target = memory.room(16 * 100)
    counts = run(kernels["reduce_vec4"], memory, 2, 32, target, memory.put(a), memory.put(b), 100)
    assert (memory.get(target, np.float32, 400) == a + b).all()
    assert counts["global_ld_bytes"] + counts["global_st_bytes"] == 3 * 16 * 100
    assert counts["flop"] == 400


@pytest.mark.parametrize(("pitch", "wavefronts"), [(32, 32), (33, 1)])
def test_a_column_walk_conflicts_in_every_request_unless_rows_are_padded(kernels, memory, pitch, wavefronts):
    out, cycles = memory.room(4 * 64), memory.room(8)
    counts = run(kernels["bank_walk"], memory, 1, 64, out, pitch, 6, cycles)
    assert counts["shared_ld_requests"] == 6 * 2
    assert counts["shared_ld_wavefronts"] == wavefronts * counts["shared_ld_requests"]
    lane, warp = np.arange(64) % 32, np.arange(64) // 32
    wanted = sum(lane * pitch + (warp + k) % 32 for k in range(6))
    assert (memory.get(out, np.uint32, 64) == wanted).all()
    assert memory.get(cycles, np.uint64, 1)[0] > 0


def operands(kind, mask, threads):
    """What the tensor kernel makes of a thread's number, as the six registers of its fragments."""
    h = (np.arange(threads, dtype=np.uint64) * 2654435761) & 0xFFFFFFFF
    made = [
        (h ^ 0x9E37) * 747796405,
        h * 2891336453,
        (~h & 0xFFFFFFFF) * 277803737,
        (h + 7) * 1103515245,
        (h + 3) * 22695477,
        (h ^ 5) * 134775813,
    ]
    return [(m & 0xFFFFFFFF).astype(np.uint32) & np.uint32(mask) for m in made]


def number(kind, halves):
    if kind == "bf16":
        return (halves.astype(np.uint32) << 16).view(np.float32)
    return halves.astype(np.uint16).view(np.float16).astype(np.float32)


@pytest.mark.parametrize(("kind", "mask"), [("bf16", 0xBF7FBF7F), ("f16", 0xB7FFB7FF)])
def test_the_tensor_kernel_does_the_work_it_claims_and_its_sums_stay_finite(kernels, memory, kind, mask):
    out, times = memory.room(4 * 32), memory.room(16)
    counts = run(kernels[f"mma_{kind}"], memory, 1, 32, out, 3, times)
    assert counts["mma"] == 4 * 3
    assert counts["flop"] >= 4 * 3 * 4096
    a0, a1, a2, a3, b0, b1 = operands(kind, mask, 32)
    left, right = np.zeros((16, 16)), np.zeros((16, 8))
    for lane in range(32):
        row, column = lane // 4, lane % 4 * 2
        for half in range(2):
            for register, (down, along) in zip((a0, a1, a2, a3), ((0, 0), (8, 0), (0, 8), (8, 8)), strict=True):
                piece = (register[lane : lane + 1] >> np.uint32(16 * half)) & np.uint32(0xFFFF)
                left[row + down, column + half + along] = number(kind, piece)[0]
            for register, down in ((b0, 0), (b1, 8)):
                piece = (register[lane : lane + 1] >> np.uint32(16 * half)) & np.uint32(0xFFFF)
                right[column + half + down, row] = number(kind, piece)[0]
    product = 3 * 4 * (left @ right)  # four chains, three times each
    wanted = [
        product[lane // 4, lane % 4 * 2 : lane % 4 * 2 + 2].sum() + product[lane // 4 + 8, lane % 4 * 2 :][:2].sum()
        for lane in range(32)
    ]
    found = memory.get(out, np.float32, 32)
    assert np.isfinite(found).all()
    assert found == pytest.approx(wanted, rel=1e-4, abs=1e-3)
    assert np.unique(found).size > 16, "the operands differ from lane to lane"
    cycles, nanoseconds = memory.get(times, np.uint64, 2)
    assert cycles > 0
    assert nanoseconds > 0


def test_a_spin_ends_after_its_time_and_says_when_it_looked(kernels, memory):
    when = memory.room(16)
    run(kernels["spin"], memory, 1, 32, 5000, when)
    began, ended = memory.get(when, np.uint64, 2)
    assert 5000 <= ended - began < 6000


def test_a_gate_that_is_never_opened_ends_by_itself(kernels, memory):
    closed, opened = memory.put(np.zeros(1, np.uint32)), memory.put(np.ones(1, np.uint32))
    waited = run(kernels["gate"], memory, 1, 1, closed, 3000)
    passed = run(kernels["gate"], memory, 1, 1, opened, 3000)
    assert passed["instructions"] < waited["instructions"]


@pytest.mark.parametrize("width", [64, 200])
def test_the_fused_kernel_gives_what_two_kernels_give_and_saves_three_rows_of_traffic(kernels, memory, chance, width):
    rows, columns = 3, 32
    x, g, w = (chance.normal(size=shape).astype(np.float32) for shape in ((rows, width), width, (width, columns)))
    at = {name: memory.put(value) for name, value in (("x", x), ("g", g), ("w", w))}
    y, one, two = memory.room(4 * rows * width), memory.room(4 * rows * columns), memory.room(4 * rows * columns)
    norm = run(kernels["rmsnorm"], memory, rows, 128, y, at["x"], at["g"], width)
    project = run(kernels["project"], memory, rows, 128, two, y, at["w"], width, columns)
    fused = run(kernels["rmsnorm_project"], memory, rows, 128, one, at["x"], at["g"], at["w"], width, columns)
    scale = 1 / np.sqrt((x.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + 1e-6)
    wanted = (x * scale * g).astype(np.float64) @ w
    for found in (memory.get(one, np.float32, rows * columns), memory.get(two, np.float32, rows * columns)):
        assert found == pytest.approx(wanted.reshape(-1), rel=1e-4, abs=1e-4)

    def traffic(counts):
        return counts["global_ld_bytes"] + counts["global_st_bytes"]

    assert traffic(norm) == rows * 4 * 4 * width
    assert traffic(norm) + traffic(project) - traffic(fused) == rows * 3 * 4 * width


def test_running_over_the_end_is_a_fault_not_a_neighbours_data(kernels, memory, chance):
    source, target = memory.put(words(chance, 64)), memory.room(256)
    with pytest.raises(Fault, match="outside of every allocation"):
        run(kernels["copy_vec4"], memory, 1, 32, target, source, 17)


def test_a_pointer_that_is_not_aligned_is_a_fault(kernels, memory, chance):
    source, target = memory.put(words(chance, 68), shift=4), memory.room(256)
    with pytest.raises(Fault, match="not aligned"):
        run(kernels["copy_vec4"], memory, 1, 32, target, source, 16)
