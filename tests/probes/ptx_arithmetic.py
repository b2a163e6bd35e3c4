"""What single PTX instructions compute, on arrays of lanes held as unsigned 64-bit integers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from ptx_parser import Instruction

BITS = {
    **{f"{kind}{bits}": bits for kind in "usb" for bits in (8, 16, 32, 64)},
    "f32": 32,
    "f64": 64,
    "pred": 1,
}


def as_float(lanes: np.ndarray) -> np.ndarray:
    """The lanes' low 32 bits as float32."""
    return lanes.astype(np.uint32).view(np.float32)


def signed(lanes: np.ndarray, bits: int) -> np.ndarray:
    """The lanes' low bits as int64, sign extended."""
    shift = np.uint64(64 - bits)
    return (lanes.astype(np.uint64) << shift).view(np.int64) >> np.int64(64 - bits)


def compute(instruction: Instruction, values: Sequence[np.ndarray]) -> tuple[np.ndarray, int, int]:
    """(result, its width in bits, floating point operations a lane). Raises NotImplementedError."""
    op, kind = instruction.op[0], instruction.type
    with np.errstate(all="ignore"):
        if op == "setp":
            return _compare(instruction.op[1], _typed(values[0], kind), _typed(values[1], kind)), 1, 0
        if op == "selp":
            return np.where(values[2].astype(bool), values[0], values[1]), BITS[kind], 0
        if op in ("mov", "cvta"):
            return values[0], BITS[kind], 0
        if op == "not":
            return ~values[0], BITS[kind], 0
        if op == "cvt":
            return _converted(instruction, values[0])
        if kind == "f32":
            result, flop = _floating(op, [as_float(v) for v in values])
            return result.astype(np.float32).view(np.uint32).astype(np.uint64), 32, flop
        return _integer(instruction, values)


def _typed(lanes: np.ndarray, kind: str) -> np.ndarray:
    if kind == "f32":
        return as_float(lanes)
    return signed(lanes, BITS[kind]) if kind[0] == "s" else lanes & np.uint64((1 << BITS[kind]) - 1)


def _compare(how: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    found = {"eq": a == b, "ne": a != b, "neu": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}
    return found[how].astype(np.uint64)


def _converted(instruction: Instruction, lanes: np.ndarray) -> tuple[np.ndarray, int, int]:
    to, source = instruction.op[-2], instruction.op[-1]
    plain = _typed(lanes, source)
    if to == "f32":
        return plain.astype(np.float32).view(np.uint32).astype(np.uint64), 32, 0
    return plain.astype(np.int64).view(np.uint64) if source[0] == "s" else plain, BITS[to], 0


def _floating(op: str, v: Sequence[np.ndarray]) -> tuple[np.ndarray, int]:
    if op == "fma":
        return (v[0].astype(np.float64) * v[1].astype(np.float64) + v[2]).astype(np.float32), 2
    if op == "rsqrt":
        return 1 / np.sqrt(v[0]), 1
    if op in ("add", "sub", "mul", "div"):
        function = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}[op]
        return function(v[0], v[1]), 1
    raise NotImplementedError(f"{op}.f32")


def _integer(instruction: Instruction, values: Sequence[np.ndarray]) -> tuple[np.ndarray, int, int]:
    op, kind = instruction.op[0], instruction.type
    bits = BITS[kind]
    a, b = (_typed(v, kind) for v in values[:2])
    if op in ("mul", "mad"):
        product = (a * b).view(np.uint64)
        wide = 2 * bits if "wide" in instruction.op else bits
        return product + values[2] if op == "mad" else product, wide, 0
    if op in ("shl", "shr"):
        by = (values[1] & np.uint64(0xFFFFFFFF)).astype(a.dtype)
        return (a << by if op == "shl" else a >> by).view(np.uint64), bits, 0
    functions = {"add": np.add, "sub": np.subtract, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
    if op not in functions:
        raise NotImplementedError(str(instruction))
    return functions[op](a, b).view(np.uint64), bits, 0


# --- tensor cores ---


def _halves(lanes: np.ndarray, kind: str, which: int) -> np.ndarray:
    half = ((lanes >> np.uint64(16 * which)) & np.uint64(0xFFFF)).astype(np.uint32)
    return (
        (half << 16).view(np.float32) if kind == "bf16" else half.astype(np.uint16).view(np.float16).astype(np.float32)
    )


def fragments_product(
    kind: str, a: Sequence[np.ndarray], b: Sequence[np.ndarray], c: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """mma.sync m16n8k16: D = A·B + C, from the registers of the 32 lanes, laid out as the PTX manual says."""
    group, inside = np.arange(32) // 4, np.arange(32) % 4
    left, right = np.zeros((16, 16), np.float32), np.zeros((16, 8), np.float32)
    start = np.zeros((16, 8), np.float32)
    for q, register in enumerate(a):
        for which in range(2):
            left[group + 8 * (q % 2), inside * 2 + which + 8 * (q // 2)] = _halves(register, kind, which)
    for q, register in enumerate(b):
        for which in range(2):
            right[inside * 2 + which + 8 * q, group] = _halves(register, kind, which)
    for q, register in enumerate(c):
        start[group + 8 * (q // 2), inside * 2 + q % 2] = as_float(register)
    product = (left.astype(np.float64) @ right.astype(np.float64) + start).astype(np.float32)
    return [
        product[group + 8 * (q // 2), inside * 2 + q % 2].copy().view(np.uint32).astype(np.uint64) for q in range(4)
    ]
