"""The job's process group: its store, this process's rank, and the rendezvous it belongs to. Looked at, never made."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Group:
    """An initialised default process group. `store` is the group's own: only a clone may be used beside it."""

    store: Any
    rank: int
    world: int


def find_group() -> Group | None:
    """None where torch.distributed is not initialised (yet, or any more)."""
    torch = sys.modules.get("torch")
    distributed: Any = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    store = distributed.distributed_c10d._get_default_store()
    return Group(store, distributed.get_rank(), distributed.get_world_size())


def launched_world(environ: Mapping[str, str] = os.environ) -> int:
    """How many ranks the launcher started, 1 where there is none."""
    text = environ.get("WORLD_SIZE", "")
    return int(text) if text.isdecimal() and int(text) > 0 else 1
