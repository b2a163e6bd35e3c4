"""How a run trains, in words for `spikewatch_trainer_run_info`: parallelism, precision, offload.

Only what the objects themselves tell. An adapter that knows more says so with `run.describe`.
"""

from __future__ import annotations

import sys
from typing import Any

NONE = "none"


def describe(model: Any, scaler: Any) -> dict[str, str]:
    """What `model` and `scaler` tell; empty without torch or a module."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(model, torch.nn.Module):
        return {}
    parallelism = _parallelism(model)
    found = {"parallelism": parallelism, "precision": _precision(model, scaler)}
    if parallelism in (NONE, "ddp"):
        found["offload"] = NONE  # neither has any
    return {name: text for name, text in found.items() if text}


def _parallelism(model: Any) -> str:
    inner = getattr(model, "_orig_mod", model)
    kinds = {kind.__name__ for module in inner.modules() for kind in type(module).__mro__}
    for name, text in (
        ("FSDPModule", "fsdp2"),
        ("FullyShardedDataParallel", "fsdp"),
        ("DistributedDataParallel", "ddp"),
        ("DataParallel", "dp"),
    ):
        if name in kinds:
            return text
    return NONE


def _precision(model: Any, scaler: Any) -> str:
    if scaler is not None and scaler.is_enabled():
        return "fp16 mixed"
    dtype = next((str(p.dtype) for p in model.parameters() if p.is_floating_point()), "")
    return f"{dtype.removeprefix('torch.')} parameters" if dtype else ""


def gpu_uuid(cuda: Any, device: int) -> str:
    """As NVML and nvidia-smi write it; empty where this torch does not tell."""
    uuid = str(getattr(cuda.get_device_properties(device), "uuid", ""))
    return uuid if not uuid or uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
