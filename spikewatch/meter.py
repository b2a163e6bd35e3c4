"""What the training thread counts: steps, waits, samples, and the gauges of the newest step.

Only the training thread writes here. The client's thread reads while a step is running, without a lock: each running
clock is two numbers, and the order in which they are written and read keeps it from ever seeing more than the truth.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from spikewatch import layout
from spikewatch.layout import MISSING
from spikewatch.procinfo import since_boot

NEVER = 1 << 62
LOSSES = 100  # steps whose losses make the standard deviation


class Hot:
    """What every batch and every step touches, apart from the rest so that it lies side by side in memory.

    Behind a step's work all of it has to come back from further away, and each cache line costs.
    """

    __slots__ = (
        "batch_bytes", "boundary", "bytes", "due", "ended", "handed", "kind", "loss", "nonfinite", "note", "now",
        "samples", "step_from", "step_ns", "steps", "wait_from", "wait_ns",
    )  # fmt: skip

    def __init__(self, now: Callable[[], int] = time.perf_counter_ns) -> None:
        self.now = now
        self.steps = 0  # calls of step(), the same on every rank
        self.boundary = NEVER  # the step at which orders are carried out
        self.due = 0  # when the next record is to be written, on the clock `now`
        self.ended = 0  # when the last step ended; 0 before the first
        self.step_ns = self.wait_ns = 0  # finished
        self.step_from = self.wait_from = 0  # start of the one in progress or 0; of a step only in phase train
        self.handed: float = 0.0  # samples of all batches taken
        self.samples: float = 0.0  # those of steps that have ended
        self.bytes = 0  # of tensors handed over
        self.batch_bytes = 0  # largest batch seen
        self.kind: Any = None  # type of the losses so far that are tensors
        self.loss: float = MISSING
        self.nonfinite = 0  # losses that were NaN or infinite
        self.note: Callable[[Any], None] = lambda loss: None  # keeps a loss


class Meter(Hot):
    """The cumulative totals and newest gauges of one rank. Times come from `now`, in nanoseconds."""

    __slots__ = (
        "_epoch_began",
        "_last_step",
        "batch_size",
        "bytes_known",
        "consecutive_overflows",
        "epoch",
        "errors",
        "first_step_at",
        "grad_norm",
        "hits",
        "loss_scale",
        "losses",
        "num_workers",
        "offloaded",
        "overflows",
        "phase",
        "prefetch_factor",
        "requests",
        "samples_known",
        "told",
        "wall",
    )

    def __init__(self, now: Callable[[], int] = time.perf_counter_ns, wall: Callable[[], float] = time.time) -> None:
        """`wall`: seconds since 1970."""
        super().__init__(now)
        self.wall = wall
        self.losses: deque[float] = deque(maxlen=LOSSES)
        self.note = self.losses.append
        self.phase = layout.STARTUP
        self.errors = 0
        self.epoch = MISSING
        self._epoch_began = (0, 0.0)  # steps and overflows up to then; one tuple, for two threads
        self.first_step_at = 0.0  # seconds since boot; 0 before the first record after it
        self._last_step = (0, MISSING)  # when it ended, by both clocks
        self.offloaded = MISSING  # bytes
        self.requests = self.hits = MISSING  # no prefetching loader seen yet
        self.told = MISSING  # samples up to the last step that told its own
        self.samples_known: bool | None = None  # None: nothing said yet; False: something could not be counted
        self.bytes_known: bool | None = None
        self.grad_norm = self.loss_scale = MISSING
        self.overflows = self.consecutive_overflows = MISSING
        self.batch_size = self.num_workers = self.prefetch_factor = MISSING

    def enter(self, phase: int) -> None:
        """Switches the phase. Steps are timed in `train` only, so an evaluation never looks like a slow step."""
        if phase == self.phase:
            return
        started, self.step_from = self.step_from, 0  # stopped before the time is read, see `record`
        now = self.now()
        if started:
            self.step_ns += now - started
        self.phase = phase
        if phase == layout.TRAIN:
            self.step_from = now

    def pass_begins(self) -> None:
        """The loader is gone through once more: a new epoch."""
        self.epoch = 0.0 if self.epoch != self.epoch else self.epoch + 1
        self._epoch_began = (self.steps, 0.0 if self.overflows != self.overflows else self.overflows)

    def epoch_steps(self) -> float:
        """Steps finished in this epoch; missing before the first."""
        return MISSING if self.epoch != self.epoch else self.steps - self._epoch_began[0]

    def epoch_overflows(self) -> float:
        """Gradient overflows in this epoch; missing where none are counted."""
        if self.epoch != self.epoch or self.overflows != self.overflows:
            return MISSING
        return self.overflows - self._epoch_began[1]

    def wait_begins(self) -> int:
        """The loop asked for data. Returns when, 0 if the wait is not to be counted (phase eval and so on)."""
        if self.phase == layout.STARTUP:
            self.enter(layout.TRAIN)
        if self.phase != layout.TRAIN:
            return 0
        self.wait_from = now = self.now()
        return now

    def wait_ends(self, began: int) -> None:
        """The data came, or did not."""
        if began:
            self.wait_from = 0
            self.wait_ns += self.now() - began

    def received(self, samples: int | None, size: int | None) -> None:
        """A batch was handed over: how many samples and tensor bytes it has, None where it cannot be told."""
        if samples is not None:
            self.handed += samples
        elif self.told == self.told:  # the step will tell again, and until then the total so far holds
            self.handed = MISSING
        else:
            self.samples_known = False
        if size is None:
            self.bytes_known = False
        else:
            self.bytes += size
            self.batch_bytes = max(self.batch_bytes, size)
            if self.bytes_known is None:
                self.bytes_known = True

    def prefetch(self, hit: bool) -> None:
        """A batch was asked of a prefetching loader."""
        if self.requests != self.requests:  # MISSING
            self.requests = self.hits = 0.0
        self.requests += 1
        self.hits += hit

    def stepped(self, samples: float | None = None) -> int:
        """A step ended; returns when. `samples`, where given, replaces what was counted from its batches."""
        self.steps += 1
        return self.ends(samples)

    def ends(self, samples: float | None) -> int:
        """The same for a step that is counted already."""
        started, now = self.step_from, self.now()  # not stopped first: the next step begins where this one ends
        if self.phase in (layout.STARTUP, layout.TRAIN):
            self.phase = layout.TRAIN
            self.step_from = now
            if started:
                self.step_ns += now - started
        self.ended = now
        if samples is None:
            self.samples = self.handed
        else:
            self.used(samples)
        return now

    def used(self, samples: float) -> None:
        """So many samples went into the step that ended, whatever its batches told."""
        total = self.samples if self.samples == self.samples else self.told  # a step in between did not tell
        self.samples = self.handed = self.told = total + samples
        self.samples_known = True

    def last_step_at(self, now: int) -> float:
        """When the last step ended, in seconds since 1970; missing before the first. `now`: as in `record`.

        The wall clock is read for records only, so the answer is kept: asked again it must not be another one.
        """
        ended, known = self.ended, self._last_step
        if ended != known[0]:
            if not known[0]:
                self.first_step_at = since_boot() - (now - ended) * 1e-9
            self._last_step = known = (ended, self.wall() - (now - ended) * 1e-9)
        return known[1]

    def record(self, now: int) -> tuple[float, ...]:
        """All of `layout.FIELDS`, what is in progress counted up to `now`, which must have been read before.

        The times are never more than the truth: of each clock what is finished is read before the start of what is in
        progress, and the writer moves or takes out the start before it adds to what is finished. So what is said to be
        in progress was so at `now`, and what began later adds nothing. (For an instant the newest stretch is missing
        from both: whoever publishes keeps the largest value so far.)
        """
        step, started = self.step_ns, self.step_from
        if 0 < started < now:
            step += now - started
        wait, started = self.wait_ns, self.wait_from
        if 0 < started < now:
            wait += now - started
        samples, known = self.samples, self.samples_known
        return (
            now * 1e-9,
            self.steps,
            step * 1e-9,
            wait * 1e-9,
            self.requests,
            self.hits,
            samples if known or (known is None and samples) else MISSING,
            self.bytes if self.bytes_known else MISSING,
            self.loss,
            self.grad_norm,
            self.loss_scale,
            self.overflows,
            self.consecutive_overflows,
            self.nonfinite if self.losses else MISSING,
            self.batch_size,
            self.num_workers,
            self.prefetch_factor,
            self.phase,
            self.last_step_at(now),
            self.errors,
            self.epoch,
        )
