"""After gradient overflows in a row: records one step and names the module and operation where it began.

The step is slower than others, once; its numbers are those it would have had. It is left out where recording could
change what runs: compiled code, CUDA graphs, another dispatch mode, parameters that are no plain tensors.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from spikewatch.culprit import first_bad
from spikewatch.tracing import Recording

log = logging.getLogger("spikewatch")

STORM = 8  # overflows in a row
AGAIN = 1000  # steps after a search before another one
MOST = 5  # searches in a run


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the first value that is not finite was made."""

    module: str
    operation: str
    direction: str

    def words(self) -> dict[str, str]:
        """For `Telemetry.describe`."""
        return {
            "origin_module": self.module or "outside any module",
            "origin_operation": self.operation,
            "origin_direction": self.direction,
        }


def why_not(model: Any, torch: Any, graphs: bool) -> str:
    """Why a step of this run cannot be recorded; empty where it can."""
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    if os.environ.get("SPIKEWATCH_SEARCH") == "0":
        return "SPIKEWATCH_SEARCH=0"
    if _get_current_dispatch_mode() is not None:
        return "another dispatch mode is active"
    if graphs or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
        return "CUDA graphs replay operations that nobody sees"
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is not None and dynamo.counters["frames"]:
        return "compiled code would be compiled anew"
    plain = (torch.Tensor, torch.nn.Parameter)
    if model is not None and any(type(parameter) not in plain for parameter in model.parameters()):
        return "parameters are no plain tensors"
    return ""


class Search:
    """Asked after every step of a run with a scaler. On the training thread."""

    def __init__(
        self,
        model: Any,
        found: Callable[[Mapping[str, str]], None],
        graphs: Callable[[], bool] = lambda: False,
        failed: Callable[[int], None] = lambda errors: None,
    ) -> None:
        """`found` takes the words about an origin. `graphs`: whether CUDA graphs were seen. `failed` takes the number
        of our own errors while a step was recorded.
        """
        self._model = model if hasattr(model, "named_modules") else None
        self._found = found
        self._graphs = graphs
        self._failed = failed
        self._recording: Recording | None = None
        self._ended: Recording | None = None  # still under another mode
        self._next = 0
        self.done = 0
        self.refused = ""
        self.origin: Origin | None = None

    @property
    def busy(self) -> bool:
        """Whether a step is being recorded, or was and is not put away yet."""
        return self._recording is not None or self._ended is not None

    def stepped(self, step: int, in_a_row: float) -> None:
        """Step number `step` ended with so many overflows in a row (missing compares false)."""
        if self._ended is not None:
            if self._ended.end():
                self._ended = None
        elif self._recording is not None:
            recording, self._recording = self._recording, None
            if not recording.end():
                self._ended = recording
            self._conclude(recording)
        elif in_a_row >= STORM and step >= self._next and self.done < MOST:
            self._next = step + AGAIN
            self._begin()

    def _begin(self) -> None:
        torch = sys.modules.get("torch")
        if torch is None:
            return
        self.refused = why_not(self._model, torch, self._graphs())
        if self.refused:
            log.warning("%d gradient overflows in a row, their origin is not searched: %s", STORM, self.refused)
            return
        self.done += 1
        self._recording = Recording(torch, self._model)

    def _conclude(self, recording: Recording) -> None:
        if recording.trace.failures:
            self._failed(recording.trace.failures)
        operations = recording.trace.operations()
        position = first_bad(operations, recording.trace.arrived)
        if position is None:
            return  # this step was a finite one
        culprit = operations[position]
        self.origin = Origin(culprit.module, culprit.name, culprit.direction)
        log.warning(
            "%d gradient overflows in a row: the first value that is not finite came from %s, %s, in %s",
            STORM,
            culprit.name,
            culprit.direction,
            culprit.module or "no module",
        )
        self._found(self.origin.words())

    def abandon(self) -> None:
        """The run ends, or this is the child of a fork: nothing is recorded any more."""
        recording, self._recording = self._recording, None
        if recording is not None:
            recording.end()
