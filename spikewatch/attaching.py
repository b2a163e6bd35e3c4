"""`spikewatch.attach`: puts a run together around a plain PyTorch loop."""

from __future__ import annotations

import logging
import os
import secrets
import threading
from typing import Any

from spikewatch import protocol
from spikewatch.agent import THREAD_NAME, Agent
from spikewatch.changes import Ledger
from spikewatch.knob import Absent, Source
from spikewatch.knobs import KnobSet
from spikewatch.loaderknobs import NAMES, Limits, LoaderKnobs
from spikewatch.meter import Meter
from spikewatch.overflow import OverflowWatch
from spikewatch.ring import RingWriter
from spikewatch.run import Parts, Run
from spikewatch.suitability import why_not
from spikewatch.tuner import Opener, Tuner
from spikewatch.watched import watched

log = logging.getLogger("spikewatch")


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
) -> Run:
    """Measures this training loop, and lets the sidecar change its loader. Never raises, never waits.

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

    With `SPIKEWATCH_DISABLE=1` the run is inert. Without a sidecar the training runs as without us; one that comes
    later is found.
    """
    if os.environ.get("SPIKEWATCH_DISABLE", "") not in ("", "0"):
        return Run(loader)
    try:
        path = socket or os.environ.get("SPIKEWATCH_SOCKET") or protocol.DEFAULT_SOCKET
        if len(os.fsencode(path)) > protocol.MAX_PATH:
            log.warning("spikewatch stays off: a socket's path holds %d bytes, %r is longer", protocol.MAX_PATH, path)
            return Run(loader)
        return _attach(model, optimizer, loader, scaler, job, path, Limits(max_workers, max_prefetch))
    except Exception as error:  # noqa: BLE001  the trainer goes on exactly as without us
        log.warning("spikewatch stays off: %r", error)
        return Run(loader)


def _attach(model: Any, optimizer: Any, loader: Any, scaler: Any, job: str | None, path: str, limits: Limits) -> Run:
    if any(thread.name == THREAD_NAME for thread in threading.enumerate()):
        log.warning("spikewatch is attached twice in this process: the sidecar exports the newest run only")
    meter, ring = Meter(), RingWriter()
    tuner, why, seen = _instrument(loader, meter)
    sources: list[Source] = [LoaderKnobs(tuner, limits) if tuner is not None else Absent(dict.fromkeys(NAMES, why))]
    knobs = KnobSet(sources)
    ledger = Ledger(knobs)
    overflow = OverflowWatch(scaler, optimizer) if scaler is not None and scaler.is_enabled() else None
    agent = Agent(path, job, secrets.token_hex(8), meter, ring, ledger, knobs)
    run = Run(seen, Parts(meter, ring, ledger, agent, knobs, tuner, overflow))
    run.measure(model, scaler)
    agent.start()
    return run


def _instrument(loader: Any, meter: Meter) -> tuple[Tuner | None, str, Any]:
    """(tuner or None, why there is none, what the user should iterate)."""
    if loader is None:
        return None, "no loader was given to attach", None
    opener = vars(loader).get("_get_iterator") if hasattr(loader, "__dict__") else None
    if isinstance(opener, Opener):
        if opener.tuner.taken:
            return None, "the loader belongs to another attached run", loader
        opener.tuner.take_over(meter)
        return opener.tuner, "", loader
    why = why_not(loader)
    if why:
        return None, why, watched(loader, meter)
    return Tuner(loader, meter), "", loader
