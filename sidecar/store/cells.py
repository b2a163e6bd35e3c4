"""What a cell can hold besides a number: two NaN bit patterns that mean `stale` and `missing`.

Both are signalling NaNs that no arithmetic produces, so one float64 carries the value and its two validity bits.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]
Bools = NDArray[np.bool_]

STALE_BITS = 0x7FF0000000000002  # Prometheus's staleness marker
MISSING_BITS = 0x7FF0000000000003  # ours; differs in the last bit only, so one shift finds both
_EITHER = np.uint64(STALE_BITS >> 1)
_ONE = np.uint64(1)
_MISSING = np.uint64(MISSING_BITS)
_STALE = np.uint64(STALE_BITS)
_STALE_BYTES = _STALE.tobytes()

MISSING: float = struct.unpack("<d", struct.pack("<Q", MISSING_BITS))[0]


def absent(values: F64) -> Bools:
    """Where a cell holds no sample: missing or stale. `values` is contiguous along its last axis."""
    out: Bools = (values.view(np.uint64) >> _ONE) == _EITHER
    return out


def missing(values: F64) -> Bools:
    """Where nothing was written."""
    out: Bools = values.view(np.uint64) == _MISSING
    return out


def stale(values: F64) -> Bools:
    """Where the series ended."""
    out: Bools = values.view(np.uint64) == _STALE
    return out


def may_be_stale(values: F64) -> bool:
    """Whether a series may have ended among these: a quick look, now and then wrong, but never when it says no."""
    return _STALE_BYTES in values.tobytes()


def empty(shape: Any) -> F64:
    """A new array of missing cells."""
    return np.full(shape, _MISSING, dtype=np.uint64).view(np.float64)
