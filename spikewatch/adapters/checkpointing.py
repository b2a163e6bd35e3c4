"""Knob `gradient_checkpointing` of models that can turn it on and off by themselves, as those of transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spikewatch.knob import Knob

NAME = "gradient_checkpointing"
_WORDS = ("activation", "gradient")  # how transformers calls it, newest first


class Checkpointing:
    """A `knob.Source`. Less memory for more computing, with the same gradients; each rank by itself."""

    def __init__(self, model: Any) -> None:
        """`model`: the module itself, not a wrapper around it."""
        self._model = model
        self._word = next((word for word in _WORDS if hasattr(type(model), f"{word}_checkpointing_enable")), "")
        self._why = _why_not(model, self._word)
        self._on = False

    def knobs(self) -> Sequence[Knob]:
        return (Knob(NAME, "bool"),)

    def values(self) -> Mapping[str, Any]:
        return {NAME: self._on}

    def unavailable(self) -> Mapping[str, str]:
        return {NAME: self._why} if self._why else {}

    def check(self, values: Mapping[str, Any]) -> None:
        """Everything that can be refused is known beforehand."""

    def lag(self, values: Mapping[str, Any]) -> int:
        return 0

    def change(self, values: Mapping[str, Any], after: int) -> None:
        wanted = bool(values[NAME])
        if wanted and not self._on:
            # the variant torch recommends; it also works where some inputs need no gradient
            how = {f"{self._word}_checkpointing_kwargs": {"use_reentrant": False}}
            getattr(self._model, f"{self._word}_checkpointing_enable")(**how)
        elif not wanted and self._on:
            getattr(self._model, f"{self._word}_checkpointing_disable")()
        self._on = wanted


def _why_not(model: Any, word: str) -> str:
    if not word:
        return f"{type(model).__name__} has no gradient_checkpointing_enable()"
    if not getattr(model, "supports_gradient_checkpointing", True):
        return f"{type(model).__name__} does not support it"
    if getattr(model, f"is_{word}_checkpointing", False):
        return "it is on from the start, with settings of the script's own"
    return ""
