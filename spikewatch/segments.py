"""One index stream, many loaders: how a running pass over a DataLoader moves to other settings.

The stream of index batches belongs to the pass, not to a loader. On a change the stream is taken from the iterator
that has it, which then runs dry on the batches it has under way, and given to a new one that starts its workers at
once. The old one is read to its end first, so no sample is lost, repeated or moved.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from spikewatch import randomness
from spikewatch.batching_stream import Cutter

_COUNTED = ("_send_idx", "_rcvd_idx", "_shutdown", "_workers", "_workers_done_event", "_mark_worker_as_unavailable")
_GOLDEN = 0x9E37_79B9_7F4A_7C15  # spreads consecutive numbers over 64 bits


class Settings(NamedTuple):
    """How an iterator loads: worker processes, batches each works ahead, whether batches go to pinned memory."""

    workers: int
    prefetch: int
    pin: bool


class Stream:
    """An iterator over index batches that can take back what it gave, so that a failed opening loses nothing."""

    __slots__ = ("_ahead", "_given", "_source")

    def __init__(self, source: Iterator[Any]) -> None:
        self._source = source
        self._ahead: deque[tuple[bool, Any]] = deque()
        self._given: list[tuple[bool, Any]] | None = None

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Any:
        item = self._ahead.popleft() if self._ahead else self._pull()
        if self._given is not None:
            self._given.append(item)
        good, value = item
        if good:
            return value
        try:
            raise value
        finally:
            # The error's traceback holds this frame: with the error in it, the loader's iterator would wait for the
            # garbage collector, which stops its queues first, and then its workers take five seconds to end.
            del item, value

    def _pull(self) -> tuple[bool, Any]:
        try:
            return True, next(self._source)
        except StopIteration:
            raise
        except Exception as error:  # noqa: BLE001  the sampler's own error is kept, to be raised where it belongs
            return False, error

    def more(self) -> bool:
        """Whether anything is left. Draws one batch of indices ahead, as a priming loader would."""
        if not self._ahead:
            try:
                self._ahead.append(self._pull())
            except StopIteration:
                return False
        return True

    @property
    def source(self) -> Iterator[Any]:
        """What it draws from."""
        return self._source

    def ahead(self) -> int:
        """How many index batches it has drawn and not given."""
        return len(self._ahead)

    def error(self) -> BaseException | None:
        """The sampler's error that it met drawing ahead, if it did."""
        return next((value for good, value in self._ahead if not good), None)

    def broken(self) -> bool:
        """Whether the next thing is the sampler's error, to be raised when the loader gets there."""
        return bool(self._ahead) and not self._ahead[0][0]

    def remember(self) -> None:
        """From here on what is given can be taken back."""
        self._given = []

    def forget(self) -> None:
        """What was given is given."""
        self._given = None

    def rewind(self) -> None:
        """Takes back everything since `remember`."""
        self._ahead.extendleft(reversed(self._given or []))
        self._given = None


class Handover:
    """Stands in for the batch sampler of a loader that continues a stream."""

    __slots__ = ("_sampler", "stream")

    def __init__(self, stream: Stream, sampler: Any) -> None:
        self.stream = stream
        self._sampler = sampler

    def __iter__(self) -> Stream:
        return self.stream

    def __len__(self) -> int:
        return len(self._sampler)


