"""The Trainer seeds workers by how many there were at first; after a change two ranks would draw the same numbers."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any


def follow_workers(loader: Any) -> None:
    """Lets the Trainer's seeding of workers go by how many there are. Nothing changes while that is as at first."""
    seeding = getattr(loader, "worker_init_fn", None)
    if isinstance(seeding, functools.partial) and {"num_workers", "rank"} <= set(seeding.keywords):
        loader.worker_init_fn = Seeding(seeding.func, seeding.keywords["rank"])


class Seeding:
    """In a worker; it goes there by fork or by pickle."""

    def __init__(self, seed: Callable[..., Any], rank: int) -> None:
        self._seed, self._rank = seed, rank

    def __call__(self, worker: int) -> Any:
        workers = sys.modules["torch"].utils.data.get_worker_info().num_workers
        return self._seed(worker, num_workers=workers, rank=self._rank)
