"""The demo with all its real parts, with waits of seconds instead of minutes."""

from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path

import pytest
from rich.console import Console

from sidecar.cli.demo.command import play
from sidecar.cli.demo.launch import Options
from sidecar.cli.demo.scenarios import SCENARIOS, Pace, shipped_rules
from sidecar.statedb import StateDB

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]

SHORT = Pace(
    warm_up=3, moment=(0, 1), start_within=60, fire_within=60, decide_within=90, report_within=30, after=1,
    best_warm_up=0.5, best=2,
)  # fmt: skip


def shortened(source: Path, target: Path, *changes: tuple[str, str]) -> Path:
    """A copy in which every pattern was found and replaced."""
    text = source.read_text()
    for pattern, replacement in changes:
        text, count = re.subn(pattern, replacement, text)
        assert count, pattern
    target.write_text(text)
    return target


def test_the_whole_demo_plays_leaves_a_journal_and_no_process_and_says_how_it_ended(tmp_path):
    """Whatever the verdict on a busy machine: what is reported, journalled and held by the trainer agree."""
    scenario = SCENARIOS["data-starvation"]
    rules = shortened(shipped_rules(), tmp_path / "rules.yaml", (r"for: 30s", "for: 2s"))
    responses = shortened(
        scenario.responses_path, tmp_path / "responses.yaml", (r": 60s", ": 3s"), (r"\[10s\]", "[3s]")
    )
    console = Console(file=io.StringIO(), width=200)
    options = Options(seed=1, rules=rules, responses=responses)
    code = play(
        scenario.name, options, json_file=tmp_path / "demo.json", keep=tmp_path / "kept", pace=SHORT, console=console
    )

    shown = console.file.getvalue()
    assert "applied at step" in shown, shown
    report = json.loads((tmp_path / "demo.json").read_text())
    assert report["verdict"] in ("helped", "did not help", "inconclusive")
    assert report["rolled_back"] == (report["verdict"] != "helped")
    assert report["knobs_before"] == {"num_workers": 2, "prefetch_factor": 2}
    if report["rolled_back"]:
        assert report["knobs_after"] == report["knobs_before"]
    else:  # how far it may go depends on the machine's cores
        assert report["knobs_after"]["num_workers"] > 2
    assert (report["samples_lost"], report["samples_repeated"]) == (0, 0)
    assert report["samples_per_s_before"] > 0
    assert code == (0 if "It ended as it should." in shown else 1)

    (kept,) = (tmp_path / "kept").iterdir()
    db = StateDB(kept / "state" / "state.db", read_only=True)
    (closed,) = db.connection.execute("SELECT data FROM experiments WHERE phase = 'closed'").fetchall()
    db.close()
    assert json.loads(closed["data"])["verdict"].replace("_", " ") == report["verdict"]
    assert not any(str(kept) in line for line in commands())


def commands() -> list[str]:
    """The command lines of all processes but this one."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            except OSError:
                continue  # gone since
    return found
