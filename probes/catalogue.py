"""Every probe there is: what it measures, how it counts, what it costs."""

from __future__ import annotations

from probes.measures import compute, launching, memory, transfer
from probes.reading import Probe


def catalogue() -> tuple[Probe, ...]:
    """In the order of a full sweep. Seconds of GPU time are derived for an H200 (4.8 TB/s, 132 multiprocessors)."""
    return (
        Probe("memory", memory.contiguous, "Contiguous read and copy", "read 1 ×, copy 2 × the bytes", 6e-4, True),
        Probe("stride", memory.strides, "Words apart from each other", "useful bytes, 4 a word", 1.1e-3),
        Probe("alignment", memory.alignment, "Reads that start within a sector", "4 bytes a word", 5e-4),
        Probe("l2", memory.cache, "Reads that stay in the L2 cache", "bytes × passes", 1e-4),
        Probe("reduce", memory.reduction, "The local part of a reduction", "3 × the bytes of one array", 2e-4),
        Probe("banks", compute.banks, "Shared memory with and without conflicts", "32 or 1 wavefronts a request", 3e-4),
        Probe("tensor", compute.tensor, "Tensor cores", "4096 FLOP an mma.sync, 1 048 576 four wgmma", 6e-4, True),
        Probe("fusion", compute.fusion, "RMSNorm and projection, apart and fused", "3 rows of traffic saved", 4e-4),
        Probe("launch", launching.latency, "Starting kernels", "seconds a launch", 8e-4, True),
        Probe("streams", launching.streams, "Streams side by side", "2 − both ÷ one", 8e-4),
        Probe(
            "h2d", transfer.host_copies, "Host to device, beside a kernel", "shared time ÷ the longer of the two", 2e-3,
            window_only=True,
        ),
        Probe("p2p", transfer.peers, "Reading a peer's memory", "bytes read", 4e-4, window_only=True),
        Probe("allocatable", transfer.allocatable, "The largest free piece", "bytes", 0.0, window_only=True),
    )  # fmt: skip


def chosen(names: list[str]) -> list[Probe]:
    """By name, `light` or `all`. Raises KeyError with the name that is unknown."""
    known = {probe.name: probe for probe in catalogue()}
    found: list[Probe] = []
    for name in names or ["light"]:
        if name == "all":
            found += known.values()
        elif name == "light":
            found += [probe for probe in known.values() if probe.light]
        else:
            found.append(known[name])
    return list(dict.fromkeys(found))
