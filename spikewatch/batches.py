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
    """How many samples the n-th batch of a pass has, where torch's own BatchSampler makes them."""

    __slots__ = ("_rest", "full", "size", "tensor")

    def __init__(self, loader: Any) -> None:
        self.size: int | None = None  # samples of a full batch; None where nobody knows
        self.full = 0  # how many full batches come first
        self.tensor: Any = None  # torch's type
        data = sys.modules.get("torch.utils.data")
        sampler: Any = getattr(loader, "batch_sampler", None)
        if data is None or type(sampler) is not data.BatchSampler or not isinstance(sampler.batch_size, int):
            return
        try:
            total = len(sampler.sampler)
        except TypeError:
            return
        self.size, self.tensor = sampler.batch_size, sys.modules["torch"].Tensor
        self.full, self._rest = divmod(total, self.size)

    def of(self, number: int, batch: Any) -> tuple[int | None, int | None]:
        """(samples, bytes) of batch `number` of the pass, counted from 0."""
        length, size = measure(batch)
        if self.size is None or number > self.full:
            return length, size
        return self.size if number < self.full else self._rest, size

    def plain(self, batch: Any) -> bool:
        """Whether batches like this one, as nearly all are, are a list, tuple or dict of nothing but tensors, so that
        the bytes of a full one are those of its items, and its samples `size`.
        """
        if self.size is None or type(batch) not in (list, tuple, dict) or not 0 < len(batch) <= MAX_LEAVES:
            return False
        items = batch.values() if type(batch) is dict else batch
        return all(type(item) is self.tensor for item in items)
