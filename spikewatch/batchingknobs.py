"""The knobs `micro_batch_size` and `accumulation_steps`: changed together, so that a step keeps its samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spikewatch.batching import Batching
from spikewatch.batching_stream import Cut
from spikewatch.knob import Knob
from spikewatch.refusal import Refused
from spikewatch.tuner import Tuner

NAMES = ("micro_batch_size", "accumulation_steps")


class BatchingKnobs:
    """A `knob.Source` of a loop that accumulates gradients over an instrumented loader's batches.

    One of the two brings the other along: their product, the samples of an optimizer step on this rank, stays. It
    changes only where `global_batch_may_change` and both are set. A change acts on the next batch that is handed
    over, on every rank: what workers had made ready in the old size is made again.
    """

    def __init__(self, batching: Batching, tuner: Tuner, global_batch_may_change: bool = False) -> None:
        """`batching.micro` must be known. Of a loader that cannot be cut anew the knobs are there, but closed."""
        self._batching = batching
        self._tuner = tuner
        self._free = global_batch_may_change

    def knobs(self) -> Sequence[Knob]:
        most = self._most()
        return (
            Knob("micro_batch_size", "int", "samples", 1, most, shared=True),
            Knob("accumulation_steps", "int", "micro-batches", 1, most, shared=True),
        )

    def _most(self) -> int:
        batching = self._batching
        first = (batching.micro_at_first or 1) * batching.accumulation_at_first
        # Without a bound a typing error would be tried: 64 times the step's samples is far from any useful one.
        return max(first, (batching.micro or 1) * batching.accumulation) * (64 if self._free else 1)

    def values(self) -> Mapping[str, Any]:
        return {"micro_batch_size": self._batching.micro, "accumulation_steps": self._batching.accumulation}

    def unavailable(self) -> Mapping[str, str]:
        reason = self._tuner.why_not_recut() or self._batching.trouble
        return dict.fromkeys(NAMES, reason) if reason else {}

    def check(self, values: Mapping[str, Any]) -> None:
        """Raises Refused(out_of_bounds) for values that do not make up a step."""
        self._resolve(values)

    def lag(self, values: Mapping[str, Any]) -> int:
        return 0

    def change(self, values: Mapping[str, Any], after: int) -> None:
        micro, accumulation = self._resolve(values)
        batching = self._batching
        if not batching.last:
            raise Refused("unsupported", "the loop is in the middle of an accumulation")
        if (micro, accumulation) == (batching.micro, batching.accumulation):
            return
        own = batching.micro_at_first or 1
        plain = micro == own and accumulation == batching.accumulation_at_first
        batching.micro, batching.accumulation = micro, accumulation
        self._tuner.recut(Cut() if plain else Cut(micro, micro * accumulation // own))

    def _resolve(self, values: Mapping[str, Any]) -> tuple[int, int]:
        """(samples a batch, batches a step). Raises Refused."""
        batching = self._batching
        own = batching.micro_at_first or 1
        step = (batching.micro or own) * batching.accumulation
        micro: Any = values.get("micro_batch_size")
        accumulation: Any = values.get("accumulation_steps")
        if micro is None and accumulation is None:
            return batching.micro or own, batching.accumulation
        for name, value in (("micro_batch_size", micro), ("accumulation_steps", accumulation)):
            if value is not None and not self._free and step % value:
                raise Refused("out_of_bounds", f"{name}: a step has {step} samples, {value} does not divide them")
        micro = step // accumulation if micro is None else micro
        accumulation = step // micro if accumulation is None else accumulation
        if micro * accumulation == step:
            return micro, accumulation
        if not self._free:
            raise Refused(
                "out_of_bounds",
                f"{micro} × {accumulation} is not the {step} samples of a step; attach(global_batch_may_change=True) "
                "allows that",
            )
        if not micro * accumulation or micro * accumulation % own:
            raise Refused("out_of_bounds", f"the samples of a step are a multiple of the loader's own {own} a batch")
        return micro, accumulation
