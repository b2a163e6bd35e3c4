"""Zero-code attach: watches loaders being opened and optimizers stepping, and attaches at the first step.

The loader that handed over a batch last before the first optimizer step is the training run's. Whatever does not look
as expected turns all of this off, and leaves torch as it was.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from spikewatch import layout
from spikewatch.agent import THREAD_NAME
from spikewatch.attaching import attach
from spikewatch.meter import Meter
from spikewatch.run import Run
from spikewatch.suitability import why_not
from spikewatch.tuner import Tuner
from spikewatch.zerocode import LOADERS

log = logging.getLogger("spikewatch")

MAX_CANDIDATES = 16  # loaders opened before the first step; a script with more is none we understand


class Surprise(Exception):
    """Something is not as in the training scripts we know."""


class Candidate:
    """A loader that was opened before the first step, measured apart until it is known whether it is the run's."""

    __slots__ = ("_loader", "last", "meter", "tuner")

    def __init__(self, loader: Any) -> None:
        self.last = 0  # when it was last asked for a batch
        self._loader = weakref.ref(loader)
        self.meter = Meter(now=self._now)
        self.tuner = Tuner(loader, self.meter)
        self.tuner.taken = False  # free for the run, also for one that the script attaches itself

    def _now(self) -> int:
        self.last = time.perf_counter_ns()
        return self.last

    def loader(self) -> Any:
        return self._loader()


class Watcher:
    """One process's zero-code attach. `run` is None before the first optimizer step and after anything odd."""

    def __init__(self, attach: Callable[..., Run] = attach) -> None:
        self.run: Run | None = None
        self.why_off = ""
        self._attach = attach
        self._undo: list[Callable[[], object]] = []
        self._candidates: list[Candidate] = []
        self._optimizer: weakref.ref[Any] | None = None
        self._loader: weakref.ref[Any] | None = None
        self._refused: weakref.ref[Any] | None = None  # opened last of those that cannot be instrumented
        reference = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _forked(reference))

    # --- what the import hook calls ---------------------------------------------------------------------------------

    def loaders_imported(self, module: ModuleType) -> None:
        """Lets every `iter(DataLoader)` pass by here."""
        try:
            kind: Any = module.DataLoader
            original = kind.__iter__
            if original.__module__ != LOADERS:
                raise Surprise(f"DataLoader.__iter__ comes from {original.__module__}")
            opened = self._opened

            @functools.wraps(original)
            def opening(loader: Any) -> Any:
                opened(loader)
                return original(loader)

            kind.__iter__ = opening
            self._undo.append(lambda: setattr(kind, "__iter__", original))
        except Exception as error:  # noqa: BLE001  the script goes on exactly as without us
            self.off(error)

    def optimizers_imported(self, module: ModuleType) -> None:
        """Lets every optimizer step that was really taken pass by here."""
        try:
            stepped = self._stepped

            def hook(optimizer: Any, *_: object) -> None:
                stepped(optimizer)

            # A compiled step must not trace us. torch's own name for it: the public one cannot be imported yet.
            disable = getattr(getattr(module, "torch", None), "_disable_dynamo", None)
            handle = module.register_optimizer_step_post_hook(disable(hook) if disable is not None else hook)
            self._undo.append(handle.remove)
        except Exception as error:  # noqa: BLE001  as above
            self.off(error)

    # --- what the script's thread calls; none of these may ever raise ------------------------------------------------

    def _opened(self, loader: Any) -> None:
        try:
            self._look_at(loader)
        except Exception as error:  # noqa: BLE001  as above
            self.off(error)

    def _stepped(self, optimizer: Any) -> None:
        try:
            run = self.run
            if run is not None and self._optimizer is not None:
                if self._optimizer() is optimizer:
                    self._phase(run, layout.TRAIN)  # back from an evaluation
                    run.step()
            elif not self.why_off:
                self._first_step(optimizer)
        except Exception as error:  # noqa: BLE001  as above
            self.off(error)

    def off(self, reason: Exception | str) -> None:
        """Leaves torch as it was found; loaders that are instrumented stay as they are, and are measured no more."""
        if self.why_off:
            return
        self.why_off = str(reason) or repr(reason)
        log.warning("spikewatch attaches to nothing here: %s", self.why_off)
        while self._undo:
            try:
                self._undo.pop()()
            except Exception as error:
                log.debug("could not be undone", exc_info=error)
        self._candidates.clear()
        if self.run is not None:
            self.run.close()
            self.run = None

    # --- deciding ---------------------------------------------------------------------------------------------------

    def _look_at(self, loader: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        if self.run is not None:
            ours = self._loader is not None and self._loader() is loader
            self._phase(self.run, layout.TRAIN if ours else layout.EVAL)
            return
        if "_get_iterator" in vars(loader):
            return  # seen already, or the script's own attach has it
        if why_not(loader):
            self._refused = weakref.ref(loader)
            return
        if len(self._candidates) >= MAX_CANDIDATES:
            self._candidates = [known for known in self._candidates if known.loader() is not None]
            if len(self._candidates) >= MAX_CANDIDATES:
                raise Surprise(f"{MAX_CANDIDATES} loaders were opened before the first optimizer step")
        self._candidates.append(Candidate(loader))

    def _first_step(self, optimizer: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise Surprise("the optimizer steps outside the main thread")
        if any(thread.name == THREAD_NAME for thread in threading.enumerate()):
            raise Surprise("the script attaches by itself")
        asked = [known for known in self._candidates if known.last and known.loader() is not None]
        feeding = max(asked, key=lambda known: known.last, default=None)
        refused = self._refused() if self._refused is not None else None
        # one that cannot be changed is given all the same: then the sidecar is told why
        run = self._attach(optimizer=optimizer, loader=feeding.loader() if feeding else refused)
        if run._parts is None:
            raise Surprise("attach stayed off")
        self.run, self._optimizer = run, weakref.ref(optimizer)
        if feeding is not None:
            self._loader = weakref.ref(feeding.loader())
            _carry_over(feeding.meter, run._parts.meter)
        self._candidates.clear()
        run.step()

    @staticmethod
    def _phase(run: Run, phase: int) -> None:
        parts = run._parts
        if parts is not None and parts.meter.phase != phase:
            parts.meter.enter(phase)


def _carry_over(before: Meter, meter: Meter) -> None:
    """What the loader handed over before the first step belongs to the run."""
    for name in (
        "batch_bytes", "bytes", "bytes_known", "epoch", "handed", "hits", "phase", "requests", "samples",
        "samples_known", "step_from", "step_ns", "wait_from", "wait_ns",
    ):  # fmt: skip
        setattr(meter, name, getattr(before, name))


def _forked(reference: weakref.ref[Watcher]) -> None:
    # A loader's worker, say: it is no training process, and its parent goes on.
    watcher = reference()
    if watcher is not None:
        watcher.why_off = watcher.why_off or "a forked process"
        watcher.run = None
