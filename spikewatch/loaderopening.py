"""How the passes over an instrumented DataLoader are opened.

As long as nothing was changed, every pass is opened by the loader itself. Afterwards passes are opened here, with
exactly the draws from the random state that the unchanged loader would have made.
"""

from __future__ import annotations

import logging
import weakref
from typing import Any

from spikewatch import segments
from spikewatch.batching import Batching
from spikewatch.batching_stream import Cut, Cutter, Regrouped
from spikewatch.loaderposition import Beginning, Position
from spikewatch.refusal import Refused
from spikewatch.segments import Part, Settings, Stream
from spikewatch.suitability import why_not_recut, why_workers_stay

log = logging.getLogger("spikewatch")

TORCH_DEFAULT_PREFETCH = 2  # what torch uses where there are workers and nothing is said


class Openings:
    """Opens the iterators of one DataLoader. All on the training thread."""

    def __init__(self, loader: Any, batching: Batching | None) -> None:
        """`batching`: of a loop that accumulates; its passes are counted, so that they can be cut anew."""
        self._loader = weakref.ref(loader)
        self._batching = batching
        self.settings = Settings(
            loader.num_workers, loader.prefetch_factor or TORCH_DEFAULT_PREFETCH, bool(loader.pin_memory)
        )
        self.at_first = self.settings
        self.changed = False
        self.begun = False  # whether a pass was opened
        self.cut = Cut()
        self.beginning: Beginning | None = None  # of the newest pass
        self.resumes: Position | None = None  # where the next pass goes on
        self.skipped = 0  # batches of the loader's own sampler left out by the newest pass, for that
        self._at_once = draws_at_once(loader)
        self._uncut = bool(why_not_recut(loader))
        self.failures = 0  # mistakes of ours that were swallowed
        self._parts_opened = 0
        self._batch_size = loader.batch_size  # None where a batch sampler was given

    def count_for(self, batching: Batching | None) -> None:
        """Another run's loop from the next pass on."""
        self._batching = batching

    def loader(self) -> Any:
        """Raises Refused when it is gone."""
        loader = self._loader()
        if loader is None:
            raise Refused("unsupported", "the loader is gone")
        return loader

    # --- opening ----------------------------------------------------------------------------------------------------

    def open_pass(self, loader: Any) -> Part:
        """`iter(loader)`."""
        # A loader whose workers live on draws a base seed once, for its first pass.
        fresh = not (self.begun and loader.persistent_workers and self.at_first.workers)
        self.begun = True
        if self.resumes is not None:
            return self._resumed(loader)
        self._note(loader, fresh)
        return self._changed(loader, fresh) if self.changed else self.native(self._by_itself(loader))

    def next_pass(self, loader: Any, parts: list[Part]) -> Part:
        """The next pass over persistent workers; `parts` are what is left of the one before."""
        for part in parts[:-1]:
            part.end()
        newest = parts[-1]
        if self.resumes is not None:
            newest.end()
            return self._resumed(loader)
        self._note(loader, fresh=False)
        alike = newest.settings()._replace(prefetch=self.settings.prefetch) == self.settings
        if newest.iterator._persistent_workers and alike:
            newest.iterator._prefetch_factor = newest.prefetch = self.settings.prefetch
            if newest.ours:
                newest.iterator._index_sampler.stream = begin(iter(self._sampler(loader)))
            elif self._batching is not None:
                newest.iterator._index_sampler = self._sampler(loader)
            newest.iterator._reset(loader)
            newest.failed = 0
            return newest
        newest.end()
        return self._changed(loader, fresh=False)

    def continuation(self, stream: Stream, wanted: Settings, base_seed: int) -> Part:
        """Another iterator for a pass that runs. Raises what the loader raises."""
        loader = self.loader()
        generator = segments.seeded(base_seed, self._number())
        return segments.open_part(
            loader, stream, wanted, generator=generator, private_seed=self._private(generator.initial_seed())
        )

    def native(self, iterator: Any) -> Part:
        """Of an iterator that the loader made."""
        return Part(iterator, self.settings, ours=False)

    def _by_itself(self, loader: Any) -> Any:
        own = vars(loader)["batch_sampler"]
        if self._batching is None or self._uncut or isinstance(own, Regrouped):
            return type(loader)._get_iterator(loader)
        # Nobody sees the stand-in but the iterator, which keeps it for the passes to come.
        vars(loader)["batch_sampler"] = self._sampler(loader)
        try:
            return type(loader)._get_iterator(loader)
        finally:
            vars(loader)["batch_sampler"] = own

    def _changed(self, loader: Any, fresh: bool) -> Part:
        sampler = self._sampler(loader)
        if fresh:
            # torch makes the sampler's iterator, draws the base seed, and with workers makes the iterator again.
            source = iter(sampler)
            generator, seed = segments.draw_base_seed(loader)
            if self.at_first.workers:
                source = iter(sampler)
            stream = begin(source)
        else:
            stream = begin(iter(sampler))
            seed = self._number()
            generator = segments.seeded(seed, seed)
        return segments.open_part(loader, stream, self.settings, generator=generator, private_seed=self._private(seed))

    def _resumed(self, loader: Any) -> Part:
        """Draws the order that the pass had when it began, in the run that wrote the position, and skips."""
        position, self.resumes = self.resumes, None
        assert position is not None
        self.skipped, self.beginning = position.batches, position.beginning
        if why_workers_stay(loader):
            return self._reread(loader, position)
        own = self._own(loader)
        with position.beginning.again(loader):
            source = iter(own)
            seed = self._number()
            if position.beginning.fresh:
                seed = segments.draw_base_seed(loader)[1]
                if position.beginning.twice:
                    source = iter(own)
            for _ in range(position.batches):
                if next(source, None) is None:
                    break
            cuts = self._batching is not None and not self._uncut
            stream = Stream(Cutter(source, self.cut, position.batches) if cuts else source)
            stream.more()
        generator = segments.seeded(seed, self._number() + position.batches)
        return segments.open_part(loader, stream, self.settings, generator=generator, private_seed=self._private(seed))

    def _reread(self, loader: Any, position: Position) -> Part:
        """An iterable-style dataset has no other way back to where it was than to read again what it gave."""
        if position.batches:
            log.info("spikewatch: reading %d batches again, to go on after them", position.batches)
        with position.beginning.again(loader):
            part = self.native(self._by_itself(loader))
            for _ in range(position.batches):
                try:
                    next(part.iterator)
                except StopIteration:
                    break
                except Exception as error:  # noqa: BLE001  it cost a batch the first time, too
                    log.info("spikewatch: a batch that is read again fails: %r", error)
        return part

    def _note(self, loader: Any, fresh: bool) -> None:
        self.skipped = 0
        try:
            twice = self.at_first.workers > 0
            self.beginning = Beginning.now(loader, fresh, twice, everything=not self._at_once)
        except Exception as error:  # a sampler with insides of its own must not cost the pass
            self.beginning = None
            self.failures += 1
            log.debug("no position of this pass", exc_info=error)

    def _own(self, loader: Any) -> Any:
        """The sampler of index batches that the loader was made with."""
        sampler = loader._index_sampler
        return sampler.own if isinstance(sampler, Regrouped) else sampler

    def _sampler(self, loader: Any) -> Any:
        """What gives the index batches of a pass."""
        if self._batching is None or self._uncut:
            return loader._index_sampler
        return Regrouped(self._own(loader), self.cut, self._batching.micro_at_first or 1)

    def _private(self, seed: int) -> int | None:
        """Samples loaded here that would have been loaded in workers must not draw from the run's random state."""
        return seed if self.at_first.workers else None

    def _number(self) -> int:
        self._parts_opened += 1
        return self._parts_opened

    # --- cutting anew -----------------------------------------------------------------------------------------------

    def recut(self, cut: Cut) -> None:
        """From the next pass on. `len(loader)` and `loader.batch_sampler.batch_size` tell of it."""
        loader = self.loader()
        self.cut = cut
        own = self._own(loader)
        stand_in = self._sampler(loader)
        vars(loader)["batch_sampler"] = own if cut.size is None else stand_in
        if self._batch_size is not None:
            vars(loader)["batch_size"] = cut.size or self._batch_size


def begin(source: Any) -> Stream:
    """Here the sampler draws its seed, and that draw is the run's own."""
    stream = Stream(source)
    stream.more()
    return stream


def draws_at_once(loader: Any) -> bool:
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
    sampler = loader._index_sampler
    if type(sampler) is data.BatchSampler:
        sampler = sampler.sampler
    return type(sampler) in known
