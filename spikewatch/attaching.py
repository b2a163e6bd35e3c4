"""`spikewatch.attach`: puts a run together around a plain PyTorch loop."""

from __future__ import annotations

import logging
import os
import secrets
import threading
from dataclasses import dataclass
from typing import Any

from spikewatch import batchingknobs, gpus, loaderknobs, protocol
from spikewatch.agent import THREAD_NAME, Agent
from spikewatch.agreement import Agreement
from spikewatch.agreement_group import find_group
from spikewatch.agreement_leader import Pace
from spikewatch.batching import Batching, Counted
from spikewatch.batchingknobs import BatchingKnobs
from spikewatch.batchingloop import OFF
from spikewatch.changes import Ledger
from spikewatch.groups import GroupTeller
from spikewatch.identity import identify
from spikewatch.knob import Absent, Source
from spikewatch.knobs import KnobSet
from spikewatch.loaderknobs import Limits, LoaderKnobs
from spikewatch.meter import Meter
from spikewatch.numerics_lr import LrFactor
from spikewatch.numerics_precision import MixedPrecision
from spikewatch.numerics_scaler import Scaler
from spikewatch.overflow import OverflowWatch
from spikewatch.ring import RingWriter
from spikewatch.run import Parts, Run
from spikewatch.suitability import own_batch_size, why_not
from spikewatch.tuner import Opener, Tuner
from spikewatch.watched import watched

log = logging.getLogger("spikewatch")

PACE = Pace()


def attach(
    model: Any = None,
    optimizer: Any = None,
    loader: Any = None,
    scaler: Any = None,
    *,
    job: str | None = None,
    socket: str | None = None,
    max_workers: int = 64,
    max_prefetch: int = 64,
    accumulation_steps: int | None = None,
    global_batch_may_change: bool = False,
) -> Run:
    """Measures this training loop, and lets the sidecar change its loader. Never waits.

        run = spikewatch.attach(model=model, optimizer=optimizer, loader=loader)
        for epoch in range(epochs):
            for batch in run.loader:
                ...
                run.step(loss)
        run.close()

    `model`, `optimizer`, `scaler`: the module (or DDP around it), the optimizer and the `torch.amp.GradScaler`, for
    gradient overflows and the loss scale; all may be left out. `loader`: a DataLoader (iterate it or `run.loader`,
    which is the same object) or any iterable (iterate `run.loader`). `job`: a name, else `$SPIKEWATCH_JOB`, else
    `default`. `socket`: the sidecar's, else `$SPIKEWATCH_SOCKET`, else /run/spikewatch/trainer.sock. `max_workers`,
    `max_prefetch`: bounds for changes. Attach once in a process: of two runs of one rank only the newer is exported.

    `accumulation_steps`: how many of the loader's batches make an optimizer step, 1 too, for a loop that asks
    `run.should_step()` (see `Loop`): its batches can then be made smaller and more. `global_batch_may_change`: also
    so that a step has another number of samples. Raises ValueError for `accumulation_steps` below 1, else nothing.

    With `SPIKEWATCH_DISABLE=1` the run is inert. Without a sidecar the training runs as without us; one that comes
    later is found.
    """
    batching = None if accumulation_steps is None else Batching(accumulation_steps, own_batch_size(loader))
    if os.environ.get("SPIKEWATCH_DISABLE", "") not in ("", "0"):
        return _inert(model, loader, batching)
    try:
        path = socket or os.environ.get("SPIKEWATCH_SOCKET") or protocol.DEFAULT_SOCKET
        if len(os.fsencode(path)) > protocol.MAX_PATH:
            log.warning("spikewatch stays off: a socket's path holds %d bytes, %r is longer", protocol.MAX_PATH, path)
            return _inert(model, loader, batching)
        given = Given(model, optimizer, loader, scaler, batching, global_batch_may_change)
        return _attach(given, job, path, Limits(max_workers, max_prefetch))
    except Exception as error:  # noqa: BLE001  the trainer goes on exactly as without us
        log.warning("spikewatch stays off: %r", error)
        return _inert(model, loader, batching)


