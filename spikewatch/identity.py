"""Who this process is: job, rank, rendezvous epoch. Nothing is imported, only looked at."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_TEXT = 256  # the wire's limit for a name


@dataclass(frozen=True, slots=True)
class Identity:
    """One rank process. `epoch` changes when a launcher restarts the ranks."""

    job: str
    rank: int
    local_rank: int
    world: int
    epoch: str
    framework: str
    backend: str


def identify(job: str | None, environ: Mapping[str, str] = os.environ) -> Identity:
    """From torch.distributed where it is initialised, else from the launcher's environment, else rank 0 of 1.

    Asked again at every connection: a run may attach before it initialises its process group.
    """
    rank, world, backend = _number(environ, "RANK", 0), _number(environ, "WORLD_SIZE", 1), "none"
    torch = sys.modules.get("torch")
    group = _process_group(torch)
    if group is not None:
        rank, world, backend = group.get_rank(), group.get_world_size(), str(group.get_backend())
    return Identity(
        job=(job or environ.get("SPIKEWATCH_JOB") or "default")[:_TEXT],
        rank=rank,
        local_rank=_number(environ, "LOCAL_RANK", 0),
        world=max(world, rank + 1),
        epoch=_epoch(environ)[:_TEXT],
        framework=f"pytorch {getattr(torch, '__version__', '')}".strip() if torch else "python",
        backend=backend[:_TEXT],
    )


def _process_group(torch: Any) -> Any:
    group = getattr(torch, "distributed", None)
    if group is not None and group.is_available() and group.is_initialized():
        return group
    return None


def _epoch(environ: Mapping[str, str]) -> str:
    if "TORCHELASTIC_RUN_ID" in environ:
        restart = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return f"{environ['TORCHELASTIC_RUN_ID']}:{restart}"
    if "MASTER_ADDR" in environ:
        return f"{environ['MASTER_ADDR']}:{environ.get('MASTER_PORT', '')}"
    return "single"


def _number(environ: Mapping[str, str], name: str, otherwise: int) -> int:
    text = environ.get(name, "")
    return int(text) if text.isdecimal() else otherwise
