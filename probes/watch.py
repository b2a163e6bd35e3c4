"""One turn of continuous probing: is a sweep allowed now, run it, compare with the baseline, learn, and say all of it.

The sidecar starts `python -m probes turn` once a period and exports the lines; nothing here outlives the turn but two
small files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probes import baseline, budget, gates
from probes.catalogue import catalogue
from probes.device import PTX
from probes.nvml import Look
from probes.runner import Outcome, Sweep

Sweeper = Callable[[list[str]], Sweep]
Looker = Callable[[str], Look]

BUSY_FREE_SHARE = 20  # beside others no more than one so-many-th of what is free is taken


@dataclass(frozen=True, slots=True)
class Turn:
    """What is asked for. `state`: folder of budget and baselines."""

    state: Path
    policy: gates.Policy
    window_open: bool = False
    trainer_started: bool = True
    recent_xid: bool = False
    sharing: gates.Sharing = gates.Sharing.EXCLUSIVE
    per_minute_s: float = budget.PER_MINUTE_S
    step_time_ratio: float | None = None  # steps with the newest turn over steps without; None: nothing to say
    full: bool = False  # every probe the gate lets through, not the light ones only


def run(
    turn: Turn, uuid: str, sweeper: Sweeper, looker: Looker, now_s: float | None = None
) -> Iterator[dict[str, Any]]:
    """The lines of a turn: `gate`, one a reading, one an outcome. Raises OSError when the state cannot be kept."""
    now_s = time.time() if now_s is None else now_s
    seen = looker(uuid)
    verdict = gates.decide(_situation(turn, seen), turn.policy)
    if not verdict.open:
        yield {"gate": "", "result": verdict.reason, "reason": verdict.why}
        if turn.step_time_ratio is not None:
            _judge(turn)
        return
    chosen = [p for p in catalogue() if (turn.full or p.light) and gates.allowed(verdict.gate, p.light, p.window_only)]
    turn.state.mkdir(parents=True, exist_ok=True)
    file = turn.state / "probe_budget.json"
    bucket = budget.load(file, turn.per_minute_s).judged(turn.step_time_ratio).filled(now_s)
    afforded = _afforded(chosen, bucket.tokens_s)
    if not afforded:
        budget.save(file, bucket)
        why = f"{bucket.tokens_s * 1e3:.2f} ms of GPU time are left"
        yield {"gate": verdict.gate, "result": "skipped_budget", "reason": why}
        return
    found = sweeper(afforded)
    budget.save(file, bucket.spent(found.gpu_seconds))
    yield {"gate": verdict.gate, "uuid": found.device.get("uuid", uuid), "fake": found.fake}
    if found.refused:
        yield {"result": found.refused, "reason": found.reason}
    yield from _told(turn, found, seen, verdict.gate)


def _judge(turn: Turn) -> None:
    """The trainer suffered or did not: that is remembered also when nothing runs now."""
    file = turn.state / "probe_budget.json"
    turn.state.mkdir(parents=True, exist_ok=True)
    budget.save(file, budget.load(file, turn.per_minute_s).judged(turn.step_time_ratio))


def _afforded(chosen: list[Any], tokens_s: float) -> list[str]:
    """As many probes, in their order, as the budget pays for."""
    names, left = [], tokens_s
    for probe in chosen:
        if probe.gpu_seconds <= left:
            names.append(probe.name)
            left -= probe.gpu_seconds
    return names


def _situation(turn: Turn, seen: Look) -> gates.Situation:
    return gates.Situation(
        trainer_attached=turn.trainer_started,
        trainer_started=turn.trainer_started,
        window_open=turn.window_open,
        sm_activity=seen.busy,
        free_bytes=seen.free_bytes,
        recent_xid=turn.recent_xid,
        sharing=turn.sharing,
    )


def key_of(found: Sweep, seen: Look, sharing: gates.Sharing) -> baseline.Key:
    """What its numbers may be compared with."""
    device = found.device
    return baseline.Key(
        str(device.get("uuid", "")),
        "mig" if sharing is gates.Sharing.MIG else "",
        str(device.get("driver", "")),
        baseline.ptx_hash(PTX),
        seen.power_limit_w or 0,
        int(device.get("memory_clock_khz", 0)),
    )


def _told(turn: Turn, found: Sweep, seen: Look, gate: str) -> Iterator[dict[str, Any]]:
    store = baseline.Store(turn.state / "probe_baselines.json")
    key = key_of(found, seen, turn.sharing)
    for outcome in found.outcomes:
        yield {"probe": outcome.probe, "result": outcome.result, "gpu_seconds": outcome.gpu_seconds}
        if outcome.result == "ok" and not found.fake:
            yield from _compared(store, key, outcome, _surroundings(found, outcome, seen, gate))
    if not found.fake:
        store.save()


def _compared(
    store: baseline.Store, key: baseline.Key, outcome: Outcome, around: baseline.Surroundings
) -> Iterator[dict[str, Any]]:
    for reading in outcome.readings:
        number = baseline.number_of(reading)
        value = float(reading["value"])
        better = baseline.higher_is_better(reading["metric"])
        compared, learned = baseline.compare(store.get(key, number), value, higher_is_better=better)
        if baseline.clean(around) and compared.verdict in ("learning", "healthy"):
            learned = learned.with_sample(value)
        store.put(key, number, learned)
        line: dict[str, Any] = {"probe": outcome.probe, **reading, "verdict": compared.verdict}
        yield line | ({"baseline_ratio": compared.ratio} if compared.ratio is not None else {})


def _surroundings(found: Sweep, outcome: Outcome, seen: Look, gate: str) -> baseline.Surroundings:
    rated, share = float(found.device.get("peak_memory_bytes_per_second", 0) or 0), None
    for reading in outcome.readings:
        if reading["metric"].endswith("memory_copy_bytes_per_second") and rated:
            share = float(reading["value"]) / rated
    idle = True if gate in ("preflight", "idle") else None if seen.busy is None else seen.busy < 0.05
    limited = None if seen.clocks_limited is None else bool(seen.clocks_limited)
    return baseline.Surroundings(idle, limited, False, share)


def settings(given: Mapping[str, Any], state: Path) -> Turn:
    """A turn from the JSON object the sidecar hands over. Raises ValueError or TypeError for one that is none."""
    policy = gates.Policy(
        beside_busy=bool(given.get("beside_busy", False)),
        under_mps=bool(given.get("under_mps", False)),
        least_free_bytes=int(given.get("least_free_bytes", gates.Policy().least_free_bytes)),
    )
    return Turn(
        state,
        policy,
        window_open=bool(given.get("window_open", False)),
        trainer_started=bool(given.get("trainer_started", True)),
        recent_xid=bool(given.get("recent_xid", False)),
        sharing=gates.Sharing(given.get("sharing", "exclusive")),
        per_minute_s=float(given.get("gpu_seconds_per_minute", budget.PER_MINUTE_S)),
        step_time_ratio=None if (ratio := given.get("step_time_ratio")) is None else float(ratio),
        full=bool(given.get("full", False)),
    )
