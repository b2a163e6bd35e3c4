"""Mixed precision as knobs: `loss_scale`, `loss_scale_growth_interval` and `precision` (fp16 to bf16, and back)."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spikewatch.knob import Knob
from spikewatch.numerics_scaler import Scaler
from spikewatch.refusal import Refused

SCALE, INTERVAL, PRECISION = "loss_scale", "loss_scale_growth_interval", "precision"

LOWEST_SCALE = 1.0  # below it gradients are made smaller, and at 2**-126 finite ones become NaN in the weights
HIGHEST_SCALE = 2.0**32
LONGEST_INTERVAL = 1_000_000


class MixedPrecision:
    """A `knob.Source`: the scaler, and the autocast contexts that were made here or adopted from a framework."""

    def __init__(self, scaler: Scaler | None, told: Callable[[str], None] = lambda precision: None) -> None:
        """`told` takes the precision in the words of `run_info` whenever it was changed here."""
        self._scaler = scaler
        self._told = told
        self._contexts: weakref.WeakSet[Any] = weakref.WeakSet()  # of fp16, or that were until a change
        self._device = ""  # theirs, empty before the first
        self._bf16 = False
        self._other = ""  # what the script's own contexts cast to, when it is not fp16

    def autocast(self, device_type: str, dtype: Any = None, **more: Any) -> Any:
        """`torch.autocast(device_type, dtype, …)`, in bf16 where fp16 was changed to it."""
        import torch

        context = torch.autocast(device_type, dtype, **more)
        self.adopt(context)
        return context

    def adopt(self, context: Any) -> None:
        """From now on an existing `torch.autocast` of a framework is changed along."""
        import torch

        if not context._enabled:
            return
        if context.fast_dtype is torch.float16:
            self._contexts.add(context)
            self._device = context.device
            if self._bf16:
                context.fast_dtype = torch.bfloat16
        else:
            self._other = str(context.fast_dtype).removeprefix("torch.")

    # --- knob.Source ------------------------------------------------------------------------------------------------

    def knobs(self) -> Sequence[Knob]:
        found = self.values()
        scale, interval = found.get(SCALE, LOWEST_SCALE), found.get(INTERVAL, 1)
        return (
            Knob(SCALE, "float", "", min(LOWEST_SCALE, scale), max(HIGHEST_SCALE, scale), shared=True, drifts=True),
            Knob(INTERVAL, "int", "steps", 1, max(LONGEST_INTERVAL, interval), shared=True),
            Knob(PRECISION, "str", choices=("fp16", "bf16"), shared=True),
        )

    def values(self) -> Mapping[str, Any]:
        values: dict[str, Any] = {PRECISION: "bf16" if self._bf16 else "fp16"} if self._device else {}
        if self._scaler is not None:
            scale = self._scaler.scale()
            values |= {INTERVAL: self._scaler.growth_interval()} | ({} if scale is None else {SCALE: scale})
        return values

    def unavailable(self) -> Mapping[str, str]:
        why = self._why_no_scale()
        reasons = {SCALE: why, INTERVAL: why} if why else {}
        why = self._why_no_precision()
        return reasons | ({PRECISION: why} if why else {})

    def _why_no_scale(self) -> str:
        if self._scaler is None:
            return "no enabled GradScaler was given to attach"
        if self._bf16:
            return "bf16 needs no loss scale"
        return "" if self._scaler.scale() is not None else "the scale is not known yet"

    def _why_no_precision(self) -> str:
        if not self._device:
            if self._other:
                return f"the forward pass runs in {self._other}, not in fp16"
            return "the forward pass is not run under run.autocast(…)"
        return "" if self._bf16 or bf16_here(self._device) else "this GPU has no bf16"

    def check(self, values: Mapping[str, Any]) -> None:
        if PRECISION in values and len(values) > 1:
            raise Refused("unsupported", "the loss scale cannot be set together with the precision it belongs to")

    def lag(self, values: Mapping[str, Any]) -> int:
        return 0

    def change(self, values: Mapping[str, Any], after: int) -> None:
        if PRECISION in values:
            self._turn(values[PRECISION] == "bf16")
        elif self._scaler is not None:
            self._scaler.set(values.get(SCALE), values.get(INTERVAL))

    def _turn(self, bf16: bool) -> None:
        import torch

        if self._scaler is not None:
            self._scaler.pass_through() if bf16 else self._scaler.resume()
        self._bf16 = bf16
        for context in self._contexts:
            context.fast_dtype = torch.bfloat16 if bf16 else torch.float16
        self._told("bf16-mixed" if bf16 else "fp16-mixed")


def bf16_here(device_type: str) -> bool:
    """Whether bf16 is computed on this device, not emulated. CPUs all do."""
    torch: Any = sys.modules["torch"]
    return device_type != "cuda" or bool(torch.cuda.is_bf16_supported(including_emulation=False))
