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

    After a step, `stepped` is only needed where `fired` is 0 or `restless` is set; after any other nothing has changed,
    and whoever calls it may as well set `fired` to 0 and `states` to the scaler's.
    """

    __slots__ = (
        "_last_scale", "_scale", "consecutive", "fired", "fused", "restless", "scale", "scaler", "states", "total",
    )  # fmt: skip

    def __init__(self, scaler: Any, optimizer: Any) -> None:
        """Registers a post hook on `optimizer`; checkpoints and pickles do not contain it."""
        self.scaler = scaler
        self._scale = Scalar()
        self._last_scale = MISSING
        self.fired = 0  # calls of the optimizer since the last step
        self.restless = True  # until the first update, and while overflows follow each other
        self.total: float = MISSING
        self.consecutive: float = MISSING
        self.scale: float = MISSING
        self.states: Any = getattr(scaler, "_per_optimizer_states", None)
        self.fused = (
            self.states is None
            or not hasattr(optimizer, "register_step_post_hook")
            or bool(getattr(optimizer, "_step_supports_amp_scaling", False))
        )
        if not self.fused:
            optimizer.register_step_post_hook(self._count)

    def _count(self, *_: object) -> None:
        self.fired += 1

    def stepped(self) -> None:
        """After `scaler.update()`."""
        if self.fused:
            for scale in self.look():
                self._seen(scale < self._last_scale)
                self._last_scale = scale
            return
        states = self.scaler._per_optimizer_states
        if states is not self.states:
            # update() starts a new dict: the scaler went through a whole step since we last looked
            self.states = states
            self._seen(not self.fired)
            if not self.fired:
                self.look()
        self.fired = 0

    def look(self) -> list[float]:
        """Reads the loss scale, which costs as much as all the rest."""
        scaler = self.scaler
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
        self.restless = self.fused or overflow
