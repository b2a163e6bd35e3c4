"""Situations that remediations plan in."""

from __future__ import annotations

import pytest

from sidecar.hooks import View
from sidecar.model import Alert, AlertState, Knob, Scope, TrainerIdentity

ALERT = Alert("SomethingIsWrong", (("rank", "0"),), (), AlertState.FIRING, 0.6, 0)
WHO = TrainerIdentity("job", "1", ("a",), (0,), 1)
BOUNDS = {
    "micro_batch_size": (1, 4096),
    "accumulation_steps": (1, 4096),
    "lr_factor": (0.01, 10),
    "loss_scale": (1, 1 << 24),
    "loss_scale_growth_interval": (1, 1_000_000),
    "precision": (None, None),
    "request": (None, None),
}


class Situation:
    """Builders for views; a value or (value, minimum, maximum) a knob."""

    ALERT, WHO = ALERT, WHO

    @staticmethod
    def view(who=WHO, facts=None, series=None, **knobs):
        made = {}
        for name, given in knobs.items():
            value, low, high = given if isinstance(given, tuple) else (given, *BOUNDS[name])
            made[name] = Knob(name, value, low, high, scope=Scope.ALL_RANK)
        return View(made, who, facts or {}, series or {})

    @staticmethod
    def series(values, *, start=0, step=10, every_ms=1000):
        """(steps, values): a count of steps that grows by `step` a sample, and these values at the same times."""
        times = [every_ms * n for n in range(len(values))]
        return [(t, float(start + step * n)) for n, t in enumerate(times)], list(zip(times, values, strict=True))


@pytest.fixture(scope="session")
def situation():
    return Situation
