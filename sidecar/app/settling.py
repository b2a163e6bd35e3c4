"""Once everything is loaded: what start-up left behind is given back, and what stays is never looked through again."""

from __future__ import annotations

import ctypes
import gc


def settle() -> None:
    """Takes some 50 ms, once. Without it each full collection goes through every module's objects again."""
    gc.collect()
    gc.freeze()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; elsewhere the allocator gives back by itself
    if trim is not None:
        trim(0)
