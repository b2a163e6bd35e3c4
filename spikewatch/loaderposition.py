"""Where a pass over a DataLoader is: enough to begin it again in another process, at its next sample.

The order of a pass is not kept, it may have a billion entries, but what it was drawn from: the random state at the
pass's beginning. Drawn again from that and moved on by the batches that were handed over, it goes on exactly.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from spikewatch import randomness

VERSION = 1


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a pass's order was drawn from, and how."""

    random: randomness.State
    generators: tuple[Any, ...]  # states of the loader's and the sampler's own
    fresh: bool  # a base seed for workers was drawn
    twice: bool  # the sampler was begun twice, as torch does for workers
    epoch: int | None  # of a sampler with `set_epoch`

    @staticmethod
    def now(loader: Any, fresh: bool, twice: bool, everything: bool) -> Beginning:
        """Before the pass is opened. `everything`: also the states of `random` and numpy, for a sampler not known."""
        state = randomness.capture() if everything else (sys.modules["torch"].get_rng_state(), None, None)
        own = tuple(generator.get_state() for generator in generators(loader))
        epoch = getattr(_epochal(loader), "epoch", None)
        return Beginning(state, own, fresh, twice, epoch if isinstance(epoch, int) else None)

    @contextmanager
    def again(self, loader: Any) -> Iterator[None]:
        """Inside, what is drawn is what was drawn then. The process's own random states are as before afterwards, the
        loader's generators have moved on from that beginning.
        """
        for generator, state in zip(generators(loader), self.generators, strict=True):
            generator.set_state(state)
        if self.epoch is not None:
            _epochal(loader).set_epoch(self.epoch)
        with randomness.untouched():
            randomness.restore(self.random)
            yield


@dataclass(frozen=True, slots=True)
class Position:
    """Where a pass goes on. `batches`: of the loader's own sampler, handed over before; of an iterable-style dataset,
    those that it gave.
    """

    batches: int
    beginning: Beginning


def generators(loader: Any) -> list[Any]:
    """The torch generators that the order of a pass may come from, each once."""
    sampler = loader._index_sampler
    found: list[Any] = []
    for holder in (loader, sampler, getattr(sampler, "sampler", None), getattr(loader, "sampler", None)):
        generator = getattr(holder, "generator", None)
        if isinstance(generator, sys.modules["torch"].Generator) and not any(generator is one for one in found):
            found.append(generator)
    return found


def _epochal(loader: Any) -> Any:
    """The sampler whose order depends on an epoch that the script sets; None without one."""
    sampler = loader._index_sampler
    for one in (sampler, getattr(sampler, "sampler", None)):
        if hasattr(one, "set_epoch"):
            return one
    return None


def shape(loader: Any) -> dict[str, Any]:
    """What has to be the same in the run that goes on."""
    sampler = loader._index_sampler
    inner = getattr(sampler, "sampler", None)
    return {
        "batch sampler": type(getattr(sampler, "own", sampler)).__name__,
        "sampler": type(inner).__name__,
        "batch_size": getattr(sampler, "own_size", None) or getattr(sampler, "batch_size", None),
        "drop_last": getattr(sampler, "drop_last", None),
        "samples": _length(inner if inner is not None else sampler),
        "ranks": getattr(inner, "num_replicas", None),
        "generators": len(generators(loader)),
        "workers": loader.num_workers if _rereads(loader) else None,  # the order of such a dataset depends on them
    }


def _rereads(loader: Any) -> bool:
    return isinstance(loader.dataset, sys.modules["torch"].utils.data.IterableDataset)


def _length(sampler: Any) -> int | None:
    try:
        return len(sampler)
    except (TypeError, NotImplementedError):
        return None


def to_state(loader: Any, position: Position | None) -> dict[str, Any]:
    """Plain numbers, texts, lists and byte tensors, as `torch.load(weights_only=True)` takes them. `position` None:
    between two passes.
    """
    state: dict[str, Any] = {
        "version": VERSION,
        "shape": shape(loader),
        "generators": [generator.get_state() for generator in generators(loader)],
        "batches": None,
    }
    if position is not None:
        beginning = position.beginning
        state |= {
            "batches": position.batches,
            "random": _plain(beginning.random),
            "beginning": list(beginning.generators),
            "fresh": beginning.fresh,
            "twice": beginning.twice,
            "epoch": beginning.epoch,
        }
    return state


def from_state(loader: Any, state: Mapping[str, Any]) -> Position | None:
    """The position, None between two passes; there, the loader's generators are set.

    Raises ValueError for a state of another version, or of a loader whose batches were others.
    """
    if state.get("version") != VERSION:
        raise ValueError(f"a loader position of version {state.get('version')!r}, this client reads {VERSION}")
    here, there = shape(loader), state["shape"]
    other = [
        f"{name} was {there.get(name)!r}, is {value!r}" for name, value in here.items() if there.get(name) != value
    ]
    if other:
        raise ValueError("the checkpoint's position does not fit this loader: " + "; ".join(other))
    if state["batches"] is None:
        for generator, own in zip(generators(loader), state["generators"], strict=True):
            generator.set_state(own)
        return None
    beginning = Beginning(
        _live(state["random"]), tuple(state["beginning"]), state["fresh"], state["twice"], state["epoch"]
    )
    return Position(state["batches"], beginning)


def _plain(state: randomness.State) -> list[Any]:
    torchs, python, numpys = state
    if numpys is not None:
        inner = numpys["state"]
        inner = {**inner, "key": inner["key"].tolist()} if "key" in inner else inner
        numpys = {**numpys, "state": inner}
    return [torchs, None if python is None else [python[0], list(python[1]), python[2]], numpys]


def _live(state: Any) -> randomness.State:
    torchs, python, numpys = state
    if numpys is not None and "key" in numpys["state"]:
        key = sys.modules["numpy"].array(numpys["state"]["key"], dtype="uint32")
        numpys = {**numpys, "state": {**numpys["state"], "key": key}}
    return torchs, None if python is None else (python[0], tuple(python[1]), python[2]), numpys
