"""How often a verdict is wrong: simulated training with and without a true gain, at the default windows.

    python -m bench.verdicts [--json FILE] [--quick]

Samples a second for 180 s before and after; noise is a first-order autoregression of rho 0, 0.6 and 0.9 with a
variation of 5 % a second. `false helped`: nothing was changed. `found`: there is a true +10 %. `by` is 5 %.
"""

from __future__ import annotations

import math

import numpy as np

from bench._rows import Row, arguments, publish, row
from sidecar.responses.statistics import Goal, Verdict, Window, judge

SECONDS, VARIATION, GAIN, BY = 180, 0.05, 0.10, 0.05
FALSE_LIMIT, POWER_LIMIT = 0.02, 0.90


def noise(rng: np.random.Generator, runs: int, rho: float) -> np.ndarray:
    """Rows of relative throughput around 1; the first 200 seconds are dropped, so that each row starts stationary."""
    shocks = rng.standard_normal((SECONDS + 200, runs)) * math.sqrt(1 - rho * rho)
    x, rows = rng.standard_normal(runs), []
    for shock in shocks:
        x = rho * x + shock
        rows.append(x)
    return 1 + VARIATION * np.array(rows[-SECONDS:]).T


def share_helped(rng: np.random.Generator, runs: int, rho: float, gain: float) -> float:
    """The share of experiments that are called `helped`."""
    before, after = noise(rng, runs, rho), noise(rng, runs, rho) * (1 + gain)
    helped = 0
    for b, a in zip(before, after, strict=True):
        windows = [Window(0, SECONDS * 1000, [((i + 1) * 1000, float(v)) for i, v in enumerate(x)]) for x in (b, a)]
        judgement = judge(*windows, goal=Goal.INCREASE, by=BY, min_steps=20, min_samples=8)
        helped += judgement.verdict is Verdict.HELPED
    return helped / runs


def main() -> None:
    """Prints the table."""
    args = arguments(__doc__ or "")
    runs = 100 if args.quick else 1000
    rng = np.random.default_rng(1)
    rows: dict[str, Row] = {}
    for rho in (0.0, 0.6, 0.9):
        false = share_helped(rng, runs, rho, 0.0)
        rows[f"false helped, rho {rho:g}"] = row(
            100 * false, "%", f"<= {FALSE_LIMIT:.0%}", None if args.quick else false <= FALSE_LIMIT
        )
        power = share_helped(rng, runs, rho, GAIN)
        rows[f"+10 % found, rho {rho:g}"] = row(
            100 * power, "%", f">= {POWER_LIMIT:.0%}", None if args.quick else power >= POWER_LIMIT
        )
    publish(rows, args.json)


if __name__ == "__main__":
    main()
