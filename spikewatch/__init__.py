"""The client that runs in the trainer: `run = spikewatch.attach(model=…, optimizer=…, loader=…)`, `run.step(loss)`.

Standard library only; torch is looked at where the trainer has loaded it, never imported first. The names below are
imported when they are used: a sidecar, which needs the wire's definitions only, does not pay for the rest (3 MB).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spikewatch.attaching import attach
    from spikewatch.run import Run
    from spikewatch.serving import Worker, worker

__all__ = ["Run", "Worker", "attach", "worker"]

_PLACES = {"attach": "attaching", "Run": "run", "Worker": "serving", "worker": "serving"}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
