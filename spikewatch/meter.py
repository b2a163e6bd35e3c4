"""What the training thread counts: steps, waits, samples, and the gauges of the newest step.

Only the training thread writes here. The client's thread reads while a step is running, so the two running clocks
are each one tuple, replaced whole: a reader sees a consistent pair without a lock.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from spikewatch import layout
from spikewatch.layout import MISSING
from spikewatch.procinfo import since_boot

Clock = tuple[int, int]
"""(nanoseconds finished, start of what is in progress or 0)."""


def elapsed(clock: Clock, now: int) -> int:
    """Nanoseconds up to `now`, never more than the truth.

    `now` must have been read before `clock`. Then what the tuple says is in progress was in progress at `now`, for
    the writer takes the start out before it reads the time of the end; and what began after `now` adds nothing.
    (For an instant the newest stretch is missing from both: whoever publishes keeps the largest value so far.)
    """
    total, started = clock
    return total + (now - started) if started and now > started else total


class Meter:
    """The cumulative totals and newest gauges of one rank. Times come from `now`, in nanoseconds."""

    __slots__ = (
        "batch_bytes",
        "batch_size",
        "bytes",
        "bytes_known",
        "consecutive_overflows",
        "_epoch_began",
        "epoch",
        "errors",
        "first_step_at",
        "grad_norm",
        "hits",
        "last_step_at",
        "loss",
        "loss_scale",
        "nonfinite_losses",
        "now",
        "num_workers",
        "offloaded",
        "overflows",
        "phase",
        "prefetch_factor",
        "requests",
        "samples",
        "samples_known",
        "samples_waiting",
        "step_clock",
        "steps",
        "wait_clock",
    )

    def __init__(self, now: Callable[[], int] = time.perf_counter_ns) -> None:
        self.now = now
        self.steps = 0
        self.step_clock: Clock = (0, 0)
        self.wait_clock: Clock = (0, 0)
        self.phase = layout.STARTUP
        self.errors = 0
        self.epoch = MISSING
        self._epoch_began = (0, 0.0)  # steps and overflows up to then; one tuple, see above
        self.first_step_at = 0.0  # seconds since boot; 0 before the end of the first step
        self.offloaded = MISSING  # bytes
        self.requests = self.hits = MISSING  # no prefetching loader seen yet
        self.samples = self.bytes = 0.0
        self.samples_known: bool | None = None  # None: nothing counted yet; False: something could not be counted
        self.bytes_known: bool | None = None
        self.samples_waiting = 0.0  # of batches taken since the last step
        self.batch_bytes = 0  # largest batch seen
        self.loss = self.grad_norm = self.loss_scale = MISSING
        self.nonfinite_losses = MISSING
        self.overflows = self.consecutive_overflows = MISSING
        self.batch_size = self.num_workers = self.prefetch_factor = MISSING
        self.last_step_at = MISSING

    def enter(self, phase: int) -> None:
        """Switches the phase. Steps are timed in `train` only, so an evaluation never looks like a slow step."""
        if phase == self.phase:
            return
        total, started = self.step_clock
        self.step_clock = (total, 0)  # stopped before the time is read, see `elapsed`
        now = self.now()
        if started:
            total += now - started
        self.phase = phase
        self.step_clock = (total, now if phase == layout.TRAIN else 0)

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
        now = self.now()
        self.wait_clock = (self.wait_clock[0], now)
        return now

    def wait_ends(self, began: int) -> None:
        """The data came, or did not."""
        if began:
            total = self.wait_clock[0]
            self.wait_clock = (total, 0)
            self.wait_clock = (total + self.now() - began, 0)

    def received(self, samples: int | None, size: int | None) -> None:
        """A batch was handed over: how many samples and tensor bytes it has, None where it cannot be told."""
        if samples is None:
            self.samples_known = False
        else:
            self.samples_waiting += samples
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

    def stepped(self, samples: float | None, wall: float) -> int:
        """A step ended. `samples`, where given, replaces what was counted from its batches."""
        if self.phase == layout.STARTUP:
            self.phase = layout.TRAIN
        if self.phase == layout.TRAIN:
            total, started = self.step_clock
            now = self.now()  # not stopped first as elsewhere: the next step begins where this one ends
            self.step_clock = (total + now - started if started else total, now)
        self.steps += 1
        if self.steps == 1:
            self.first_step_at = since_boot()
        self.last_step_at = wall
        if samples is not None:
            self.samples += samples
            self.samples_known = True
        else:
            self.samples += self.samples_waiting
            if self.samples_waiting and self.samples_known is None:
                self.samples_known = True
        self.samples_waiting = 0.0
        return self.steps

    def record(self, now: int) -> tuple[float, ...]:
        """All of `layout.FIELDS`, what is in progress counted up to `now` (read before the call)."""
        return (
            now * 1e-9,
            self.steps,
            elapsed(self.step_clock, now) * 1e-9,
            elapsed(self.wait_clock, now) * 1e-9,
            self.requests,
            self.hits,
            self.samples if self.samples_known else MISSING,
            self.bytes if self.bytes_known else MISSING,
            self.loss,
            self.grad_norm,
            self.loss_scale,
            self.overflows,
            self.consecutive_overflows,
            self.nonfinite_losses,
            self.batch_size,
            self.num_workers,
            self.prefetch_factor,
            self.phase,
            self.last_step_at,
            self.errors,
            self.epoch,
        )
