"""GPUs that only the trainer's container sees: its process reads NVML when asked, and leaves what it read in a file."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sidecar.collectors.trainerfile import TrainerFile
from sidecar.model import JSON

FILE = "gpus.json"  # as in spikewatch/gpus.py, which this room must not import; a test holds them equal
FRESH_S = 5.0
_MAX_GPUS = 64
_UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z-]{1,80}")
_RAW = re.compile(r"[a-z0-9.]{1,24}")


class TrainerGpus(TrainerFile):
    """The file in which the trainer tells of its GPUs."""

    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        super().__init__(folder, FILE, clock, FRESH_S)

    def report(self) -> JSON | None:
        """A report in the form of the child's; None where there is no fresh and acceptable one."""
        told = self.told()
        gpus = told.get("gpus") if told is not None else None
        if told is None or not isinstance(gpus, list) or len(gpus) > _MAX_GPUS:
            return None
        found = [gpu for gpu in map(_gpu, gpus) if gpu is not None]
        return {"driver": str(told.get("driver", ""))[:80], "gpus": found, "calls": {}, "xids": []} if found else None


def _gpu(told: Any) -> JSON | None:
    """One GPU, with every field the child would give; None for anything strange."""
    if not isinstance(told, dict):
        return None
    uuid, index, name = told.get("gpu"), told.get("index"), told.get("name")
    if not (isinstance(uuid, str) and _UUID.fullmatch(uuid)) or not (isinstance(index, str) and index.isdecimal()):
        return None
    if len(index) > 3 or not isinstance(name, str):
        return None
    codes = {k: int(v) for k, v in _numbers(told.get("codes")).items() if v == int(v)}
    return {
        **{"gpu": uuid, "index": index, "name": name[:80], "number": int(index)},
        **{"parent": "", "divided": False, "lost": 0, "slow": None, "moments": []},
        **{"values": _numbers(told.get("values")), "codes": {"xid": 3, **codes}},
    }


def _numbers(told: Any) -> Mapping[str, float]:
    """Finite numbers under names like `mem.used`."""
    if not isinstance(told, dict) or len(told) > 64:
        return {}
    return {
        name: float(value)
        for name, value in told.items()
        if _RAW.fullmatch(name) and isinstance(value, int | float) and abs(value) < 1e19 and math.isfinite(value)
    }
