"""The two knobs of a DataLoader, `num_workers` and `prefetch_factor`, changed while it runs.

As long as nothing was changed, every pass is opened by the loader itself. Afterwards passes are opened here, with
exactly the draws from the random state that the unchanged loader would have made.
"""

from __future__ import annotations

import threading
import types
import weakref
from collections.abc import Mapping
from typing import Any

from spikewatch import segments
from spikewatch.arrivals import Arrivals
from spikewatch.batches import BatchLengths
from spikewatch.layout import MISSING
from spikewatch.livepass import LivePass
from spikewatch.meter import Meter
from spikewatch.randomness import DrawProbe
from spikewatch.refusal import Refused
from spikewatch.segments import Part, Stream

TORCH_DEFAULT_PREFETCH = 2  # what torch uses where there are workers and nothing is said


class Tuner:
    """Instruments one DataLoader. All methods but the read-only ones run on the training thread."""

    def __init__(self, loader: Any, meter: Meter) -> None:
        """`loader` must have passed `suitability.why_not`. Its `_get_iterator` is overridden on the instance."""
        self._loader = weakref.ref(loader)
        self.meter = meter
        self.taken = True  # by the run that made it, until that is closed
        self.workers: int = loader.num_workers
        self.prefetch: int = loader.prefetch_factor or TORCH_DEFAULT_PREFETCH
        self.workers_at_first = self.workers
        self.prefetch_at_first = self.prefetch
        self._opened = False
        self._changed = False
        self._parts_opened = 0
        self._passes: weakref.WeakSet[LivePass] = weakref.WeakSet()
        self.probe = DrawProbe(needed=not self.workers or not _draws_at_once(loader))
        self._show()
        running = loader._iterator
        if running is not None:  # workers that live on, begun before us
            self._opened = True
            loader._iterator = self._live(loader, self._native_part(running))
        loader._get_iterator = Opener(loader, self)

    def take_over(self, meter: Meter) -> None:
        """A new run measures this loader from now on."""
        self.meter, self.taken = meter, True
        self._show()

    # --- opening passes ---------------------------------------------------------------------------------------------

    def open_pass(self, loader: Any) -> LivePass:
        """`iter(loader)`."""
        began = self.wait_begins()
        try:
            if self._changed:
                # A loader whose workers live on draws a base seed once, for its first pass.
                fresh = not (self._opened and loader.persistent_workers and self.workers_at_first)
                part = self._open_changed(loader, fresh)
            else:
                part = self._native_part(type(loader)._get_iterator(loader))
        finally:
            self.wait_ends(began)
        self._opened = True
        return self._live(loader, part)

    def next_pass(self, loader: Any, parts: list[Part]) -> Part:
        """The next pass over persistent workers; `parts` are what is left of the one before."""
        for part in parts[:-1]:
            part.end()
        self._count_pass()
        newest = parts[-1]
        if newest.iterator._persistent_workers and self._fits(newest):
            if newest.ours:
                newest.iterator._index_sampler.stream = self._stream(iter(loader.batch_sampler))
            newest.iterator._reset(loader)
            return newest
        newest.end()
        return self._open_changed(loader, fresh=False)

    def _fits(self, part: Part) -> bool:
        return (part.workers, part.prefetch) == (self.workers, self.prefetch)

    def _live(self, loader: Any, part: Part) -> LivePass:
        live = LivePass(self, part, self.lengths(loader))
        self._passes.add(live)
        self._count_pass()
        return live

    def _native_part(self, iterator: Any) -> Part:
        return Part(iterator, self.workers, self.prefetch, ours=False)

    def _open_changed(self, loader: Any, fresh: bool) -> Part:
        sampler = loader.batch_sampler
        if fresh:
            # torch makes the sampler's iterator, draws the base seed, and with workers makes the iterator again.
            source = iter(sampler)
            generator, seed = segments.draw_base_seed(loader)
            if self.workers_at_first:
                source = iter(sampler)
            stream = self._stream(source)
        else:
            stream = self._stream(iter(sampler))
            seed = self._number()
            generator = segments.seeded(seed, seed)
        return segments.open_part(
            loader, stream, self.workers, self.prefetch, generator=generator, private_seed=self._private(seed)
        )

    @staticmethod
    def _stream(source: Any) -> Stream:
        stream = Stream(source)
        stream.more()  # here the sampler draws its seed, and that draw is the run's own
        return stream

    def _private(self, seed: int) -> int | None:
        """Samples loaded here that would have been loaded in workers must not draw from the run's random state."""
        return seed if self.workers_at_first else None

    def _number(self) -> int:
        self._parts_opened += 1
        return self._parts_opened

    def open_part(self, stream: Stream, workers: int, prefetch: int, base_seed: int) -> Part:
        """The continuation of a pass. Raises what the loader raises."""
        loader = self._loader()
        if loader is None:
            raise Refused("unsupported", "the loader is gone")
        generator = segments.seeded(base_seed, self._number())
        return segments.open_part(
            loader,
            stream,
            workers,
            prefetch,
            generator=generator,
            private_seed=self._private(generator.initial_seed()),
        )

    # --- changing ---------------------------------------------------------------------------------------------------

    def values(self) -> dict[str, int]:
        """The settings now. `prefetch_factor` is the one that applies as soon as there are workers."""
        return {"num_workers": self.workers, "prefetch_factor": self.prefetch}

    def change(self, values: Mapping[str, Any]) -> None:
        """Sets both knobs at once, at a step boundary. Raises Refused; then nothing has changed."""
        loader = self._loader()
        if loader is None:
            raise Refused("unsupported", "the loader is gone")
        workers = int(values.get("num_workers", self.workers))
        prefetch = int(values.get("prefetch_factor", self.prefetch))
        self._safe_now()
        running = [p for p in self._passes if not p.over]
        if any(p.thread not in (None, threading.get_ident()) for p in running):
            raise Refused("unsupported", "the loader is read by another thread than the one that calls step()")
        moved: list[tuple[LivePass, tuple[int, int]]] = []
        try:
            for live in running:
                before = live.settings()
                live.move(workers, prefetch)
                moved.append((live, before))
        except Exception as error:
            for live, before in moved:
                live.move(*before)
            if isinstance(error, Refused):
                raise
            raise Refused("failed", f"{type(error).__name__}: {error}"[:200]) from error
        self.workers, self.prefetch = workers, prefetch
        self._changed = True
        loader.num_workers = workers
        loader.prefetch_factor = prefetch if workers else None
        self._show()

    def _safe_now(self) -> None:
        import torch

        if torch.get_default_device().type != "cpu":
            raise Refused("unsupported", "torch's default device is not the CPU")
        cuda: Any = torch.cuda
        if cuda.is_initialized() and cuda.is_current_stream_capturing():
            raise Refused("unsupported", "a CUDA graph is being captured")

    def _show(self) -> None:
        self.meter.num_workers = self.workers
        self.meter.prefetch_factor = self.prefetch if self.workers else MISSING
        loader = self._loader()
        size = getattr(loader, "batch_size", None) or getattr(
            getattr(loader, "batch_sampler", None), "batch_size", None
        )
        self.meter.batch_size = float(size) if isinstance(size, int) else MISSING

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

    def asks(self, watch: Arrivals) -> bool:
        """Whether `arrived` is to be called once the batch is there."""
        try:
            watch.asked()
        except Exception:  # noqa: BLE001  as above
            self.meter.errors += 1
            return False
        return True

    def arrived(self, watch: Arrivals) -> None:
        try:
            self.meter.prefetch(watch.given())
        except Exception:  # noqa: BLE001  as above
            self.meter.errors += 1

    def lengths(self, loader: Any) -> BatchLengths:
        return BatchLengths(loader)

    def _count_pass(self) -> None:
        self.meter.pass_begins()


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


def _draws_at_once(loader: Any) -> bool:
    """Whether the sampler is one of torch's, all of which draw their order when they begin."""
    from torch.utils import data
    from torch.utils.data.distributed import DistributedSampler

    known = (
        data.SequentialSampler,
        data.RandomSampler,
        data.SubsetRandomSampler,
        data.WeightedRandomSampler,
        DistributedSampler,
    )
    return type(loader.batch_sampler) is data.BatchSampler and type(loader.batch_sampler.sampler) in known
