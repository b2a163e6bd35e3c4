"""From numbers to a cause: each line says what was measured, what it means, and what to do about it. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known about the trainer's kernels and this GPU's probes. None: not measured. Ratios 0..1.

    `coalescing`: useful over moved bytes; `issue_rate`: instructions issued over what could be; `bytes_rate`: memory
    traffic over its peak; `launch_share`: of a step's time spent starting kernels; `bank_conflict`: slowdown factor.
    """

    coalescing: float | None = None
    issue_rate: float | None = None
    bytes_rate: float | None = None
    launch_share: float | None = None
    bank_conflict: float | None = None
    gemm_baseline: float | None = None
    memory_baseline: float | None = None
    clocks_limited: str | None = None  # NVML's reason, where there is one


@dataclass(frozen=True, slots=True)
class Line:
    """One finding."""

    finding: str
    evidence: str
    next_step: str

    def __str__(self) -> str:
        return f"{self.finding} ({self.evidence}): {self.next_step}"


LOW_COALESCING, HIGH_COALESCING = 0.85, 0.95
HIGH_ISSUE, LOW_ISSUE = 0.9, 0.6
COMPUTE_BOUND, BANDWIDTH_FREE = 0.85, 0.40
LAUNCH_SHARE, CONFLICT, DRIFT = 0.20, 2.0, 0.95


def explain(seen: Seen) -> list[Line]:
    """The findings the numbers allow, most certain first; none where nothing was measured."""
    return [*_hardware(seen), *_access(seen), *_work(seen)]


def _hardware(seen: Seen) -> list[Line]:
    found = []
    for name, ratio in (("tensor throughput", seen.gemm_baseline), ("memory bandwidth", seen.memory_baseline)):
        if ratio is not None and ratio < DRIFT:
            why = f"; the driver says: {seen.clocks_limited}" if seen.clocks_limited else ""
            found.append(
                Line(
                    f"this GPU is below its own {name}",
                    f"{ratio:.2f} of its baseline{why}",
                    "look at clocks, power limit, temperature and ECC before looking at the code",
                )
            )
    return found


def _access(seen: Seen) -> list[Line]:
    found = []
    if seen.coalescing is not None and seen.issue_rate is not None:
        evidence = f"coalescing {seen.coalescing:.2f}, issue rate {seen.issue_rate:.2f}"
        if seen.coalescing < LOW_COALESCING and seen.issue_rate > HIGH_ISSUE:
            found.append(Line("non-contiguous access", evidence, "make the tensors contiguous, or change the layout"))
        elif seen.coalescing > HIGH_COALESCING and seen.issue_rate < LOW_ISSUE:
            found.append(Line("instruction-bound", evidence, "fuse kernels: fewer instructions for each byte"))
    if seen.bank_conflict is not None and seen.bank_conflict > CONFLICT:
        evidence = f"{seen.bank_conflict:.1f} × slower than without conflict"
        found.append(Line("shared-memory bank conflicts", evidence, "pad the rows of the tile by one word"))
    return found


def _work(seen: Seen) -> list[Line]:
    found = []
    if seen.launch_share is not None and seen.launch_share > LAUNCH_SHARE:
        evidence = f"{seen.launch_share:.0%} of the step's time starts kernels"
        found.append(Line("launch-bound", evidence, "capture the step in a CUDA graph, or compile it"))
    if seen.issue_rate is not None and seen.bytes_rate is not None and seen.issue_rate > COMPUTE_BOUND:
        if seen.bytes_rate < BANDWIDTH_FREE:
            evidence = f"instructions at {seen.issue_rate:.2f}, bytes at {seen.bytes_rate:.2f} of their peak"
            found.append(Line("compute-bound, bandwidth is free", evidence, "recompute less, or move work to memory"))
    return found
