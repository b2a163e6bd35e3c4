"""`lr_factor`: multiplies the learning rate during the optimizer's step only, and so under any scheduler.

Schedulers, checkpoints and the script's own log see the rate they set. With a factor of 1 no hook is registered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spikewatch.knob import Knob
from spikewatch.refusal import Refused

NAME = "lr_factor"
LOWEST, HIGHEST = 0.1, 2.0  # a rate outside is another experiment, not a remedy


class LrFactor:
    """A `knob.Source` of one optimizer of torch's, not of a wrapper around it."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._factor = 1.0
        self._hooks: list[Any] = []
        self._original: list[tuple[dict[str, Any], Any]] = []  # (group, its rate) while a step is under way

    def knobs(self) -> Sequence[Knob]:
        return (Knob(NAME, "float", "ratio", LOWEST, HIGHEST, shared=True),)

    def values(self) -> Mapping[str, Any]:
        return {NAME: self._factor}

    def unavailable(self) -> Mapping[str, str]:
        why = why_not(self._optimizer)
        return {NAME: why} if why else {}

    def check(self, values: Mapping[str, Any]) -> None:
        for group in self._optimizer.param_groups:
            if "lr" not in group:
                raise Refused("unsupported", "a parameter group of the optimizer has no learning rate")
            if group.get("capturable"):
                raise Refused("unsupported", "the optimizer may be replayed from a CUDA graph, which calls no hooks")

    def lag(self, values: Mapping[str, Any]) -> int:
        return 0

    def change(self, values: Mapping[str, Any], after: int) -> None:
        self._factor = float(values[NAME])
        if self._factor == 1.0:
            while self._hooks:
                self._hooks.pop().remove()
        elif not self._hooks:
            self._hooks = [
                self._optimizer.register_step_pre_hook(self._multiply),
                self._optimizer.register_step_post_hook(self._restore),
            ]

    def _multiply(self, *_: object) -> None:
        self._restore()  # of a step that raised
        for group in self._optimizer.param_groups:
            rate = group["lr"]
            self._original.append((group, rate))
            group["lr"] = rate * self._factor

    def _restore(self, *_: object) -> None:
        while self._original:
            group, rate = self._original.pop()
            group["lr"] = rate


def why_not(optimizer: Any) -> str:
    """Why this optimizer cannot be reached; empty when it can."""
    if optimizer is None:
        return "no optimizer was given to attach"
    # A wrapper may inherit the method and lack what it needs.
    if not all(hasattr(optimizer, name) for name in ("param_groups", "_optimizer_step_pre_hooks")):
        return f"{type(optimizer).__name__} has no step hooks; give attach the optimizer inside it"
    return ""