@dataclass(frozen=True, slots=True)
class Given:
    """What the script gave to `attach`, to be measured and changed."""

    model: Any
    optimizer: Any
    loader: Any
    scaler: Any
    batching: Batching | None
    global_batch_may_change: bool


def _inert(model: Any, loader: Any, batching: Batching | None) -> Run:
    """Counts batches, where the loop's steps depend on that, and does nothing else."""
    opener = vars(loader).get("_get_iterator") if hasattr(loader, "__dict__") else None
    counted = isinstance(opener, Opener) and opener.tuner.batching is batching
    run = Run(loader if batching is None or loader is None or counted else Counted(loader, batching))
    run.use(batching, model, None, OFF)
    return run


def _attach(given: Given, job: str | None, path: str, limits: Limits) -> Run:
    if any(thread.name == THREAD_NAME for thread in threading.enumerate()):
        log.warning("spikewatch is attached twice in this process: the sidecar exports the newest run only")
    meter, ring = Meter(), RingWriter()
    tuner, why, seen = _instrument(given.loader, meter, given.batching)
    scaled = given.scaler is not None and given.scaler.is_enabled()
    precision = MixedPrecision(
        Scaler(given.scaler, lambda: meter.loss_scale) if scaled else None,
        lambda words: agent.telemetry.describe(precision=words),
    )
    sources: list[Source] = [
        LoaderKnobs(tuner, limits) if tuner is not None else Absent(dict.fromkeys(loaderknobs.NAMES, why)),
        _batching_source(given, tuner, why),
        LrFactor(given.optimizer),
        precision,
    ]
    knobs = KnobSet(sources)
    ledger = Ledger(knobs, counts=meter)
    scaler, optimizer = given.scaler, given.optimizer
    overflow = OverflowWatch(scaler, optimizer) if scaled else None
    agent = Agent(path, job, secrets.token_hex(8), meter, ring, ledger, knobs)
    agreement = Agreement(ledger.promises, lambda: ledger.steps, find_group, PACE)
    ledger.agree_by(agreement)
    knobs.apart = agreement.why_not
    local_rank, folder = identify(job).local_rank, os.path.dirname(path)
    agent.duties = (agreement.look,) if local_rank else (agreement.look, GroupTeller(folder, meter).look)
    run = Run(seen, Parts(meter, ring, ledger, agent, agreement, knobs, precision, tuner, overflow))
    run.use(given.batching, given.model, tuner, why)
    run.measure(given.model, scaler)
    agent.start()
    gpus.watch(os.path.join(folder, "gpus"), agent.stopping, local_rank)
    return run


def _batching_source(given: Given, tuner: Tuner | None, why: str) -> Source:
    if given.batching is None:
        why = "attach was not told how many accumulation_steps the loop makes"
    elif tuner is not None and given.batching.micro is not None:
        return BatchingKnobs(given.batching, tuner, given.global_batch_may_change)
    elif tuner is not None:
        why = tuner.why_not_recut() or "nobody knows how many samples a batch should have"
    return Absent(dict.fromkeys(batchingknobs.NAMES, why))


def _instrument(loader: Any, meter: Meter, batching: Batching | None) -> tuple[Tuner | None, str, Any]:
    """(tuner or None, why there is none, what the user should iterate)."""
    if loader is None:
        return None, "no loader was given to attach", None
    opener = vars(loader).get("_get_iterator") if hasattr(loader, "__dict__") else None
    why = why_not(loader)
    if isinstance(opener, Opener):
        if not opener.tuner.taken:
            opener.tuner.take_over(meter, batching)
            return opener.tuner, "", loader
        why, seen = "the loader belongs to another attached run", loader
    elif not why:
        return Tuner(loader, meter, batching), "", loader
    else:
        seen = watched(loader, meter)
    return None, why, seen if batching is None else Counted(seen, batching)
