"""Recordings of runs with nothing wrong in them, variants of them, and what the shipped rules say about each."""

from __future__ import annotations

import lzma
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path

from sidecar.alerting.backtest import Replay, backtest
from sidecar.alerting.loader import load_rules
from sidecar.app.files import shipped_folder
from sidecar.history.openmetrics import OpenMetricsHistory

RECORDED = Path(__file__).parent / "recorded"

Recording = Mapping[str, list[tuple[int, str]]]
"""Series → (seconds since 1970, value as text), oldest first."""


def recorded(name: str, seconds: tuple[int, int] | None = None) -> Recording:
    """Of `bench.record_healthy`; `seconds` from its begin keep a part."""
    found = _whole(name)
    if seconds is None:
        return found
    begin = min(points[0][0] for points in found.values())
    first, last = begin + seconds[0], begin + seconds[1]
    return {s: kept for s, points in found.items() if (kept := [p for p in points if first <= p[0] <= last])}


@cache
def _whole(name: str) -> Recording:
    found: dict[str, list[tuple[int, str]]] = {}
    with lzma.open(RECORDED / f"{name}.om.xz", "rt") as file:
        for line in file:
            if not line.startswith("#"):
                series, value, t = line.rstrip("\n").rsplit(" ", 2)
                found.setdefault(series, []).append((int(t), value))
    return found


# --- variants ---------------------------------------------------------------------------------------------------------


def without_gpu(recording: Recording) -> Recording:
    """A pod that has none."""
    return {s: points for s, points in recording.items() if not s.startswith("spikewatch_gpu_")}


def two_ranks(recording: Recording) -> Recording:
    """A second rank beside the first, a second behind it, and a second GPU."""
    more = {}
    for series, points in recording.items():
        other = series.replace('rank="0"', 'rank="1"').replace("-000000000000", "-000000000001")
        other = other.replace('index="0"', 'index="1"')
        if other != series:
            more[other] = [(t + 1, value) for t, value in points]
    return {**recording, **more}


def serving(recording: Recording) -> Recording:
    """No trainer at all: what is left is the pod and its GPU, half of its memory in use."""
    kept = {
        s: points for s, points in recording.items() if not s.startswith(("spikewatch_trainer_", "spikewatch_offload"))
    }
    return {
        s: [(t, "0.5") for t, _ in points] if s.startswith("spikewatch_gpu_memory_used_ratio") else points
        for s, points in kept.items()
    }


VARIANTS: Mapping[str, Callable[[Recording], Recording]] = {
    "as recorded": lambda recording: recording,
    "without a GPU": without_gpu,
    "two ranks": two_ranks,
    "serving, no trainer": serving,
}


# --- what the rules say -----------------------------------------------------------------------------------------------


def write(recording: Recording, path: Path) -> None:
    """OpenMetrics text, as `spikewatch backtest --data` reads it."""
    with path.open("w") as file:
        for series in sorted(recording, key=lambda s: (s.partition("{")[0], s)):
            file.writelines(f"{series} {value} {t}\n" for t, value in recording[series])
        file.write("# EOF\n")


def rule_files() -> list[Path]:
    """Those that are loaded unless told otherwise."""
    return sorted(shipped_folder().glob("**/*.rules.yaml"))


def replayed(path: Path, step_ms: int = 1000) -> Replay:
    """The shipped rules over a file that `write` wrote."""
    with OpenMetricsHistory(path) as history:
        extent = history.extent()
        assert extent is not None
        return backtest(load_rules(rule_files()).groups, history, *extent, step_ms)


def loud(replay: Replay) -> list[tuple[str, str, str, int]]:
    """(alert, severity, labels, seconds from the begin) of every firing above `info`."""
    found = []
    for firing in replay.firings:
        labels = dict(firing.alert.labels)
        if labels.get("severity") != "info":
            own = ",".join(f"{k}={v}" for k, v in _own(labels.items()))
            found.append(
                (firing.alert.name, labels["severity"], own, (firing.alert.fired_at_ms - replay.start_ms) // 1000)
            )
    return found


def _own(labels: Iterable[tuple[str, str]]) -> Iterable[tuple[str, str]]:
    return ((k, v) for k, v in labels if k not in ("alertname", "severity", "signal", "layer"))
