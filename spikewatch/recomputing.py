"""Knob `gradient_checkpointing` for blocks that the script names: less memory for computing them twice.

    run.offer(Recomputing(*model.blocks))

With it on, a block keeps only its inputs; its forward pass runs once more when the backward pass gets there, with the
random state it had, so gradients are the same bit for bit. Each rank by itself.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from spikewatch.knob import Knob

NAME = "gradient_checkpointing"


class Recomputing:
    """A `knob.Source`. A block's forward must depend on nothing but its inputs, parameters and torch's random state."""

    def __init__(self, *blocks: Any) -> None:
        """`blocks`: modules that are called once a forward pass each, none inside another. Raises ValueError for
        anything else.
        """
        import torch

        if not blocks or not all(isinstance(block, torch.nn.Module) for block in blocks):
            raise ValueError("name the modules to be recomputed: Recomputing(*model.blocks)")
        inner = {id(module) for block in blocks for module in block.modules() if module is not block}
        if len({id(block) for block in blocks} - inner) < len(blocks):
            raise ValueError("a module to be recomputed is named twice, or lies inside another one")
        self._blocks = blocks
        self._on = False

    def knobs(self) -> Sequence[Knob]:
        return (Knob(NAME, "bool"),)

    def values(self) -> Mapping[str, Any]:
        return {NAME: self._on}

    def unavailable(self) -> Mapping[str, str]:
        why = next((why for block in self._blocks if (why := _why_not(block))), "")
        return {NAME: why} if why else {}

    def check(self, values: Mapping[str, Any]) -> None:
        """Everything that can be refused is known beforehand."""

    def lag(self, values: Mapping[str, Any]) -> int:
        return 0

    def change(self, values: Mapping[str, Any], after: int) -> None:
        self._on = bool(values[NAME])
        for block in self._blocks:
            if self._on:
                vars(block)["forward"] = _Twice(block)
            else:
                vars(block).pop("forward", None)


class _Twice:
    """Stands in for a block's `forward`. A copy or a pickle of the block has one of its own."""

    __slots__ = ("_block",)

    def __init__(self, block: Any) -> None:
        self._block = block

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        import torch
        from torch.utils.checkpoint import checkpoint

        block = self._block
        if not torch.is_grad_enabled():
            return type(block).forward(block, *inputs, **named)
        return checkpoint(type(block).forward, block, *inputs, use_reentrant=False, **named)

    def __reduce__(self) -> Any:
        return _Twice, (self._block,)


def _why_not(block: Any) -> str:
    name = type(block).__name__
    other = vars(block).get("forward")
    if other is not None and not isinstance(other, _Twice):
        return f"another tool has replaced the forward of {name}"
    if any(hasattr(module, "_get_fsdp_state") or _is_fsdp(module) for module in block.modules()):
        return f"planned for sharded modules, and {name} is one"
    if any(getattr(module, "track_running_stats", False) for module in block.modules()):
        return f"{name} keeps running statistics, which would be updated twice a step"
    dynamo = sys.modules.get("torch._dynamo.utils")
    return "compiled code would be compiled anew" if dynamo is not None and dynamo.counters["frames"] else ""


def _is_fsdp(module: Any) -> bool:
    return any(kind.__name__ == "FullyShardedDataParallel" for kind in type(module).__mro__)
