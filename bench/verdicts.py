"""How often a verdict is wrong: simulated training with and without a true gain, at the default windows.

    python -m bench.verdicts [--json FILE] [--quick]

Samples a second for 180 s before and after; noise is a first-order autoregression of rho 0, 0.6 and 0.9 with a
variation of 5 % a second. `false helped`: nothing was changed. `found`: there is a true +10 %. `by` is 5 %.

`recorded`: the same with stretches of a real run on a CPU (`bench/recorded/cpu_run.json`, see `bench.record_run`), two
neighbouring ones with 10 s between them, from anywhere in it; for the true +10 % the second one is multiplied. `beside
neighbours`: a run whose machine other programs shared, so that its speed changed by tens of percent and for minutes;
such a change is no noise, and no statistic of two windows can know that it was not ours.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

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


Rows = list[tuple[int, int, int]]
"""Milliseconds since the start, samples and steps finished by then; a row a second."""


def recording(name: str) -> Rows:
    """A recorded run, without the first ten seconds, in which its workers start."""
    read = json.loads((Path(__file__).parent / "recorded" / f"{name}.json").read_text())
    return [tuple(row) for row in read["rows"]][10:]


def stretch(rows: Rows, first: int, gain: float) -> Window:
    """180 s of the recording from a row on."""
    part = rows[first : first + SECONDS + 1]
    pairs = list(zip(part, part[1:], strict=False))
    rates = [(t, (n - n0) * 1000 / (t - t0) * (1 + gain)) for (t0, n0, _), (t, n, _) in pairs]
    return Window(part[0][0], part[-1][0], rates, (part[-1][2] - part[0][2]) * (1 + gain))


def share_of_recorded(rng: np.random.Generator, runs: int, rows: Rows, gain: float) -> float:
    """As `share_helped`, over stretches of the recording."""
    helped = 0
    for first in rng.integers(0, len(rows) - 2 * SECONDS - 11, runs).tolist():
        before, after = stretch(rows, first, 0.0), stretch(rows, first + SECONDS + 10, gain)
        judgement = judge(before, after, goal=Goal.INCREASE, by=BY, min_steps=20, min_samples=8)
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
    for name, beside in (("cpu_run", "recorded"), ("cpu_run_neighbours", "recorded beside neighbours")):
        run = recording(name)
        told = not args.quick and name == "cpu_run"
        false, found = share_of_recorded(rng, runs, run, 0.0), share_of_recorded(rng, runs, run, GAIN)
        limits = (f"<= {FALSE_LIMIT:.0%}", f">= {POWER_LIMIT:.0%}") if name == "cpu_run" else ("", "")
        rows[f"false helped, {beside}"] = row(100 * false, "%", limits[0], false <= FALSE_LIMIT if told else None)
        rows[f"+10 % found, {beside}"] = row(100 * found, "%", limits[1], found >= POWER_LIMIT if told else None)
    publish(rows, args.json)


if __name__ == "__main__":
    main()
