"""Gradient overflows of torch's GradScaler, counted without a synchronisation of our own.

A scaler that meets an overflow does not call the optimizer. So a step in which the scaler was updated and the
optimizer's post hook did not fire is an overflow. A fused optimizer is always called and skips inside its kernel:
there a falling loss scale is the sign.
"""

from __future__ import annotations

from typing import Any

from spikewatch.layout import MISSING
from spikewatch.scalars import Scalar


class OverflowWatch:
    """One scaler with its optimizer. `total` and `consecutive` are missing until the scaler was first updated, `scale`
    where it does not scale.
    """

    __slots__ = ("_fired", "_fused", "_last_scale", "_scale", "_scaler", "_states", "consecutive", "scale", "total")

    def __init__(self, scaler: Any, optimizer: Any) -> None:
        """Registers a post hook on `optimizer`; checkpoints and pickles do not contain it."""
        self._scaler = scaler
        self._scale = Scalar()
        self._last_scale = MISSING
        self._fired = 0
        self.total: float = MISSING
        self.consecutive: float = MISSING
        self.scale: float = MISSING
        self._states = getattr(scaler, "_per_optimizer_states", None)
        self._fused = (
            self._states is None
            or not hasattr(optimizer, "register_step_post_hook")
            or bool(getattr(optimizer, "_step_supports_amp_scaling", False))
        )
        if not self._fused:
            optimizer.register_step_post_hook(self._count)

    def _count(self, *_: object) -> None:
        self._fired += 1

    def stepped(self, look: bool = True) -> None:
        """After `scaler.update()`. `look`: also at the loss scale, which costs as much as all the rest."""
        if self._fused:
            for scale in self._look():
                self._seen(scale < self._last_scale)
                self._last_scale = scale
            return
        states = self._scaler._per_optimizer_states
        if states is not self._states:
            # update() starts a new dict: the scaler went through a whole step since we last looked
            self._states = states
            self._seen(not self._fired)
        self._fired = 0
        if look:
            self._look()

    def _look(self) -> list[float]:
        scaler = self._scaler
        if not scaler.is_enabled() or scaler._scale is None:
            self.scale = MISSING
            return []
        scales = self._scale.offer(scaler._scale)
        passes_through = scaler.get_backoff_factor() == 1.0 and self._scale.value == 1.0
        self.scale = MISSING if passes_through else self._scale.value
        return scales

    def _seen(self, overflow: bool) -> None:
        if self.total != self.total:
            self.total = self.consecutive = 0.0
        self.total += overflow
        self.consecutive = self.consecutive + 1 if overflow else 0.0
