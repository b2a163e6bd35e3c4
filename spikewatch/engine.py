"""How a run trains, in words for `spikewatch_trainer_run_info`: parallelism, precision, offload.

Only what the objects themselves tell. An adapter that knows more says so with `run.describe`.
"""

from __future__ import annotations

import sys
from typing import Any

from spikewatch import placement


def describe(model: Any, scaler: Any) -> dict[str, str]:
    """What `model` and `scaler` tell; empty without torch or a module."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(model, torch.nn.Module):
        return {}
    said = placement.describe(model, None, scaler)
    return {name: text for name, text in said.items() if text != placement.UNKNOWN}


def gpu_uuid(cuda: Any, device: int) -> str:
    """As NVML and nvidia-smi write it; empty where this torch does not tell."""
    uuid = str(getattr(cuda.get_device_properties(device), "uuid", ""))
    return uuid if not uuid or uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
