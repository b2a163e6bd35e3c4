"""The process's random state: taken, compared, put back. The training run's numbers must not depend on us."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

State = tuple[Any, Any, Any]


def capture() -> State:
    """The states of torch's CPU generator, `random` and, where loaded, numpy. About 12 µs.

    Accelerator generators are left alone: neither opening a loader nor collating a batch uses them, and reading
    them would wait for the device.
    """
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    return (
        torch.get_rng_state() if torch else None,
        random.getstate(),
        numpy.random.get_state(legacy=False) if numpy else None,
    )


def restore(state: State) -> None:
    """Puts a captured state back, or what was captured of it."""
    ours, python, numpys = state
    if ours is not None:
        sys.modules["torch"].set_rng_state(ours)
    if python is not None:
        random.setstate(python)
    if numpys is not None:
        sys.modules["numpy"].random.set_state(numpys)


def same(one: State, other: State) -> bool:
    """Whether nothing was drawn between two captures."""
    if one[1] != other[1] or (one[0] is None) != (other[0] is None) or (one[2] is None) != (other[2] is None):
        return False
    if one[0] is not None and not sys.modules["torch"].equal(one[0], other[0]):
        return False
    return one[2] is None or _numpys(one[2]) == _numpys(other[2])


def _numpys(state: Any) -> Any:
    inner = state["state"]
    return (
        state["bit_generator"],
        inner["key"].tobytes() if "key" in inner else repr(inner),
        inner.get("pos"),
        repr((state.get("has_gauss"), state.get("gauss"))),
    )


@contextmanager
def untouched() -> Iterator[None]:
    """Whatever is drawn inside is given back: `torch.random.fork_rng` for the CPU, `random` and numpy."""
    before = capture()
    try:
        yield
    finally:
        restore(before)


class PrivateRandom:
    """A random state beside the process's own, for samples that are loaded in this process instead of a worker.

    In a worker their draws would have come from the worker's generator; here they must not come from the run's.
    """

    __slots__ = ("_outer", "_state")

    def __init__(self, seed: int) -> None:
        """`seed` as a worker would get it: torch's base seed."""
        torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
        with untouched():
            random.seed(seed)
            if torch:
                torch.default_generator.manual_seed(seed & (2**63 - 1))
            if numpy:
                numpy.random.seed(seed % 2**32)
            self._state = capture()
        self._outer: State | None = None

    def __enter__(self) -> None:
        self._outer = capture()
        restore(self._state)

    def __exit__(self, *exception: object) -> None:
        self._state = capture()
        if self._outer is not None:
            restore(self._outer)


class DrawProbe:
    """Finds out by looking whether asking the loader for a batch draws from the process's random state.

    It does where samples are augmented in this process (no workers), or where a sampler draws an index at a time:
    there, another number of workers or batches ahead would give another sequence, so the knobs stay closed.
    The first request of a pass is not looked at: there every shuffling sampler draws its seed.
    """

    FIRST, LAST, ENOUGH = 1, 8, 4

    __slots__ = ("draws", "seen")

    def __init__(self, needed: bool) -> None:
        self.draws: bool | None = None if needed else False
        self.seen = 0

    def wanted(self, request: int) -> bool:
        """Whether to look at this request, counted from 0 in each pass."""
        return self.draws is None and self.FIRST <= request <= self.LAST

    def looked(self, before: State) -> None:
        """The request is over; `before` was captured as it began."""
        if not same(before, capture()):
            self.draws = True
            return
        self.seen += 1
        if self.seen >= self.ENOUGH:
            self.draws = False
