"""Knobs `micro_batch_size` and `accumulation_steps` of a framework that owns the loop: its batches are split.

The framework goes on counting the batches it counts; each is computed in pieces whose gradients add up to the
batch's. So no counter, schedule or epoch length of the framework moves, a change acts at any step, and the number of
samples an optimizer step uses stays what it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spikewatch.adapters import chunks
from spikewatch.knob import Knob
from spikewatch.refusal import Refused

NAMES = ("micro_batch_size", "accumulation_steps")


class Splitting:
    """A `knob.Source`. `batch`: samples in a batch of the framework's loader; `accumulated`: batches a step."""

    def __init__(self, batch: int, accumulated: int) -> None:
        self._batch, self._accumulated = batch, accumulated
        self._micro = batch
        self._splittable: bool | None = None  # not known before the first batch

    def pieces(self, batch: Any) -> list[tuple[Any, int]] | None:
        """The batch in pieces, None to compute it whole. Called for every batch, on the training thread."""
        if self._splittable is None:  # the first of a pass: a full one
            self._splittable = chunks.length(batch) == self._batch
        if self._micro == self._batch:
            return None
        # Rows that are no samples, like pairs of answers, or sentences packed into one row, must stay together.
        rows = chunks.length(batch)
        pieces = chunks.split(batch, self._micro) if rows is not None and rows <= self._batch else None
        self._splittable = pieces is not None
        return pieces if pieces is not None and len(pieces) > 1 else None

    # --- knob.Source ------------------------------------------------------------------------------------------------

    def knobs(self) -> Sequence[Knob]:
        return (
            Knob("micro_batch_size", "int", "samples", 1, self._batch, shared=True),
            Knob(
                "accumulation_steps",
                "int",
                "micro-batches per step",
                self._accumulated,
                self._accumulated * self._batch,
                shared=True,
            ),
        )

    def values(self) -> Mapping[str, Any]:
        micro = self._micro
        return {"micro_batch_size": micro, "accumulation_steps": self._accumulated * (self._batch // micro)}

    def unavailable(self) -> Mapping[str, str]:
        if self._splittable:
            return {}
        reason = (
            "no batch was seen yet"
            if self._splittable is None
            else "the batches cannot be dealt out by sample: they hold other things than one row a sample"
        )
        return dict.fromkeys(NAMES, reason)

    def check(self, values: Mapping[str, Any]) -> None:
        """Raises Refused for values that would change how many samples a step uses."""
        self._wanted(values)

    def lag(self, values: Mapping[str, Any]) -> int:
        return 0

    def change(self, values: Mapping[str, Any], after: int) -> None:
        self._micro = self._wanted(values)

    def _wanted(self, values: Mapping[str, Any]) -> int:
        whole = self._batch * self._accumulated
        micro = values.get("micro_batch_size")
        steps = values.get("accumulation_steps")
        if micro is None and steps is not None:
            micro = whole // steps
        if not micro or self._batch % micro or (steps is not None and micro * steps != whole):
            raise Refused(
                "unsupported",
                f"a step uses {whole} samples of this rank, in batches of {self._batch}: micro_batch_size divides "
                f"{self._batch}, and times accumulation_steps it makes {whole}",
            )
        return int(micro)
