"""The handle a training script holds: `run.loader`, `run.step(…)`, `run.phase(…)`, `run.close()`."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import time
import weakref
from dataclasses import dataclass
from typing import Any

from spikewatch import layout
from spikewatch.agent import Agent
from spikewatch.agreement import Agreement
from spikewatch.batchingloop import Loop
from spikewatch.change import AgreementLost
from spikewatch.changes import Ledger
from spikewatch.knob import Source
from spikewatch.knobs import KnobSet
from spikewatch.measuring import Measuring
from spikewatch.meter import NEVER, Meter
from spikewatch.notes import Notes
from spikewatch.numerics_precision import MixedPrecision
from spikewatch.overflow import OverflowWatch
from spikewatch.overlap import of_profile
from spikewatch.ring import RingWriter
from spikewatch.scalars import Scalar
from spikewatch.search import STORM
from spikewatch.trackers import Trackers
from spikewatch.tuner import Tuner

log = logging.getLogger("spikewatch")

# Nanoseconds. Writing a record costs more than the rest of step(), so where steps are shorter most go without one, and
# nothing is lost by it, for totals are cumulative; and where they are shorter than the latter, no single step pays for
# all of a record.
PUBLISH_EVERY, SHORT_STEP = 250_000_000, 30_000_000

MAX_ERRORS = 16  # of our own, on the training thread; then the client turns itself off


@dataclass(frozen=True, slots=True)
class Parts:
    """What an attached run is made of; `attach` puts it together."""

    meter: Meter
    ring: RingWriter
    ledger: Ledger
    agent: Agent
    agreement: Agreement
    knobs: KnobSet
    precision: MixedPrecision
    tuner: Tuner | None
    overflow: OverflowWatch | None


class Run(Loop):
    """One attached rank. Nothing here raises, waits or makes a system call, but for a change that was ordered."""

    _meter: Meter | None = None  # of `_parts`, for `step`
    _overflow: OverflowWatch | None = None

    def __init__(self, loader: Any = None, parts: Parts | None = None) -> None:
        """Use `spikewatch.attach`. Without `parts` the run is inert: the loader is the given one, calls do nothing."""
        self.loader = loader
        self._parts = parts
        self._loss, self._norm = Scalar(), Scalar()
        self._failures = 0
        self._owed: Parts | None = None
        self._notes, self._trackers = Notes(), Trackers()
        if parts is not None:
            self._meter, self._overflow = parts.meter, parts.overflow
            self._attached = parts  # also after the end
            self._stage = 0  # of the record that is being made
            self._record: tuple[float, ...] = ()
            self._payload, self._checksum = b"", 0  # the same
            self._measuring = Measuring(parts.meter, parts.agent.telemetry)
            parts.knobs.frozen = self._measuring.frozen
            _disable_in_forks(self)
            atexit.register(_say_goodbye, weakref.ref(self))

    @property
    def active(self) -> bool:
        """Whether anything is measured: not inert, closed, forked or turned off after errors."""
        return self._parts is not None

    @property
    def connected(self) -> bool:
        """Whether a sidecar listens at the moment."""
        return self._parts is not None and self._parts.agent.connected

    def step(  # noqa: C901  in one piece, with few objects: behind a step's work each comes from memory anew
        self, loss: Any = None, grad_norm: Any = None, samples: float | None = None
    ) -> None:
        """Ends a training step: call it once an optimizer step, after the scaler's update.

        `loss`, `grad_norm`: a number or a tensor of one element; a CUDA tensor is copied, never waited for, and
        shows a step or two later. `samples`: how many samples the step used, where the loader's batches do not
        tell. Changes that were ordered are carried out here.
        """
        meter = self._meter
        if meter is None:
            self._pay()
            return
        meter.steps += 1  # before anything can fail: ranks agree on the number of a step
        try:
            if self._batching is not None:
                self._batching.stepped()
            if type(loss) is meter.kind and loss.is_cpu:
                try:
                    value = loss.item()
                except RuntimeError:  # not one element; asking first would cost every step
                    pass
                else:
                    meter.loss = value
                    meter.note(value)
                    if value - value != 0.0:  # NaN or infinite
                        meter.nonfinite += 1
            elif loss is not None:
                self._offered(meter, loss)
            began = meter.step_from
            if began and samples is None:  # `Meter.ends` in phase train, without the call
                meter.step_from = meter.ended = now = meter.now()
                meter.step_ns += now - began
                meter.samples = meter.handed
            else:
                now = meter.ends(samples)
            overflow = self._overflow
            if overflow is not None:
                if overflow.fired and not overflow.restless:
                    overflow.fired = 0
                    overflow.states = overflow.scaler._per_optimizer_states
                else:
                    self._overflowed(meter, overflow)
            if now >= meter.due:
                self._due(meter, now, began, grad_norm)
        except Exception as error:  # noqa: BLE001  the trainer goes on exactly as without us
            self._failed(error)
        if meter.steps >= meter.boundary:
            self._at_boundary()

    def _offered(self, meter: Meter, loss: Any) -> None:
        """A loss that is no tensor of the usual kind: a number, the first of its kind, or on an accelerator."""
        scalar = self._loss
        before = scalar.nonfinite
        arrived = scalar.offer(loss)
        if arrived:
            meter.loss = scalar.value
            meter.nonfinite += scalar.nonfinite - before
            meter.losses.extend(arrived)
            meter.kind = scalar.kind

    def _overflowed(self, meter: Meter, overflow: OverflowWatch) -> None:
        """After a step that was an overflow, or is not known to be none."""
        overflow.stepped()
        meter.overflows, meter.consecutive_overflows = overflow.total, overflow.consecutive
        meter.loss_scale = overflow.scale
        search = self._measuring.search
        if search is not None and (overflow.consecutive >= STORM or search.busy):
            search.stepped(meter.steps, overflow.consecutive)
            overflow.restless = True

    def _due(self, meter: Meter, now: int, began: int, grad_norm: Any) -> None:
        """A record is due after the step from `began` to `now`. What only shows there is not looked up before."""
        ring, step = self._attached.ring, self._stage
        self._stage = 0  # should this one fail
        if step == 0:
            if grad_norm is not None:
                self._norm.offer(grad_norm)
                meter.grad_norm = self._norm.value
        elif step == 1:
            if self._overflow is not None and not self._overflow.fused:
                self._overflow.look()
                meter.loss_scale = self._overflow.scale
            if self._measuring.chores:
                self._measuring.look(now)
        elif step == 2:
            self._record = meter.record(now)
        elif step == 3:
            self._payload = ring.packed(self._record)
        elif step == 4:
            self._checksum = ring.checksum(ring.newest + 1, self._payload)
        elif step == 5:
            ring.put(ring.newest + 1, self._payload, self._checksum)
        else:
            ring.publish(ring.newest + 1)
            meter.due = now + PUBLISH_EVERY
            return
        self._stage = step + 1
        if now - began > SHORT_STEP or not ring.newest:
            self._due(meter, now, began, grad_norm)

    def _at_boundary(self) -> None:
        parts = self._attached
        try:
            parts.ledger.at_boundary(parts.ledger.steps)
            self._note(parts, parts.ledger.steps)
        except AgreementLost:  # the one thing that must stop a training: going on could split the replicas
            raise
        except Exception as error:  # noqa: BLE001  as in step
            self._failed(error)

    def autocast(self, device_type: str, dtype: Any = None, **more: Any) -> Any:
        """`torch.autocast(device_type, dtype, …)`, made once or for every step. One of fp16 can be changed to bf16."""
        if self._parts is not None:
            return self._parts.precision.autocast(device_type, dtype, **more)
        import torch

        return torch.autocast(device_type, dtype, **more)

    def offer(self, source: Source) -> None:
        """Lets what `source` has be changed, too, for adapters. Raises ValueError for a name that is taken."""
        if self._parts is not None:
            self._parts.knobs.add(source)

    def measure(self, model: Any = None, scaler: Any = None) -> None:
        """Also measures what `model` and `scaler` tell; `attach` calls it. Never raises."""
        if self._parts is None:
            return
        try:
            self._measuring.begin(model, scaler)
        except Exception as error:  # noqa: BLE001  as in step
            self._failed(error)

    def describe(self, parallelism: str = "", precision: str = "", offload: str = "", framework: str = "") -> None:
        """Says how this run trains, where `attach` could not tell: for `spikewatch_trainer_run_info`."""
        if self._parts is not None:
            words = {"parallelism": parallelism, "precision": precision, "offload": offload, "framework": framework}
            self._measuring.telemetry.describe(**words)

    def offloaded(self, size: float) -> None:
        """The engine moved `size` more bytes to or from its offload storage."""
        if self._parts is not None:
            meter = self._parts.meter
            meter.offloaded = size if meter.offloaded != meter.offloaded else meter.offloaded + size

    def on_trace(self, profile: Any) -> None:
        """Takes the overlap of copies and kernels from a profile: `profile(on_trace_ready=run.on_trace)`."""
        if self._parts is None:
            return
        try:
            self._measuring.copy_overlap = of_profile(profile.events())
        except Exception as error:  # noqa: BLE001  as in step
            self._failed(error)

    def annotate(self, writer: Any) -> None:
        """Also writes every change into `writer`, a TensorBoard `SummaryWriter` or what has its methods."""
        if self._parts is not None:
            self._trackers.add(writer)

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint, to be taken between two steps: `{"version": 1, "changes": [...], "data": {...}}`.

        `changes` were made to this run; `data` says where the pass over the loader stands, see `Loop.data_state`.
        """
        return {**self._notes.state_dict(), "data": self.data_state()}

    def load_state_dict(self, state: Any, strict: bool = False) -> bool:
        """Call it before the first pass: that begins with the first sample whose step is not in the checkpoint.

        Takes over the changes noted before the restart, too; what cannot be read of them is left out. Returns whether
        the data goes on there. Where it does not, the reason is logged; with `strict` ValueError is raised instead.
        Random states other than the loader's own generators are yours to restore.
        """
        self._notes.load_state_dict(state)
        return self.resume_data(state.get("data") if isinstance(state, dict) else None, strict)

    def _note(self, parts: Parts, step: int) -> None:
        for note in self._notes.look(parts.ledger.reports(), step, time.time()):
            self._trackers.tell(note)

    def phase(self, name: str) -> Phase:
        """Enters a phase: startup, compile, train, eval or checkpoint. As a context manager it returns to the one
        before. Steps and waits are timed in `train` only. Begins in `startup`; the first batch begins `train`.
        """
        parts = self._parts
        if parts is None:
            return Phase(self, None)
        before = parts.meter.phase
        self._enter(name)
        return Phase(self, layout.PHASES[before])

    def _enter(self, name: str) -> None:
        parts = self._parts
        if parts is None:
            return
        try:
            parts.meter.enter(layout.PHASES.index(name))
        except Exception as error:  # noqa: BLE001  as in step
            self._failed(error)

    def close(self) -> None:
        """Ends the telemetry; undoes what nobody has confirmed. The loader stays as it is and usable."""
        parts, self._parts, self._meter = self._parts, None, None
        if parts is None:
            return
        try:
            if parts.ledger.give_up(parts.ledger.steps):
                self._owed = parts
            self._note(parts, parts.meter.steps)
            self._measuring.close()
            if parts.tuner is not None:
                parts.tuner.taken = False
            if parts.agent.stop():
                parts.ring.close()
            if self._owed is None:
                parts.agent.duties = ()  # also of a thread that has not ended yet: it would begin another session
                parts.agreement.stop()
            self._trackers.finish()
        except Exception:  # noqa: BLE001  as in step
            parts.meter.errors += 1

    def _pay(self) -> None:
        """After the end: the ranks may have agreed on a step that is still to come, and this one keeps its word."""
        owed = self._owed
        if owed is None:
            return
        owed.ledger.steps += 1
        if owed.ledger.steps >= owed.ledger.boundary:
            owed.ledger.at_boundary(owed.ledger.steps)
            if owed.ledger.boundary == NEVER:
                self._owed = None
                owed.agreement.stop()

    def _failed(self, error: Exception) -> None:
        parts = self._parts
        if parts is None:
            return
        self._failures += 1
        parts.meter.errors += 1
        log.debug("internal error", exc_info=error)
        if self._failures >= MAX_ERRORS:
            log.warning("spikewatch turns itself off after %d internal errors, the last: %r", self._failures, error)
            self._measuring.telemetry.describe(off=type(error).__name__)
            self.close()

    def _forked(self) -> None:
        # The child of a fork shares the ring's pages: it must never write there, and has no client thread.
        parts, self._parts, self._meter = self._parts, None, None
        if parts is not None:
            if self._measuring.search is not None:
                self._measuring.search.abandon()
            parts.agent.forked()
            parts.agreement.forked()
            with contextlib.suppress(OSError, BufferError):
                parts.ring.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Phase:
    """What `run.phase` returns: leaving the `with` block returns to the phase before."""

    __slots__ = ("_before", "_run")

    def __init__(self, run: Run, before: str | None) -> None:
        self._run, self._before = run, before

    def __enter__(self) -> Phase:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._before is not None:
            self._run._enter(self._before)


def _say_goodbye(reference: weakref.ref[Run]) -> None:
    # Not close(): at the end of the interpreter no loader is to be given new workers.
    run = reference()
    if run is not None and run._parts is not None:
        run._parts.agent.stop()
        run._parts.agreement.stop()


def _disable_in_forks(run: Run) -> None:
    reference = weakref.ref(run)

    def in_child() -> None:
        forked = reference()
        if forked is not None:
            forked._forked()

    os.register_at_fork(after_in_child=in_child)
