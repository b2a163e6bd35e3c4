"""What the engine bench measures with: N gauges, N counters and N histograms at one sample a second, and 20 rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

BOUNDS = ("0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "0.5", "1", "2.5", "5", "10", "+Inf")
SECONDS = {"1m": 60, "5m": 300, "1h": 3600}
QUANTILE = "quantile_over_time"

_OVER_TIME = "avg max min sum count stddev last".split()
RULES: dict[str, str] = {
    "instant": "g > 1e9",
    **{f"{name}_over_time": f"{name}_over_time(g[W]) > 1e9" for name in _OVER_TIME},
    QUANTILE: "quantile_over_time(0.99, g[W]) > 1e9",
    "changes": "changes(g[W]) > 1e9",
    "delta": "delta(g[W]) > 1e9",
    "deriv": "deriv(g[W]) > 1e9",
    "predict_linear": "predict_linear(g[W], 600) > 1e9",
    "avg by (avg_over_time)": "avg by (node) (avg_over_time(g[W])) > 1e9",
    "rate": "rate(c_total[W]) > 1e9",
    "increase": "increase(c_total[W]) > 1e9",
    "irate": "irate(c_total[W]) > 1e9",
    "resets": "resets(c_total[W]) > 1e9",
    "sum by (rate) / sum (rate)": "sum by (node) (rate(c_total[W])) / on () group_left () sum(rate(c_total[W])) > 1e9",
    "histogram_quantile": "histogram_quantile(0.99, sum by (le) (rate(b_bucket[W]))) > 1e9",
    "threshold": "max by (node) (g) > 1e9",
}
"""Rule → expression, W standing for the window. No threshold is ever met."""


def rules(window: str) -> dict[str, str]:
    """The rules over one window."""
    return {name: expr.replace("[W]", f"[{window}]") for name, expr in RULES.items()}


@dataclass(frozen=True, slots=True)
class Metric:
    """All series of one metric: their labels, and one row of values a second."""

    name: str
    labels: tuple[dict[str, str], ...]
    values: np.ndarray  # [second, series]


def metrics(n: int, seconds: int, seed: int = 1) -> Iterator[Metric]:
    """14 N series: gauges around 60, counters that grow by 50 a second, histograms of 3 observations a bucket."""
    rng = np.random.default_rng(seed)
    who = [
        {"job": "train", "instance": f"node-{i // 8}:9100", "node": f"node-{i // 8}", "gpu": str(i % 8)}
        for i in range(n)
    ]
    wave = 60 + 20 * np.sin(np.arange(seconds)[:, None] / 600 + np.arange(n))
    yield Metric("g", tuple(who), np.round(wave + rng.normal(0, 3, (seconds, n)), 3))
    yield Metric("c_total", tuple(who), np.cumsum(rng.poisson(50, (seconds, n)), axis=0).astype(np.float64))
    counts = np.cumsum(np.cumsum(rng.poisson(3.0, (seconds, n, len(BOUNDS))), axis=0), axis=2)
    labels = tuple({**each, "le": bound} for each in who for bound in BOUNDS)
    yield Metric("b_bucket", labels, counts.reshape(seconds, n * len(BOUNDS)).astype(np.float64))
