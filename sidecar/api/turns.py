"""Long work on the event loop's thread, cut into slices: between two of them everything else has its turn.

The store is not thread-safe, so a query runs where samples are written and rules are evaluated: on the event loop's
thread, or rather while that thread waits. Each query has a thread of its own only as a stack that can be left in the
middle and come back to; the loop hands over to it and waits until it pauses. Exactly one of the two ever runs.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Generic, TypeVar

from sidecar.errors import RequestError

_T = TypeVar("_T")

_STACK = 8 << 20  # bytes of address space: parsers recurse, and some systems give a thread very little

Pause = Callable[[], None]
"""Called by the work as often as it can be left alone: after each step, each series, each few thousand numbers."""


class Turns:
    """Gives slices to pieces of work, one at a time.

    All work together gets at most half of the thread's time: each slice is followed by a rest as long as it was. No
    more than `places` pieces of work are under way, so that what they hold in memory is bounded.
    """

    def __init__(self, places: int = 4, slice_s: float = 0.01) -> None:
        self._places, self._slice_s = asyncio.Semaphore(places), slice_s
        self._turn = asyncio.Lock()
        self._rested_at = 0.0

    async def place(self, deadline: float) -> Callable[[], None]:
        """Waits for a place; call the result once to leave it. `deadline` is on the monotonic clock.

        Raises RequestError when it passes first.
        """
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                await self._places.acquire()
        except TimeoutError:
            raise RequestError("query timed out in query queue", 503, "timeout") from None
        return self._places.release

    async def run(self, work: Callable[[Pause], _T]) -> _T:
        """What `work` returns or raises. Cancelled, it ends the work at its next pause."""
        errand = _Errand(work)
        try:
            while not await self._slice(lambda: errand.advance(self._slice_s)):
                pass
            return errand.result()
        finally:
            errand.abandon()

    async def each(self, pieces: Iterator[_T]) -> AsyncIterator[_T]:
        """The pieces of an iterator, every one of which takes less than a slice to make."""
        end = object()
        while (piece := await self._slice(lambda: next(pieces, end))) is not end:
            yield piece  # type: ignore[misc]

    async def _slice(self, work: Callable[[], _T]) -> _T:
        async with self._turn:
            # gives way to everything that is due, even where no rest is left to take
            await asyncio.sleep(max(0.0, self._rested_at - time.perf_counter()))
            began = time.perf_counter()
            try:
                return work()
            finally:
                self._rested_at = 2 * time.perf_counter() - began


class _Abandoned(BaseException):
    """Ends work that nobody waits for any more; no `except Exception` on its way may stop it."""


class _Errand(Generic[_T]):
    """Work on a thread that runs only while `advance` waits for it."""

    def __init__(self, work: Callable[[Pause], _T]) -> None:
        self._work = work
        self._go, self._back = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._back.acquire()
        self._until = 0.0
        self._done = self._given_up = False
        self._result: _T | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="query", daemon=True)

    def advance(self, slice_s: float) -> bool:
        """Runs the work for about `slice_s`; whether it is done."""
        self._until = time.perf_counter() + slice_s
        if self._thread.ident is None:
            before = threading.stack_size(_STACK)
            try:
                self._thread.start()
            finally:
                threading.stack_size(before)
        else:
            self._go.release()
        self._back.acquire()
        return self._done

    def result(self) -> _T:
        """What the finished work returned; raises what it raised."""
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]

    def abandon(self) -> None:
        """Ends the thread, whatever it was at."""
        if self._thread.ident is not None and not self._done:
            self._given_up = True
            self.advance(0)

    def _run(self) -> None:
        try:
            self._result = self._work(self._pause)
        except BaseException as e:  # noqa: BLE001  handed over to whoever waits
            self._error = e
        self._done = True
        self._back.release()

    def _pause(self) -> None:
        if time.perf_counter() >= self._until:
            self._back.release()
            self._go.acquire()
        if self._given_up:
            raise _Abandoned