class Part:
    """One iterator of a pass. `private`: the random state its samples are loaded with, None for the process's own."""

    __slots__ = ("failed", "iterator", "known", "ours", "pin", "prefetch", "private", "workers")

    def __init__(
        self,
        iterator: Any,
        settings: Settings,
        ours: bool,
        private: randomness.PrivateRandom | None = None,
    ) -> None:
        self.iterator = iterator
        self.workers, self.prefetch, self.pin = settings
        self.ours = ours  # opened here on a stream, not by the loader itself
        self.private = private
        self.failed = 0  # requests that raised
        self.known = not self.workers or all(hasattr(iterator, name) for name in _COUNTED)  # by this torch's names

    def settings(self) -> Settings:
        return Settings(self.workers, self.prefetch, self.pin)

    def take_stream(self) -> Stream:
        """Takes the index stream away: this part will end with the batches it has under way."""
        source = self.iterator._sampler_iter
        self.iterator._sampler_iter = iter(())
        return source if isinstance(source, Stream) else Stream(source)

    def give_stream(self, stream: Stream) -> None:
        """Puts the stream (back) in."""
        self.iterator._sampler_iter = stream

    def cutter(self) -> Cutter | None:
        """What cuts the index batches that this part still gets; None where nothing does, or another part has it."""
        source = self.iterator._sampler_iter
        if isinstance(source, Stream):
            source = source.source
        return source if isinstance(source, Cutter) and self.known else None

    def unread(self) -> int:
        """Index batches it has drawn that were not handed over as batches."""
        iterator = self.iterator
        source = iterator._sampler_iter
        drawn = source.ahead() if isinstance(source, Stream) else 0
        return drawn + iterator._send_idx - iterator._rcvd_idx if self.workers else drawn

    def taken(self) -> int:
        """Batches handed over, or lost to an error of the dataset's, since it was opened or reset; if `known`."""
        if not self.known:
            return 0
        return int(self.iterator._rcvd_idx) if self.workers else int(self.iterator._num_yielded) + self.failed

    def dismiss(self) -> None:
        """Tells the workers to stop after what they are doing, and does not wait. `end` is still to be called."""
        iterator = self.iterator
        if self.workers and not iterator._shutdown:
            iterator._workers_done_event.set()
            for number in range(len(iterator._workers)):
                iterator._mark_worker_as_unavailable(number, shutdown=True)

    def gone(self) -> bool:
        """Whether no worker runs any more, so that `end` will not wait."""
        return not self.workers or not any(worker.is_alive() for worker in self.iterator._workers)

    def end(self) -> None:
        """Stops the workers, also those meant to outlive a pass."""
        stop = getattr(self.iterator, "_shutdown_workers", None)
        if stop is not None:
            stop()


def open_part(loader: Any, stream: Stream, wanted: Settings, *, generator: Any, private_seed: int | None) -> Part:
    """Starts an iterator with these settings on `stream`, everything else as in `loader`. Draws nothing.

    `generator` gives the workers' base seed. Raises whatever the loader raises; the stream then has to be rewound.
    """
    from torch.utils.data import DataLoader, dataloader

    # A copy without __init__: every setting of the user's loader comes along, also those of a later torch, and
    # nothing is checked, warned about or counted a second time.
    shadow: Any = DataLoader.__new__(DataLoader)
    settings = shadow.__dict__
    settings.update(loader.__dict__)
    settings.pop("_get_iterator", None)
    settings["_iterator"] = None
    workers = wanted.workers
    # torch takes its index batches from the sampler where batch_size=None says that it makes whole batches
    sampler = "sampler" if loader.batch_sampler is None else "batch_sampler"
    settings[sampler] = Handover(stream, settings[sampler])
    settings["num_workers"] = workers
    settings["prefetch_factor"] = wanted.prefetch if workers else None
    settings["pin_memory"] = wanted.pin
    settings["persistent_workers"] = loader.persistent_workers and workers > 0
    settings["generator"] = generator
    if not workers:
        settings["timeout"] = 0
    kind: Any = dataloader._MultiProcessingDataLoaderIter if workers else dataloader._SingleProcessDataLoaderIter
    private = None
    with randomness.untouched():
        iterator = kind(shadow)
    if private_seed is not None and not workers:
        private = randomness.PrivateRandom(private_seed)
    return Part(iterator, wanted, ours=True, private=private)


def seeded(base_seed: int, number: int) -> Any:
    """A generator for the `number`-th opening of a run: reproducible, and no worker repeats an earlier one's draws."""
    import torch

    return torch.Generator().manual_seed((base_seed + number * _GOLDEN) & (2**63 - 1))


def draw_base_seed(loader: Any) -> tuple[Any, int]:
    """Draws from the loader's generator what its own iterator would, and returns a generator that will give a new
    iterator the very same base seed, with that seed.
    """
    import torch

    own = loader.generator
    twin = torch.Generator()
    twin.set_state((own if own is not None else torch.default_generator).get_state())
    drawn = torch.empty((), dtype=torch.int64).random_(generator=own).item()
    return twin, int(drawn)
