"""The in-memory store: columnar rings, one block for the series of each (metric, producer)."""

from sidecar.store.block import Block
from sidecar.store.store import Stats, Store

__all__ = ["Block", "Stats", "Store"]
