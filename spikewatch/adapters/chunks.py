"""Batches in pieces: the samples of a batch dealt out to smaller ones, in their order."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from typing import Any

MAX_DEPTH = 6


def length(batch: Any) -> int | None:
    """How many samples a batch has: the first dimension of its tensors, None where they disagree or there are none."""
    torch = sys.modules.get("torch")
    found: set[int] = set()
    if torch is None or not _lengths(batch, torch.Tensor, found, MAX_DEPTH) or len(found) != 1:
        return None
    return found.pop()


def split(batch: Any, size: int) -> list[tuple[Any, int]] | None:
    """[(piece, its samples)] of at most `size` samples each; None where the batch cannot be dealt out.

    Tensors are views. A tensor of no dimension, a text, a number and None go into every piece as they are, a list
    of as many other things as there are samples is dealt out, too.
    """
    whole = length(batch)
    if whole is None or size < 1:
        return None
    bounds = [(start, min(start + size, whole)) for start in range(0, whole, size)]
    try:
        return [(_piece(batch, start, end, whole), end - start) for start, end in bounds]
    except TypeError:  # a container that cannot be made anew from its parts
        return None


def _lengths(item: Any, tensor: type, found: set[int], depth: int) -> bool:
    """Collects first dimensions; False for something that cannot be dealt out."""
    if isinstance(item, tensor):
        if item.dim():  # type: ignore[attr-defined]
            found.add(item.size(0))  # type: ignore[attr-defined]
        return True
    if item is None or isinstance(item, str | bytes | int | float):
        return True
    if depth == 0:
        return False
    if isinstance(item, Mapping):
        return all(_lengths(child, tensor, found, depth - 1) for child in item.values())
    if isinstance(item, list | tuple):
        if item and not any(isinstance(child, tensor | Mapping | list | tuple) for child in item):
            found.add(len(item))  # texts, say, one a sample
            return True
        return all(_lengths(child, tensor, found, depth - 1) for child in item)
    return False


def _piece(item: Any, start: int, end: int, whole: int) -> Any:
    tensor = sys.modules["torch"].Tensor
    if isinstance(item, tensor):
        return item[start:end] if item.dim() else item
    if isinstance(item, Mapping):
        piece: Any = copy.copy(item)  # also of kinds with attributes of their own, like a tokenizer's
        for key, child in item.items():
            piece[key] = _piece(child, start, end, whole)
        return piece
    if isinstance(item, list | tuple):
        if item and not any(isinstance(child, tensor | Mapping | list | tuple) for child in item):
            return item[start:end]
        children = [_piece(child, start, end, whole) for child in item]
        return type(item)(*children) if hasattr(item, "_fields") else type(item)(children)
    return item
