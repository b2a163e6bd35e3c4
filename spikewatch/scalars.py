"""Loss and the like, read without ever waiting for a device: the newest value that has arrived."""

from __future__ import annotations

import sys
from collections import deque
from math import isfinite
from typing import Any

from spikewatch.layout import MISSING

_PINNED = 4  # copies that may be under way; a step whose slot is still busy is left out


class Scalar:
    """One number a step. On an accelerator it comes a step or two late."""

    __slots__ = ("_busy", "_free", "kind", "nonfinite", "value")

    def __init__(self) -> None:
        self.value: float = MISSING
        self.nonfinite = 0  # how many of those that arrived were NaN or infinite
        self.kind: type | None = None  # of the numbers so far: torch's own is not looked up each time
        self._busy: deque[tuple[Any, Any]] = deque()  # (event, pinned tensor), oldest first
        self._free: list[tuple[Any, Any]] | None = None

    def offer(self, number: Any) -> list[float]:
        """Takes this step's value; returns the values that arrived by now, oldest first.

        A float or a CPU tensor arrives at once. Of a CUDA tensor a copy is started and looked for at later calls.
        Anything else is not known.
        """
        if number is None:
            return self._arrived()
        if isinstance(number, (int, float)):
            value = float(number)
        else:
            if type(number) is not self.kind:
                torch = sys.modules.get("torch")
                if torch is None or type(number) not in (torch.Tensor, torch.nn.Parameter):
                    return []  # a DTensor, say, could make .item() a collective
                self.kind = type(number)
            if not number.is_cpu:  # asking for its device takes ten times as long
                return self._accelerated(number)
            try:
                value = number.item()
            except RuntimeError:  # not one element; asking first would cost every step
                return []
        self.value = value
        if not isfinite(value):
            self.nonfinite += 1
        return [value]

    def _accelerated(self, number: Any) -> list[float]:
        if not number.is_cuda or number.numel() != 1:
            return []
        arrived = self._arrived()
        self._start(sys.modules["torch"], number)
        return arrived

    def _start(self, torch: Any, number: Any) -> None:
        if self._free is None:
            self._free = [
                (torch.cuda.Event(), torch.empty(1, dtype=torch.float64, pin_memory=True)) for _ in range(_PINNED)
            ]
        if not self._free or torch.cuda.is_current_stream_capturing():
            return
        event, pinned = self._free.pop()
        # detach: reading must leave no trace in the graph. The copy is ordered on the stream, nobody waits for it.
        pinned.copy_(number.detach().reshape(1), non_blocking=True)
        event.record()
        self._busy.append((event, pinned))

    def _arrived(self) -> list[float]:
        values = []
        while self._busy and self._busy[0][0].query():
            event, pinned = self._busy.popleft()
            values.append(float(pinned[0]))
            self.nonfinite += not isfinite(values[-1])
            if self._free is not None:
                self._free.append((event, pinned))
        if values:
            self.value = values[-1]
        return values
