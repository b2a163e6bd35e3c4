"""Warnings by kind. NCCL 2.30 has some six hundred of them: the text is kept, and these families are told apart."""

from __future__ import annotations

import re

from sidecar.collectors.nccl.events import Warn

OTHER = "other"

# The first that matches wins.
_FAMILIES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (family, re.compile(pattern, re.I))
    for family, pattern in (
        ("ib_completion", r"NET/IB ?: Got completion from peer"),
        ("ib_async_event", r"NET/IB ?: .*async (?:fatal )?event|Got non-fatal async event"),
        ("ib", r"NET/IB ?:|\bibv_|\bIB_|wrap_ibv"),
        ("plugin", r"NET plugin|NET/Plugin|plugin"),
        ("connect", r"(?:Call to )?connect .*(?:failed|refused|timed? ?out)|socketStartConnect|No route to host"),
        ("socket", r"NET/Socket ?:|socket|Connection (?:closed|reset)|Call to (?:recv|send|accept|bind|listen)"),
        ("bootstrap", r"bootstrap|Message truncated|unexpected (?:rank|magic)"),
        ("cuda", r"Cuda failure|CUDA error|out of memory|Failed to CUDA|cuMem"),
        ("nvml", r"\bnvml"),
        ("version_mismatch", r"Mismatched NCCL version|version mismatch|incompatible"),
        ("shm", r"shared memory|/dev/shm|shmOpen|posix_fallocate|while creating shared"),
        ("proxy", r"Proxy append out of bounds|\[Proxy|proxy"),
        ("topology", r"topolog|NVLink|PCI|affinity|\bGPU/"),
        ("argument", r"invalid argument|invalid usage|: invalid|must be|Duplicate GPU"),
        ("ras", r"\bRAS\b"),
        ("abort", r"abort"),
        ("memory", r"Failed to (?:m?alloc|calloc)|allocat"),
        ("unsupported", r"not supported|unsupported"),
    )
)

FAMILIES: tuple[str, ...] = (*(family for family, _ in _FAMILIES), OTHER)
"""Every value of the label `family`."""

_PEER = re.compile(r"from peer (?P<peer>\S+) with status=(?P<status>\S+)")


def warn(message: str, where: str) -> Warn:
    """Names the family. `where` is the file and line in NCCL's source, empty where the line has none."""
    found = _PEER.search(message)
    return Warn(
        family=family_of(message),
        message=message,
        where=where,
        peer=found["peer"] if found else "",
        status=found["status"] if found else "",
    )


def family_of(message: str) -> str:
    """`other` for what is in none of the families."""
    return next((family for family, pattern in _FAMILIES if pattern.search(message)), OTHER)
