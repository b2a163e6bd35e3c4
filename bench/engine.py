"""What a rule costs: our engine, Prometheus, and vmalert with VictoriaMetrics, the same 20 rules over the same data.

    python -m bench.engine [--json FILE] [--quick]

N gauges, N counters and N histograms of 12 buckets at one sample a second. Ours is the rule manager in this process,
incremental; a peer's time is what it reports of its own rule evaluations. Peers come from $SPIKEWATCH_PEERS; without
them only ours is measured. An hour at N = 1000 is 55 million samples for a peer to take in: it takes minutes.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench import _engine_ours as ours
from bench import _engine_peers as peers
from bench import _rows
from bench._engine_load import QUANTILE, SECONDS
from bench._rows import Row, below, row


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured. `every_s` is the peers' evaluation interval, by N."""

    windows: dict[int, tuple[str, ...]]
    ticks: int
    replays: int
    rounds: int
    every_s: dict[int, int]


ALL = ("1m", "5m", "1h")
FULL = Size({1: ALL, 10: ALL, 100: ALL, 1000: ALL}, 150, 3, 6, {1: 1, 10: 1, 100: 3, 1000: 20})
QUICK = Size({10: ("1m",)}, 15, 2, 2, {10: 1})

FASTER = {("5m", False): 10.0, ("1h", False): 100.0, ("5m", True): 5.0, ("1h", True): 20.0}
"""How many times faster than Prometheus at N = 100, by window and whether it is a quantile."""


def measure(n: int, size: Size) -> dict[str, Row]:
    """Everything about one N."""
    windows = size.windows[n]
    rows: dict[str, Row] = {}
    found = {window: _ours(rows, n, window, size) for window in windows}
    if len(windows) > 1:
        first, last = (sum(_all_but_quantiles(found[w]).values()) for w in (windows[0], windows[-1]))
        rows[f"N={n} ours, {windows[-1]} / {windows[0]}"] = below(last / first, "x", 1.3)
    history_s = max(SECONDS[window] for window in windows) + 120
    for name, program, run in (
        ("Prometheus", "prometheus", peers.prometheus),
        ("VictoriaMetrics", "victoria-metrics", peers.victoriametrics),
    ):
        if peers.binary(program) is None:
            print(f"{name}: not measured, $SPIKEWATCH_PEERS has no {program}", flush=True)
            continue
        with tempfile.TemporaryDirectory(prefix="spikewatch-bench-") as folder:
            peer = run(Path(folder), n, windows, history_s, size.rounds, size.every_s[n])
        for window in windows:
            _beside(rows, n, window, name, found[window], peer)
        grown = peer.resident_bytes - peer.idle_bytes
        rows[f"N={n} {name}, memory per series, {windows[-1]} and more"] = row(grown / (14 * n), "B")
    return rows


def _ours(rows: dict[str, Row], n: int, window: str, size: Size) -> dict[str, float]:
    replays = [ours.replay(n, window, SECONDS[window] + 20, size.ticks) for _ in range(size.replays)]
    found = ours.medians(replays)
    rows[f"N={n} {window} ours, mean rule"] = row(sum(found.values()) / len(found), "us")
    rows[f"N={n} {window} ours, {QUANTILE}"] = row(found[QUANTILE], "us")
    limit = {100: 1.0, 1000: 5.0}.get(n)
    worst = ours.worst_tick_ms(replays)
    rows[f"N={n} {window} ours, worst tick"] = row(worst, "ms") if limit is None else below(worst, "ms", limit)
    rows[f"N={n} {window} ours, memory per series"] = row(replays[0].bytes_per_series, "B")
    cpu = min(each.cpu_s / len(each.ticks) for each in replays) * 100
    wanted = n == 100 and window == "5m"
    rows[f"N={n} {window} ours, of a core at one tick a second"] = below(cpu, "%", 1.0) if wanted else row(cpu, "%")
    return found


def _all_but_quantiles(found: dict[str, float]) -> dict[str, float]:
    return {name: micros for name, micros in found.items() if name != QUANTILE}


def _beside(rows: dict[str, Row], n: int, window: str, name: str, found: dict[str, float], peer: peers.Peer) -> None:
    theirs = {rule: peer.micros[rule, window] for rule in found}
    rows[f"N={n} {window} {name}, mean rule"] = row(sum(theirs.values()) / len(theirs), "us")
    both = _all_but_quantiles(found)
    ratio = sum(theirs[rule] for rule in both) / sum(both.values())
    quantile = theirs[QUANTILE] / found[QUANTILE]
    rows[f"N={n} {window} {name} / ours, all rules"] = _at_least(ratio, n, name, FASTER.get((window, False)))
    rows[f"N={n} {window} {name} / ours, {QUANTILE}"] = _at_least(quantile, n, name, FASTER.get((window, True)))
    slowest = min(found, key=lambda rule: theirs[rule] / found[rule])
    # never slower from N = 10 on, at most twice as slow for a single series
    least = (1.0 if n >= 10 else 0.5) if name == "Prometheus" else None
    value = theirs[slowest] / found[slowest]
    title = f"N={n} {window} {name} / ours, worst rule: {slowest}"
    rows[title] = row(value, "x") if least is None else row(value, "x", f"> {least:g} x", value > least)


def _at_least(ratio: float, n: int, name: str, least: float | None) -> Row:
    if n != 100 or name != "Prometheus" or least is None:
        return row(ratio, "x")
    return row(ratio, "x", f"> {least:g} x", ratio > least)


def main() -> int:
    """Returns 0 whether or not targets are met: `python -m bench` judges."""
    given = _rows.arguments(__doc__ or "")
    size = QUICK if given.quick else FULL
    rows: dict[str, Row] = {}
    for n in size.windows:
        rows.update(measure(n, size))
    _rows.publish(rows, given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
