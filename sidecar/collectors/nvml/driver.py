"""(child) Calls into the driver: counted, timed, announced on the board; what cannot be had is asked less often."""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from typing import Any

from sidecar.collectors.nvml import wire

DENIED_PAUSE_S = 60.0  # a permission that was withdrawn may come back
NEVER_PAUSE_S = 600.0  # what a driver does not have it gets with another driver, and that restarts us
FAILED_PAUSE_S = 10.0


_NOWHERE = wire.BOARD.pack(-1, b"")


class GpuGone(Exception):
    """Nothing can be read from a GPU any more; `code` says why."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(str(code))


class MigChanged(Exception):
    """A handle that worked is unknown now: the GPU was divided anew."""


class Ability:
    """Whether one kind of call works on one GPU: 0, or the return code and when to try again.

    `instance`: the handle is that of a MIG device, which becomes invalid when its GPU is divided anew. `core`: every
    GPU can do this, so that an unknown error of it is one of the GPU, not of this call.
    """

    __slots__ = ("code", "core", "instance", "retry_at")

    def __init__(self, instance: bool = False, core: bool = False) -> None:
        self.code = 0
        self.retry_at = 0.0
        self.instance, self.core = instance, core


class Driver:
    """pynvml, with what its calls cost. One thread only; the event thread has calls of its own."""

    def __init__(self, nvml: Any, board: mmap.mmap | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.nvml = nvml
        self.now = clock
        self.calls: dict[str, list[float]] = {}  # name → [calls, seconds]
        self._board = board
        self._notices: dict[tuple[int, str], bytes] = {}
        self.gpu = -1  # whose turn it is

    def call(self, name: str, *args: Any) -> Any:
        """Any function of pynvml. Raises its NVMLError."""
        board = self._board
        if board is not None:
            board[: wire.BOARD.size] = self._notices.get((self.gpu, name)) or self._notice(name)
        spent = self.calls.get(name)
        if spent is None:
            spent = self.calls[name] = [0, 0.0]
        started = time.perf_counter()
        try:
            return getattr(self.nvml, name)(*args)
        finally:
            spent[0] += 1
            spent[1] += time.perf_counter() - started
            if board is not None:
                board[: wire.BOARD.size] = _NOWHERE

    def _notice(self, name: str) -> bytes:
        """What stands on the board during this call; made once for each GPU and call."""
        found = self._notices[self.gpu, name] = wire.BOARD.pack(self.gpu, name.encode())
        return found

    def attempt(self, ability: Ability, name: str, *args: Any) -> Any:
        """The answer, or None where this cannot be had now. Raises GpuGone, MigChanged."""
        if ability.code and self.now() < ability.retry_at:
            return None
        try:
            answer = self.call(name, *args)
        except self.nvml.NVMLError as e:
            self.refused(ability, int(e.value))
            return None
        ability.code = 0
        return answer

    def refused(self, ability: Ability, code: int) -> None:
        """Notes a return code. Raises where it says more than that this one call failed."""
        if code in wire.GONE and (ability.core or code != wire.UNKNOWN):
            raise GpuGone(code)
        if ability.instance and code in (wire.INVALID, wire.NOT_FOUND):
            raise MigChanged
        pause = FAILED_PAUSE_S
        if code == wire.NO_PERMISSION:
            pause = DENIED_PAUSE_S
        elif code in wire.NEVER:
            pause = NEVER_PAUSE_S
        ability.code, ability.retry_at = code, self.now() + pause
