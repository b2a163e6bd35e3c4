"""Runs with nothing wrong in them: the shipped rules say nothing above `info`, at no time, of no variant.

Recorded by `bench.record_healthy`: a training run with PyTorch on the CPU under the whole sidecar, from its start over
compilation, evaluations, checkpoints and epoch turns to a restart from a checkpoint, beside a stand-in for a GPU of
which 92 % of the memory and 90 % of the SMs are busy. Once with steps of 0.16 s, once with steps of 40 s.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from signals_healthy import VARIANTS, loud, recorded, replayed, rule_files, write

from sidecar.alerting.backtest import reads
from sidecar.alerting.loader import load_rules

RUNS = ("healthy", "healthy_40s")


def names(recording):
    return {series.partition("{")[0] for series in recording}


def test_the_recordings_hold_what_rules_about_training_and_gpus_read():
    read = reads(load_rules(rule_files()).groups).metrics
    known = names(recorded("healthy"))
    assert known <= read | {"spikewatch_trainer_steps_total", "spikewatch_trainer_phase", "spikewatch_trainer_epoch"}
    for part in ("data_wait", "prefetch_hits", "step_seconds", "loss_scale", "epoch_gradient_overflows"):
        assert any(part in name for name in known), part
    assert {
        "spikewatch_gpu_sm_active_ratio",
        "spikewatch_gpu_memory_used_ratio",
        "spikewatch_gpu_dram_active_ratio",
    } <= known


@pytest.mark.parametrize("run", RUNS)
def test_a_recording_has_every_phase_epochs_and_a_restart(run):
    recording = recorded(run)
    phases = {series: points for series, points in recording.items() if series.startswith("spikewatch_trainer_phase")}
    seen = {series for series, points in phases.items() if any(value == "1.0" for _, value in points)}
    assert {p for p in ("startup", "compile", "train", "eval", "checkpoint") if any(f'"{p}"' in s for s in seen)} == {
        "startup", "compile", "train", "eval", "checkpoint"
    }  # fmt: skip
    steps = [float(value) for _, value in recording['spikewatch_trainer_steps_total{rank="0"}']]
    assert sum(later < earlier for earlier, later in zip(steps, steps[1:], strict=False)) == 1
    times = [t for points in recording.values() for t, _ in points]
    assert max(times) - min(times) >= 1190


@pytest.mark.parametrize(("run", "seconds"), [("healthy", (595, 650)), ("healthy_40s", (0, 70))])
def test_parts_of_a_healthy_run_fire_nothing_above_info(tmp_path, run, seconds):
    """A restart from a checkpoint, and a begin with slow steps."""
    write(recorded(run, seconds), tmp_path / "run.om")
    replay = replayed(tmp_path / "run.om")
    assert (loud(replay), replay.broken) == ([], ())
    assert replay.evaluations > 500


@pytest.fixture(scope="module")
def kept(record_proof):
    """Rows to record, with what is on record of those that are not replayed this time."""
    file = Path(__file__).parents[2] / "docs" / "proof" / "healthy.json"
    rows = json.loads(file.read_text())["replays"] if file.exists() else {}
    yield rows
    what = "spikewatch backtest of the shipped rules over runs with nothing wrong in them, every second for 20 minutes"
    record_proof("healthy", {"what": what, "replays": rows})


@pytest.mark.proof
@pytest.mark.timeout(900)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("run", RUNS)
def test_a_healthy_run_fires_nothing_above_info(tmp_path, kept, run, variant):
    write(VARIANTS[variant](recorded(run)), tmp_path / "run.om")
    asked = ["backtest", "--data", str(tmp_path / "run.om"), "--step", "1s", "--json", *map(str, rule_files())]
    done = subprocess.run([sys.executable, "-m", "sidecar", *asked], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    kept[f"{run}, {variant}"] = {
        "samples": found["samples"],
        "evaluations": found["evaluations"],
        "alerts": len(found["alerts"]),
        "fired": {a["alert"]: a["severity"] for a in found["alerts"] if a["fired"]},
    }
    assert [a for a in found["alerts"] if a["fired"] and a["severity"] != "info"] == []
    assert not found["broken_rules"]
