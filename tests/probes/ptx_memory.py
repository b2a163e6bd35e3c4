"""A GPU's global memory for the interpreter: separate allocations, every access checked, traffic by warp request."""

from __future__ import annotations

from collections import Counter

import numpy as np

SECTOR, LINE, BANKS = 32, 128, 32
"""Bytes of a DRAM/L2 sector and of a cache line; banks of shared memory, 4 bytes wide each."""


class Fault(Exception):
    """An access outside of every allocation, or one that is not aligned to its size."""


class Memory:
    """Allocations with room between them, so that running over an end is a fault and not a neighbour's data."""

    def __init__(self) -> None:
        self._buffers: list[tuple[int, np.ndarray]] = []
        self._next = 1 << 20

    def put(self, values: np.ndarray, shift: int = 0) -> int:
        """A copy of an array; its address, 512-byte aligned plus `shift`."""
        data = np.concatenate((np.zeros(shift, np.uint8), np.ascontiguousarray(values).view(np.uint8).reshape(-1)))
        address = self._next
        self._buffers.append((address, data))
        self._next = (address + len(data) + 1023) // 512 * 512
        return address + shift

    def room(self, size: int) -> int:
        """`size` bytes of rubbish."""
        return self.put(np.full(size, 0xCD, np.uint8))

    def get(self, address: int, dtype: object, count: int) -> np.ndarray:
        """What lies there."""
        size = np.dtype(dtype).itemsize * count  # type: ignore[call-overload]
        buffer, at = self._place(address, size)
        return buffer[at : at + size].view(dtype).copy()

    def load(self, address: int, size: int) -> bytes:
        """Raises Fault."""
        buffer, at = self._aligned(address, size)
        return buffer[at : at + size].tobytes()

    def store(self, address: int, data: bytes) -> None:
        """Raises Fault."""
        buffer, at = self._aligned(address, len(data))
        buffer[at : at + len(data)] = np.frombuffer(data, np.uint8)

    def _aligned(self, address: int, size: int) -> tuple[np.ndarray, int]:
        if address % size:
            raise Fault(f"{size} bytes at {address:#x} are not aligned")
        return self._place(address, size)

    def _place(self, address: int, size: int) -> tuple[np.ndarray, int]:
        for start, data in self._buffers:
            if start <= address and address + size <= start + len(data):
                return data, address - start
        raise Fault(f"{size} bytes at {address:#x} are outside of every allocation")


def count_global(counts: Counter[str], what: str, addresses: list[int], size: int) -> None:
    """One warp's request: bytes asked for, and the sectors and lines they lie in."""
    counts[f"global_{what}_requests"] += 1
    counts[f"global_{what}_bytes"] += size * len(addresses)
    touched = {byte for address in addresses for byte in range(address // 4 * 4, address + size, 4)}
    counts[f"global_{what}_sectors"] += len({byte // SECTOR for byte in touched})
    counts[f"global_{what}_lines"] += len({byte // LINE for byte in touched})


def count_shared(counts: Counter[str], what: str, addresses: list[int]) -> None:
    """One warp's request: as many wavefronts as different words lie in the busiest bank."""
    counts[f"shared_{what}_requests"] += 1
    words = {address // 4 for address in addresses}
    counts[f"shared_{what}_wavefronts"] += max(Counter(word % BANKS for word in words).values())
