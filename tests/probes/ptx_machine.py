"""Runs a PTX kernel on numpy lanes, warp by warp: the shipped bytes themselves, what they move and compute counted.

Lanes of a warp that went different ways meet again at the smallest program counter. A block's warps take turns until
all wait at the barrier. Clocks advance with every instruction, so that loops over time end.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from ptx_arithmetic import BITS, compute, fragments_product
from ptx_memory import Memory, count_global, count_shared
from ptx_parser import Instruction, Kernel

WARP = 32
NS_PER_INSTRUCTION = 10
_ADDRESS = re.compile(r"\[([^\]+]+)(?:\+(-?\d+))?\]")


class _Warp:
    def __init__(self, first: int, lanes: int) -> None:
        self.first, self.lanes = first, lanes
        self.pc = np.zeros(lanes, int)
        self.alive = np.ones(lanes, bool)
        self.waiting = np.zeros(lanes, bool)
        self.registers: dict[str, np.ndarray] = {}


class Machine:
    """One launch. `counts` afterwards: requests, bytes, sectors, lines, wavefronts, flop, mma, instructions."""

    def __init__(self, kernel: Kernel, memory: Memory, grid: int, block: int, arguments: Sequence[int]) -> None:
        assert len(arguments) == len(kernel.parameters), f"{kernel.name} takes {kernel.parameters}"
        self._kernel, self._memory, self._grid, self._block = kernel, memory, grid, block
        self._parameters = {name: value for (name, _), value in zip(kernel.parameters, arguments, strict=True)}
        self.counts: Counter[str] = Counter()
        self._cta = 0
        self._shared = np.zeros(0, np.uint8)

    def run(self, most: int = 2_000_000) -> Counter[str]:
        """To its end; `most` instructions bound a kernel that hangs."""
        for cta in range(self._grid):
            self._cta = cta
            self._shared = np.zeros(max(self._kernel.shared_bytes, 4), np.uint8)
            warps = [_Warp(w, min(WARP, self._block - w)) for w in range(0, self._block, WARP)]
            while any(warp.alive.any() for warp in warps):
                for warp in warps:
                    while (ready := warp.alive & ~warp.waiting).any():
                        pc = int(warp.pc[ready].min())
                        self._step(warp, pc, ready & (warp.pc == pc))
                        assert self.counts["instructions"] < most, f"{self._kernel.name} does not end"
                for warp in warps:
                    warp.waiting[:] = False
        return self.counts

    # --- one instruction ------------------------------------------------------------------------------------------

    def _step(self, warp: _Warp, pc: int, lanes: np.ndarray) -> None:
        instruction = self._kernel.code[pc]
        self.counts["instructions"] += 1
        acting = lanes.copy()
        if instruction.guard:
            negated, predicate = instruction.guard
            acting &= self._read(warp, predicate).astype(bool) ^ negated
        following = np.full(warp.lanes, pc + 1)
        op = instruction.op[0]
        if op == "bra":
            following = np.where(acting, self._kernel.labels[instruction.operands[0]], following)
        elif op == "ret":
            warp.alive &= ~acting
        elif op == "bar":
            warp.waiting |= lanes
        elif op == "mma":
            assert lanes.all(), "mma.sync wants the whole warp"
            self._mma(warp, instruction, acting)
        elif op in ("ld", "st"):
            self._move(warp, instruction, acting)
        else:
            values = [self._read(warp, operand) for operand in instruction.operands[1:]]
            result, bits, flop = compute(instruction, values)
            self.counts["flop"] += flop * int(acting.sum())
            self._write(warp, instruction.operands[0], result, bits, acting)
        warp.pc = np.where(lanes, following, warp.pc)

    def _read(self, warp: _Warp, operand: str) -> np.ndarray:
        n = warp.lanes
        special = {
            "%tid.x": warp.first + np.arange(n),
            "%ctaid.x": np.full(n, self._cta),
            "%ntid.x": np.full(n, self._block),
            "%nctaid.x": np.full(n, self._grid),
        }
        if operand in special:
            return special[operand].astype(np.uint64)
        if operand in ("%clock64", "%globaltimer"):
            return np.full(n, self.counts["instructions"] * NS_PER_INSTRUCTION, np.uint64)
        if operand.startswith("%"):
            return warp.registers.get(operand, np.zeros(n, np.uint64))
        if operand.startswith("0f"):
            return np.full(n, int(operand[2:], 16), np.uint64)
        if operand in self._kernel.shared:
            return np.full(n, self._kernel.shared[operand], np.uint64)
        return np.full(n, int(operand, 0) & ((1 << 64) - 1), np.uint64)

    def _write(self, warp: _Warp, register: str, values: np.ndarray, bits: int, acting: np.ndarray) -> None:
        kept = warp.registers.get(register, np.zeros(warp.lanes, np.uint64))
        narrow = values.astype(np.uint64) & np.uint64((1 << bits) - 1)
        warp.registers[register] = np.where(acting, narrow, kept)

    # --- memory and tensor cores ----------------------------------------------------------------------------------

    def _move(self, warp: _Warp, instruction: Instruction, acting: np.ndarray) -> None:
        loads = instruction.op[0] == "ld"
        place, data = instruction.operands if loads is False else instruction.operands[::-1]
        registers = data.strip("{}").replace(" ", "").split(",")
        match = _ADDRESS.fullmatch(place)
        assert match, place
        bits = BITS[instruction.type]
        if "param" in instruction.op:
            value = np.full(warp.lanes, self._parameters[match[1]] & ((1 << 64) - 1), np.uint64)
            self._write(warp, registers[0], value, bits, acting)
            return
        addresses = self._read(warp, match[1]) + np.uint64(int(match[2] or 0))
        indices = np.flatnonzero(acting).tolist()
        if not indices:
            return
        size = bits // 8 * len(registers)
        reached = [int(addresses[i]) for i in indices]
        if "shared" in instruction.op:
            count_shared(self.counts, instruction.op[0], reached)
        else:
            count_global(self.counts, instruction.op[0], reached, size)
        shared = "shared" in instruction.op
        found = [self._read(warp, register).copy() for register in registers]
        for i, address in zip(indices, reached, strict=True):
            width = bits // 8
            if loads:
                raw = self._shared[address : address + size].tobytes() if shared else self._memory.load(address, size)
                for j, values in enumerate(found):
                    values[i] = int.from_bytes(raw[j * width : (j + 1) * width], "little")
                continue
            mask = (1 << bits) - 1
            raw = b"".join((int(values[i]) & mask).to_bytes(width, "little") for values in found)
            if shared:
                self._shared[address : address + size] = np.frombuffer(raw, np.uint8)
            else:
                self._memory.store(address, raw)
        if loads:
            for register, values in zip(registers, found, strict=True):
                self._write(warp, register, values, bits, acting)

    def _mma(self, warp: _Warp, instruction: Instruction, acting: np.ndarray) -> None:
        names = [operand.strip("{}").replace(" ", "").split(",") for operand in instruction.operands]
        a, b, c = ([self._read(warp, name) for name in group] for group in names[1:])
        half = next(part for part in instruction.op if part in ("f16", "bf16"))
        for register, values in zip(names[0], fragments_product(half, a, b, c), strict=True):
            self._write(warp, register, values, 32, acting)
        self.counts["mma"] += 1
        self.counts["flop"] += 16 * 8 * 16 * 2


def run(kernel: Kernel, memory: Memory, grid: int, block: int, *arguments: int) -> Counter[str]:
    """Launches and gives the counts."""
    return Machine(kernel, memory, grid, block, arguments).run()
