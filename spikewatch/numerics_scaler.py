"""A `torch.amp.GradScaler` set at run time: its scale, its growth interval, and passing everything through.

All of it goes by the scaler's own state_dict, which fills its tensors in place, also before its first use. The growth
tracker is zeroed each time: the kernel asks whether it equals the interval, and one that is already beyond a smaller
interval would never grow again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

FOREVER = 2**31 - 1  # steps without an overflow until a scale grows that is to stay


class Scaler:
    """One enabled scaler. The setters read its state back from the device: once a change, never once a step."""

    def __init__(self, scaler: Any, seen: Callable[[], float]) -> None:
        """`seen`: the newest scale that has arrived from a device, NaN before the first."""
        self._scaler = scaler
        self._seen = seen
        self._before: dict[str, Any] | None = None  # the whole state, while it passes everything through

    def scale(self) -> float | None:
        """Without waiting for a device; None while it is not known."""
        scale = self._scaler._scale
        if scale is None:
            return float(self._scaler._init_scale)
        if scale.is_cpu:
            return float(scale)
        seen = self._seen()
        return seen if seen == seen else None

    def growth_interval(self) -> int:
        """In steps."""
        return int(self._scaler.get_growth_interval())

    def set(self, scale: float | None = None, growth_interval: int | None = None) -> None:
        """Between two steps, after `update()`."""
        state = self._scaler.state_dict()
        if scale is not None:
            state["scale"] = scale
        if growth_interval is not None:
            state["growth_interval"] = growth_interval
        state["_growth_tracker"] = 0
        self._scaler.load_state_dict(state)

    def passes_through(self) -> bool:
        """Whether it neither scales nor adapts, but still skips steps that are not finite."""
        return self._before is not None

    def pass_through(self) -> None:
        """From now on it does. Not disabled: the script's checkpoints keep a state that can be loaded."""
        if self._before is None:
            self._before = self._scaler.state_dict()
            quiet = {"scale": 1.0, "backoff_factor": 1.0, "growth_interval": FOREVER, "_growth_tracker": 0}
            self._scaler.load_state_dict({**self._before, **quiet})

    def resume(self) -> None:
        """Scales again, as it did before."""
        if self._before is not None:
            self._scaler.load_state_dict({**self._before, "_growth_tracker": 0})
            self._before = None
