"""Finds the `torch.autocast` contexts that a framework has wrapped a model's forward in."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

MAX_DEPTH = 12  # wrappers around a forward


def found(model: Any) -> list[Any]:
    """Each context once, outermost first. Looks at forwards that were put on the module itself or on what it wraps."""
    torch = sys.modules.get("torch")
    if torch is None:
        return []
    contexts: dict[int, Any] = {}
    for module in unwrapped(model):
        forward = getattr(module, "__dict__", {}).get("forward")
        if forward is not None:
            for context in _inside(forward, torch.autocast, MAX_DEPTH):
                contexts.setdefault(id(context), context)
    return list(contexts.values())


def unwrapped(model: Any) -> Iterator[Any]:
    """The model, then what DDP or torch.compile have wrapped, down to the module itself."""
    seen: set[int] = set()
    while model is not None and id(model) not in seen:
        seen.add(id(model))
        yield model
        if type(model).__name__ in ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel"):
            model = getattr(model, "module", None)
        else:
            model = getattr(model, "_orig_mod", None)


def _inside(thing: Any, kind: type, depth: int) -> Iterator[Any]:
    if isinstance(thing, kind):
        yield thing
    if depth == 0:
        return
    for cell in getattr(thing, "__closure__", None) or ():
        try:
            inner = cell.cell_contents
        except ValueError:  # not filled yet
            continue
        if isinstance(inner, kind) or callable(inner):
            yield from _inside(inner, kind, depth - 1)
    for name in ("__func__", "__wrapped__", "model_forward", "func"):
        inner = getattr(thing, name, None)
        if inner is not None and inner is not thing:
            yield from _inside(inner, kind, depth - 1)
