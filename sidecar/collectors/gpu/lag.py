"""How far one activity series trails another: the lag at which their correlation peaks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

MIN_SAMPLES = 40  # eight seconds at 200 ms: fewer say nothing
MIN_DEVIATION = 0.02  # an activity that moves by less has no shape to compare
MIN_CORRELATION = 0.5
GAP = 1.5  # a pause longer than so many steps ends the stretch that can be compared


def lag_seconds(
    times: Sequence[float], late: Sequence[float], early: Sequence[float], max_lag_s: float = 2.0
) -> float | None:
    """By how many seconds `late` trails `early`; negative where it leads. Pure.

    `times` are seconds in ascending order, about evenly apart; both series are ratios taken at those times. Only the
    newest stretch without a gap is used. None where it is short, where one of the two hardly moves, or where they do
    not move together (correlation under 0.5 at every lag up to `max_lag_s`). Periodic series correlate again a period
    later: of lags that are nearly as good as the best one, the nearest to zero counts. Finer than a step by a parabola
    through the peak.
    """
    t = np.asarray(times, float)
    if len(t) < MIN_SAMPLES:
        return None
    steps = np.diff(t)
    step = float(np.sort(steps)[len(steps) // 2])  # np.median would load masked arrays, 2 MB
    if step <= 0:
        return None
    breaks = np.flatnonzero((steps > GAP * step) | (steps <= 0))
    start = int(breaks[-1]) + 1 if len(breaks) else 0
    a, b = np.asarray(late, float)[start:], np.asarray(early, float)[start:]
    reach = min(round(max_lag_s / step), len(a) // 3)
    if len(a) < MIN_SAMPLES or reach < 1 or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return None
    if a.std() < MIN_DEVIATION or b.std() < MIN_DEVIATION:
        return None
    lags = np.arange(-reach, reach + 1)
    strength = np.array([_correlation(a, b, int(lag)) for lag in lags])
    best = float(strength.max())
    if best < MIN_CORRELATION:
        return None
    near = min(np.flatnonzero(_peaks(strength) & (strength >= best - 0.02)), key=lambda i: (abs(lags[i]), -strength[i]))
    return float((lags[near] + _vertex(strength, int(near))) * step)


def _correlation(late: npt.NDArray[np.float64], early: npt.NDArray[np.float64], lag: int) -> float:
    """Pearson's r of late[t] and early[t − lag] where both are known."""
    a = late[lag:] if lag >= 0 else late[:lag]
    b = early[: len(early) - lag] if lag >= 0 else early[-lag:]
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / scale if scale > 0 else 0.0


def _peaks(strength: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Where no neighbour is higher."""
    padded = np.concatenate(([-np.inf], strength, [-np.inf]))
    found: npt.NDArray[np.bool_] = (strength >= padded[:-2]) & (strength >= padded[2:])
    return found


def _vertex(strength: npt.NDArray[np.float64], i: int) -> float:
    """Offset, in steps, of the top of the parabola through a peak and its neighbours."""
    if not 0 < i < len(strength) - 1:
        return 0.0
    left, middle, right = strength[i - 1 : i + 2]
    bend = left - 2 * middle + right
    return float(np.clip(0.5 * (left - right) / bend, -0.5, 0.5)) if bend < 0 else 0.0
