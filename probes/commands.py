"""What the command line does: lists probes, runs a sweep, shows what is known of this machine's GPUs."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

from probes import allreduce, baseline, budget, gates, watch
from probes.catalogue import catalogue, chosen
from probes.explain import Seen, explain
from probes.nvml import Look, look
from probes.runner import DEADLINE_S, Sweep, sweep


def main(arguments: Sequence[str], out: TextIO | None = None) -> int:
    """Exit codes: 0 done, 1 nothing could be measured, 2 wrong usage."""
    given = _parser().parse_args(arguments)
    shown = out if out is not None else sys.stdout
    command = {"list": _list, "run": _run, "baseline": _baseline, "turn": _turn, "allreduce": _allreduce}[given.command]
    return command(given, shown)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m probes", description="What could this GPU deliver right now?")
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", help="every probe: what it measures and costs")
    running = commands.add_parser("run", help="measure now, in a child process")
    running.add_argument("probes", nargs="*", metavar="PROBE", help="names, `light` (default) or `all`")
    running.add_argument("--device", type=int, default=0, help="index among the devices this process may see")
    running.add_argument(
        "--deadline", type=float, default=DEADLINE_S, metavar="SECONDS", help="then the child is ended"
    )
    running.add_argument(
        "--state", type=Path, metavar="DIR", help="where budget and baselines are kept; none: not kept"
    )
    running.add_argument("--explain", action="store_true", help="say what the numbers mean")
    known = commands.add_parser("baseline", help="what was learned about this machine's GPUs")
    known.add_argument("--state", type=Path, required=True, metavar="DIR")
    turn = commands.add_parser("turn", help="one turn of continuous probing, as the sidecar runs it; JSON lines")
    turn.add_argument("--state", type=Path, required=True, metavar="DIR")
    turn.add_argument("--device", type=int, default=0)
    turn.add_argument("--deadline", type=float, default=DEADLINE_S, metavar="SECONDS")
    turn.add_argument("--situation", default="{}", metavar="JSON", help="what the sidecar knows and what is allowed")
    reducing = commands.add_parser("allreduce", help="bus bandwidth by message size; before the trainer, needs torch")
    reducing.add_argument(
        "--ranks", type=_at_least(1), default=2, help="processes to start here; under torchrun that job's"
    )
    reducing.add_argument("--sizes", type=_at_least(4), nargs="+", default=list(allreduce.SIZES), metavar="BYTES")
    reducing.add_argument("--algorithm", choices=("ring", "tree"), help="NCCL_ALGO; NCCL's own choice by default")
    for each in (listing, running, known):
        each.add_argument("--json", action="store_true", help="JSON lines")
    return parser


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(f"a whole number from {least} on, not {text!r}")
        return int(text)

    return number


def _list(given: argparse.Namespace, out: TextIO) -> int:
    for probe in catalogue():
        if given.json:
            line = {
                "probe": probe.name,
                "title": probe.title,
                "accounting": probe.accounting,
                "gpu_seconds": probe.gpu_seconds,
                "light": probe.light,
                "window_only": probe.window_only,
            }
            out.write(json.dumps(line) + "\n")
            continue
        where = "light" if probe.light else "windows" if probe.window_only else ""
        out.write(f"{probe.name:12} {probe.gpu_seconds * 1e3:5.1f} ms  {where:8} {probe.title} ({probe.accounting})\n")
    return 0


def _run(given: argparse.Namespace, out: TextIO) -> int:
    try:
        probes = chosen(given.probes)
    except KeyError as e:
        known = ", ".join(probe.name for probe in catalogue())
        sys.stderr.write(f"probes: there is no probe {e.args[0]!r} (light, all, {known})\n")
        return 2
    try:
        bucket, file = _bucket(given.state)
    except OSError as e:
        sys.stderr.write(f"probes: {_unusable(given.state, e)}\n")
        return 1
    cost = sum(probe.gpu_seconds for probe in probes)
    if bucket is not None and not bucket.allows(cost):
        wait = bucket.wait_s(cost)
        when = f"in {wait:.0f} s" if wait != float("inf") else "never: it is more than the budget holds"
        _say(
            given, out, {"result": "skipped_budget", "reason": f"{cost * 1e3:.1f} ms of GPU time are not there; {when}"}
        )
        return 1
    found = sweep([probe.name for probe in probes], index=given.device, deadline_s=given.deadline)
    unsaved = False
    if bucket is not None and file is not None:
        try:
            budget.save(file, bucket.spent(found.gpu_seconds))
        except OSError as e:
            sys.stderr.write(f"probes: {_unusable(given.state, e)}\n")
            unsaved = True
    _show(given, out, found)
    if given.explain:
        for line in explain(_seen(given.state, found)):
            _say(given, out, {"explain": str(line)})
    return 1 if unsaved or found.refused or not any(outcome.result == "ok" for outcome in found.outcomes) else 0


def _bucket(state: Path | None) -> tuple[budget.Bucket | None, Path | None]:
    if state is None:
        return None, None
    state.mkdir(parents=True, exist_ok=True)
    file = state / "probe_budget.json"
    return budget.load(file).filled(time.time()), file


def _unusable(state: Path, error: OSError) -> str:
    return f"--state {state} cannot be used: {error.strerror or error}; name a folder that may be written to"


def _show(given: argparse.Namespace, out: TextIO, found: Sweep) -> None:
    if found.device:
        _say(given, out, {"device": "fake" if found.fake else found.device.get("name"), **_identity(found)})
    for outcome in found.outcomes:
        for reading in outcome.readings:
            _say(given, out, {"probe": outcome.probe, **reading, **({"device": "fake"} if found.fake else {})})
        if outcome.result != "ok":
            _say(given, out, {"probe": outcome.probe, "result": outcome.result, "reason": outcome.reason})
    if found.refused:
        _say(given, out, {"result": found.refused, "reason": found.reason})


def _identity(found: Sweep) -> dict[str, Any]:
    return {key: found.device[key] for key in ("uuid", "driver", "compute") if key in found.device}


def _say(given: argparse.Namespace, out: TextIO, line: dict[str, Any]) -> None:
    if given.json:
        out.write(json.dumps(line) + "\n")
    elif "metric" in line:
        labels = ", ".join(f"{k}={v}" for k, v in line["labels"].items())
        fake = "  (fake device: not a rate)" if line.get("device") == "fake" else ""
        out.write(f"{line['metric']}{{{labels}}} {line['value']:.6g}{fake}\n")
    else:
        out.write("  ".join(f"{key}: {value}" for key, value in line.items()) + "\n")


def _seen(state: Path | None, found: Sweep) -> Seen:
    """What the probes alone can say: this GPU against its own past, kept under the power limit it has."""
    if state is None or found.fake:
        return Seen()
    ratios: dict[str, float | None] = {}
    store = baseline.Store(state / "probe_baselines.json")
    key = watch.key_of(found, _look(str(found.device.get("uuid", ""))), gates.Sharing.EXCLUSIVE)
    for outcome in found.outcomes:
        for reading in outcome.readings:
            compared, _ = baseline.compare(
                store.get(key, baseline.number_of(reading)),
                float(reading["value"]),
                higher_is_better=baseline.higher_is_better(reading["metric"]),
            )
            ratios.setdefault(outcome.probe, compared.ratio)
    return Seen(gemm_baseline=ratios.get("tensor"), memory_baseline=ratios.get("memory"))


def _look(uuid: str) -> Look:
    return look(uuid, os.environ.get("SPIKEWATCH_NVML_LIBRARY", "libnvidia-ml.so.1"))


def _allreduce(given: argparse.Namespace, out: TextIO) -> int:
    if importlib.util.find_spec("torch") is None:
        sys.stderr.write("probes: allreduce needs torch: pip install torch\n")
        return 1
    return allreduce.main(given.ranks, given.sizes, (given.algorithm or "").capitalize())


def _turn(given: argparse.Namespace, out: TextIO) -> int:
    try:
        situation = json.loads(given.situation)
        asked = watch.settings(situation, given.state)
    except (ValueError, TypeError, AttributeError) as e:
        sys.stderr.write(f"probes: --situation: {e}\n")
        return 2
    known = sweep([], index=given.device, deadline_s=given.deadline)
    if known.refused or not known.device:
        out.write(json.dumps({"gate": "", "result": known.refused or "died", "reason": known.reason}) + "\n")
        return 1

    def sweeper(names: list[str]) -> Sweep:
        return sweep(names, index=given.device, deadline_s=given.deadline)

    try:
        for line in watch.run(asked, str(known.device["uuid"]), sweeper, _look):
            out.write(json.dumps(line) + "\n")
    except OSError as e:  # in a line of its own: the sidecar reads these, not what goes to stderr
        out.write(json.dumps({"result": "no_state", "reason": _unusable(given.state, e)}) + "\n")
        return 1
    return 0


def _baseline(given: argparse.Namespace, out: TextIO) -> int:
    store = baseline.Store(given.state / "probe_baselines.json")
    rows = list(store.rows())
    for key, number, learned in rows:
        median = learned.median if learned.samples else 0.0
        line = {"key": key, "number": number, "samples": len(learned.samples), "median": median, "ready": learned.ready}
        out.write(
            (json.dumps(line) if given.json else f"{number}  {median:.6g}  {len(learned.samples)} samples") + os.linesep
        )
    if not rows and not given.json:
        out.write(f"nothing learned yet: {baseline.LEAST_SAMPLES} clean samples are needed\n")
    return 0
