"""One instrumented DataLoader: how it loads and how its batches are cut, changed while it runs."""

from __future__ import annotations

import logging
import threading
import types
import weakref
from collections.abc import Mapping
from typing import Any

from spikewatch.batches import BatchLengths
from spikewatch.batching import Batching, Count, pass_shape
from spikewatch.batching_stream import Cut, Piece
from spikewatch.layout import MISSING
from spikewatch.livepass import LivePass
from spikewatch.loaderopening import Openings, draws_at_once
from spikewatch.loaderposition import Position, from_state, to_state
from spikewatch.meter import Meter
from spikewatch.randomness import DrawProbe
from spikewatch.refusal import Refused
from spikewatch.segments import Part, Settings
from spikewatch.suitability import why_not_pinned, why_not_recut, why_not_reread, why_workers_stay

log = logging.getLogger("spikewatch")

OTHER_THREAD = "the loader is read by another thread than the one that calls step()"


class Tuner:
    """Instruments one DataLoader. All methods but the read-only ones run on the training thread."""

    def __init__(self, loader: Any, meter: Meter, batching: Batching | None = None) -> None:
        """`loader` must have passed `suitability.why_not`. Its `_get_iterator` is overridden on the instance.
        `batching`: of a loop that accumulates gradients over this loader's batches.
        """
        self._loader = weakref.ref(loader)
        self.meter = meter
        self.batching = batching
        self.taken = True  # by the run that made it, until that is closed
        self.openings = Openings(loader, batching)
        self._fixed = why_workers_stay(loader)
        self._uncut = why_not_recut(loader)
        self.rereads = bool(self._fixed)  # a restarted run finds its place by reading again what it had
        self._passes: tuple[weakref.ref[LivePass], ...] = ()  # replaced whole: other threads read it without a lock
        self._trouble = ""  # why batches cannot be cut anew just now
        self._reader: int | None = None  # the thread that reads the newest pass
        self._left_at: int | None = None  # where the newest pass was left before its end
        known = draws_at_once(loader) or bool(self._fixed)
        self.probe = DrawProbe(needed=not self.settings.workers or not known)
        self._order_known = draws_at_once(loader)
        self._show()
        running = loader._iterator
        if running is not None:  # workers that live on, begun before us
            self.openings.begun = True
            loader._iterator = self._live(loader, self.openings.native(running))
            loader._iterator.over = running._rcvd_idx >= running._send_idx
        loader._get_iterator = Opener(loader, self)

    def take_over(self, meter: Meter, batching: Batching | None) -> None:
        """A new run measures this loader from now on."""
        self.meter, self.taken = meter, True
        for live in (known() for known in self._passes):
            if live is not None:
                live.carefully()
        self.batching = batching
        self.openings.count_for(batching)
        if not self._uncut:
            self.openings.recut(Cut())  # the new loop begins with the loader's own batches
        self._show()

    @property
    def settings(self) -> Settings:
        """How the loader loads now."""
        return self.openings.settings

    @property
    def at_first(self) -> Settings:
        """How it loaded before any change."""
        return self.openings.at_first

    # --- passes -----------------------------------------------------------------------------------------------------

    def open_pass(self, loader: Any) -> LivePass:
        """`iter(loader)`."""
        began = self.wait_begins()
        self._left_at = None
        try:
            part = self.openings.open_pass(loader)
        finally:
            self.wait_ends(began)
        return self._live(loader, part)

    def next_pass(self, loader: Any, parts: list[Part]) -> Part:
        """The next pass over persistent workers; `parts` are what is left of the one before."""
        part = self.openings.next_pass(loader, parts)
        self.meter.errors += self.openings.failures
        self.openings.failures = 0
        self.meter.pass_begins()
        return part

    def _live(self, loader: Any, part: Part) -> LivePass:
        live = LivePass(self, part, self.lengths(loader), self.openings.skipped)
        self.meter.errors += self.openings.failures
        self.openings.failures = 0
        self._passes = (*(known for known in self._passes if known() is not None), weakref.ref(live))
        self.meter.pass_begins()
        return live

    def left(self, live: LivePass) -> None:
        """The loop over this pass was left, and the pass is about to be gone."""
        if not live.over and self._passes and self._passes[-1]() in (None, live):
            self._left_at = live.position()
        live.over = True
        self.look()

    def passes(self) -> list[LivePass]:
        """Those under way, oldest first: not at their end, and their loop not left."""
        return [live for live in (known() for known in self._passes) if live is not None and not live.over]

    def count(self, before: int = 0) -> Count | None:
        """Of a pass that begins, or goes on after `before` of the loader's own batches; None where nobody counts."""
        loader = self._loader()
        if self.batching is None or loader is None:
            return None
        left, full, final = pass_shape(loader)
        return self.batching.begins(None if left is None else left - before, full, final)

    def handed(self, live: LivePass, count: Count, piece: Piece | None) -> None:
        """A pass handed over a batch to a loop that accumulates."""
        if self.batching is not None:
            self.batching.handed(count, piece)
        if live.given == 0:
            self.look()

    def look(self) -> None:
        """Which passes are under way has changed. Other threads ask about it, and must not hold a pass alive."""
        running = self.passes()
        self._reader = running[-1].thread if running else None
        if len(running) > 1:
            self._trouble = "two passes over the loader are under way"
        elif any(live.cutter is None for live in running):
            self._trouble = "the pass under way began before attach"
        else:
            self._trouble = self._unsafe() if running else ""

    # --- changing ---------------------------------------------------------------------------------------------------

    def values(self) -> dict[str, Any]:
        """The settings now. `prefetch_factor` is the one that applies as soon as there are workers."""
        workers, prefetch, pin = self.settings
        return {"num_workers": workers, "prefetch_factor": prefetch, "pin_memory": pin}

    def unavailable(self) -> dict[str, str]:
        """Of `values`, what cannot be changed (now), each with the reason."""
        if self._fixed:
            reasons = dict.fromkeys(("num_workers", "pin_memory"), self._fixed)
            if not self.settings.workers:
                reasons["prefetch_factor"] = "there are no workers, and none can be added: " + self._fixed
            return reasons
        if self.probe.draws is not False:
            return dict.fromkeys(self.values(), self._drawing())
        unpinned = why_not_pinned()
        return {"pin_memory": unpinned} if unpinned else {}

    def _drawing(self) -> str:
        if self.probe.draws is None:
            return "it is not known yet whether asking for a batch draws from the run's random state"
        return "asking for a batch draws from the run's random state, a change would shift it"

    def change(self, values: Mapping[str, Any]) -> None:
        """Sets some of `values` at once, at a step boundary. Raises Refused; then nothing has changed."""
        loader = self.openings.loader()
        now = self.settings
        wanted = Settings(
            int(values.get("num_workers", now.workers)),
            int(values.get("prefetch_factor", now.prefetch)),
            bool(values.get("pin_memory", now.pin)),
        )
        if self._fixed and (wanted.workers, wanted.pin) != (now.workers, now.pin):
            raise Refused("unsupported", self._fixed)
        self._safe_now()
        running = self.passes()
        if any(live.thread not in (None, threading.get_ident()) for live in running):
            raise Refused("unsupported", OTHER_THREAD)
        moved: list[tuple[LivePass, Settings]] = []
        try:
            for live in running:
                before = live.settings()
                live.move(wanted)
                moved.append((live, before))
        except Exception as error:
            for live, before in moved:
                live.move(before)
            if isinstance(error, Refused):
                raise
            raise Refused("failed", f"{type(error).__name__}: {error}"[:200]) from error
        self.openings.settings = wanted
        self.openings.changed = not self._fixed  # a loader whose workers stay can open its passes itself
        loader.num_workers, loader.pin_memory = wanted.workers, wanted.pin
        loader.prefetch_factor = wanted.prefetch if wanted.workers else None
        self._show()

    def why_not_recut(self) -> str:
        """Empty where batches can be cut anew at the next step boundary; else why they cannot (now)."""
        if self._uncut:
            return self._uncut
        if not self._order_known and self.probe.draws is not False:
            return self._drawing()
        if self.batching is not None and self._reader not in (None, self.batching.thread):
            return OTHER_THREAD
        return self._trouble

    def recut(self, cut: Cut) -> None:
        """Cuts batches anew from the next one on. After `why_not_recut` said nothing and between two groups, this
        does not fail.
        """
        self.openings.recut(cut)
        for live in self.passes():
            live.recut(cut)
            live.count = self.count(live.position() or 0)
        self._show()

    def no_workers(self, error: Exception) -> None:
        """A pass goes on without workers, for they could not be started."""
        self.meter.errors += 1
        log.warning("spikewatch: this pass goes on without workers, they did not start: %r", error)

    def _safe_now(self) -> None:
        trouble = self._unsafe()
        if trouble:
            raise Refused("unsupported", trouble)

    @staticmethod
    def _unsafe() -> str:
        import torch

        if torch.get_default_device().type != "cpu":
            return "torch's default device is not the CPU"
        cuda: Any = torch.cuda
        if cuda.is_initialized() and cuda.is_current_stream_capturing():
            return "a CUDA graph is being captured"
        return ""

    def _show(self) -> None:
        workers, prefetch, _ = self.settings
        self.meter.num_workers = workers
        self.meter.prefetch_factor = prefetch if workers else MISSING
        loader = self._loader()
        size = getattr(loader, "batch_size", None) or getattr(
            getattr(loader, "batch_sampler", None), "batch_size", None
        )
        self.meter.batch_size = float(size) if isinstance(size, int) else MISSING

    # --- checkpoints ------------------------------------------------------------------------------------------------

    def position(self) -> dict[str, Any]:
        """Where the newest pass is, for a checkpoint; see `loaderposition.to_state`. Raises Refused."""
        loader = self.openings.loader()
        if not loader.in_order:
            raise Refused("unsupported", "with in_order=False nobody knows which samples were handed over")
        if not self._order_known and self.probe.draws is not False:
            raise Refused("unsupported", self._drawing())
        running, beginning = self.passes(), self.openings.beginning
        if not running and self._left_at is None:
            return to_state(loader, None)
        if beginning is None:
            raise Refused("unsupported", "the random state that this pass's order came from could not be read")
        if self.rereads:
            why = why_not_reread(loader, beginning.fresh)
            if why:
                raise Refused("unsupported", why)
        position = running[-1].position() if running else self._left_at
        if position is None:
            raise Refused("unsupported", "this torch names the insides of its loader otherwise")
        return to_state(loader, Position(position, beginning))

    def resume(self, state: Mapping[str, Any]) -> None:
        """The next pass goes on where `position` says. Raises ValueError for one that does not fit, Refused."""
        loader = self.openings.loader()
        self.openings.resumes = from_state(loader, state)

    # --- what passes report; none of these may ever raise -----------------------------------------------------------

    def wait_begins(self) -> int:
        try:
            return self.meter.wait_begins()
        except Exception:  # noqa: BLE001  as above
            self.meter.errors += 1
            return 0

    def wait_ends(self, began: int) -> None:
        try:
            self.meter.wait_ends(began)
        except Exception:  # noqa: BLE001  as above
            self.meter.errors += 1

    def lengths(self, loader: Any) -> BatchLengths:
        return BatchLengths(loader)


class Opener:
    """The instance's `_get_iterator`. A copy or a pickle of the loader gets the class's own back."""

    __slots__ = ("_loader", "tuner")

    def __init__(self, loader: Any, tuner: Tuner) -> None:
        self._loader = weakref.ref(loader)  # no cycle: a dropped loader ends its workers at once
        self.tuner = tuner

    def __call__(self) -> Any:
        loader = self._loader()
        if loader is None:
            raise ReferenceError("the instrumented loader is gone; iterate the copy made by copy.deepcopy instead")
        return self.tuner.open_pass(loader)

    def __reduce__(self) -> Any:
        return _native, (self._loader(),)


def _native(loader: Any) -> Any:
    return types.MethodType(type(loader)._get_iterator, loader)
