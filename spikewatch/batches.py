"""How large a batch is: tensor bytes and samples, looked up without touching the data."""

from __future__ import annotations

import sys
from typing import Any

MAX_LEAVES = 256
MAX_DEPTH = 6


def measure(batch: Any) -> tuple[int | None, int | None]:
    """(length of the tensors' first dimension, their bytes); None where it cannot be told.

    The length is given only when every tensor agrees on it. Bytes are those of the tensors handed over, after
    collation; a batch without tensors, or with more than 256 of them, is not measured.
    """
    tensors = _tensors(batch)
    if not tensors:
        return None, None
    lengths = {tensor.size(0) for tensor in tensors if tensor.dim()}
    return (lengths.pop() if len(lengths) == 1 else None), sum(tensor.nbytes for tensor in tensors)


def _tensors(batch: Any) -> list[Any] | None:
    """Every tensor of a batch; None where there are too many, or too deep."""
    torch = sys.modules.get("torch")
    leaves: list[Any] = []
    return leaves if torch is not None and _collect(batch, torch.Tensor, leaves, MAX_DEPTH) else None


def _collect(item: Any, tensor: type, leaves: list[Any], depth: int) -> bool:
    if isinstance(item, tensor):
        leaves.append(item)
        return len(leaves) <= MAX_LEAVES
    if isinstance(item, dict):
        item = list(item.values())
    if isinstance(item, list | tuple):
        if depth == 0 or len(item) > MAX_LEAVES:
            return False
        for child in item:
            if isinstance(child, str | bytes | int | float):
                continue
            if not _collect(child, tensor, leaves, depth - 1):
                return False
    return True


class BatchLengths:
    """How many samples the n-th batch of a pass has, where torch's own BatchSampler makes them; else None."""

    __slots__ = ("_full", "_rest", "_size", "_tensor")

    def __init__(self, loader: Any) -> None:
        self._size: int | None = None
        self._tensor: Any = None
        data = sys.modules.get("torch.utils.data")
        sampler: Any = getattr(loader, "batch_sampler", None)
        if data is None or type(sampler) is not data.BatchSampler or not isinstance(sampler.batch_size, int):
            return
        try:
            total = len(sampler.sampler)
        except TypeError:
            return
        self._size, self._tensor = sampler.batch_size, sys.modules["torch"].Tensor
        self._full, self._rest = divmod(total, self._size)

    def of(self, number: int, batch: Any) -> tuple[int | None, int | None]:
        """(samples, bytes) of batch `number` of the pass, counted from 0."""
        if self._size is None or number >= self._full:
            length, size = measure(batch)
            return (self._rest if self._size is not None and number == self._full else length), size
        # nearly every batch there is: a list or tuple of tensors, and how many samples is known
        if type(batch) in (list, tuple) and 0 < len(batch) <= MAX_LEAVES:
            tensor, size = self._tensor, 0
            for item in batch:
                if type(item) is not tensor:
                    break
                size += item.nbytes
            else:
                return self._size, size
        return self._size, measure(batch)[1]
