"""A dump of torch's flight recorder, asked for by the sidecar: the last collectives of this rank, as JSON.

Takes some 30 ms for 2000 entries, on the client's thread, so it is never taken by itself. It goes over as a sealed
memory file: a packet holds 64 KiB, a dump a megabyte or two.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable
from typing import Any

from spikewatch.refusal import Refused

MAX_SIZE = 16 << 20  # bytes
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_NAMES = ("_dump_fr_trace_json", "_dump_nccl_trace_json")  # torch 2.13 and, with CUDA only, before


def dump() -> bytes:
    """The recorder's content. Raises Refused where there is none to ask, or it holds more than may be sent."""
    content = _recorder()(True, False)  # collectives, too; not only those under way
    data = content.encode() if isinstance(content, str) else bytes(content)
    if len(data) > MAX_SIZE:
        raise Refused("unsupported", f"the flight recorder holds {len(data)} bytes, {MAX_SIZE} may be sent")
    return data


def _recorder() -> Callable[[bool, bool], Any]:
    torch = sys.modules.get("torch")
    group = getattr(torch, "distributed", None)
    if group is None or not group.is_available() or not group.is_initialized():
        raise Refused("unsupported", "torch.distributed is not initialised")
    inner = sys.modules.get("torch._C._distributed_c10d")
    found = next((getattr(inner, name) for name in _NAMES if hasattr(inner, name)), None)
    if found is None:
        raise Refused("unsupported", "this torch has no flight recorder that can be asked")
    dumper: Callable[[bool, bool], Any] = found
    return dumper


def sealed(data: bytes) -> int:
    """A descriptor of a memory file with `data` that nobody can change any more. Raises OSError."""
    fd = os.memfd_create("spikewatch-dump", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        written = 0
        while written < len(data):
            written += os.write(fd, data[written:])
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd
