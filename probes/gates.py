"""Whether a sweep may run now: preflight, a window the trainer declared, idleness, or beside it where allowed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import Enum


class Sharing(Enum):
    """How a GPU is shared, as NVML tells; MPS by its environment."""

    EXCLUSIVE = "exclusive"
    TIMESLICE = "timeslice"
    MPS = "mps"
    MIG = "mig"


@dataclass(frozen=True, slots=True)
class Situation:
    """What is known right now. None: not known."""

    trainer_attached: bool
    trainer_started: bool  # it has run its first step
    window_open: bool  # the trainer says: checkpoint, evaluation, waiting for data
    sm_activity: float | None  # 0..1 over the last second at least
    free_bytes: int | None
    recent_xid: bool
    sharing: Sharing = Sharing.EXCLUSIVE


@dataclass(frozen=True, slots=True)
class Policy:
    """What the operator allows."""

    beside_busy: bool = False
    under_mps: bool = False
    idle_below: float = 0.05
    least_free_bytes: int = 3 << 30  # the context, three times an L2 cache, and 2 GiB that stay the trainer's


@dataclass(frozen=True, slots=True)
class Verdict:
    """`gate`: preflight, window, idle, busy; empty where nothing may run, and then `reason` is a result word."""

    gate: str
    reason: str = ""
    why: str = ""

    @property
    def open(self) -> bool:
        """Whether a sweep may run."""
        return bool(self.gate)


def decide(now: Situation, policy: Policy) -> Verdict:
    """The first gate that is open, once nothing forbids it altogether."""
    if now.recent_xid:
        return Verdict(
            "", "skipped_xid", "the GPU reported an Xid error: a probe could hide or worsen what is going on"
        )
    if now.sharing is Sharing.MPS and not policy.under_mps:
        return Verdict(
            "", "skipped_mps", "under MPS a fault of a probe would be the trainer's; allow it with under_mps"
        )
    if now.free_bytes is not None and now.free_bytes < policy.least_free_bytes:
        return Verdict(
            "", "skipped_memory", f"{now.free_bytes >> 20} MiB are free, {policy.least_free_bytes >> 20} needed"
        )
    if not now.trainer_started:
        return Verdict("preflight")
    if now.window_open:
        return Verdict("window")
    if now.sm_activity is not None and now.sm_activity < policy.idle_below:
        return Verdict("idle")
    if policy.beside_busy:
        return Verdict("busy")
    if now.sm_activity is None:
        return Verdict("", "skipped_busy", "nothing tells whether the GPU is idle, so it counts as busy")
    return Verdict("", "skipped_busy", f"the GPU is busy ({now.sm_activity:.0%} of its multiprocessors)")


def allowed(gate: str, light: bool, window_only: bool) -> bool:
    """Which probes a gate lets through: beside a busy trainer light ones only, what takes memory in windows only."""
    if gate == "busy":
        return light
    return gate in ("preflight", "window") or not window_only


def second_of(job: str, period_s: int = 60) -> int:
    """At which second of each period the ranks of a job probe: all at the same, or each would delay all others.

    A thousand ranks with 2 ms a minute each cost 0.2 % when they go one after another, 0.003 % together.
    """
    return int.from_bytes(hashlib.sha256(job.encode()).digest()[:4], "big") % period_s


def next_start(now_s: float, job: str, period_s: int = 60) -> float:
    """When to start next, in wall seconds; clocks of nodes agree to far better than a second."""
    slot = second_of(job, period_s)
    start = now_s - now_s % period_s + slot
    return start if start > now_s else start + period_s
