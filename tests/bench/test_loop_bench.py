"""bench/loop.py runs to its end and writes what `python -m bench` reads; what a pair of blocks says of a difference."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench import _paired, _rows

ROOT = Path(__file__).parents[2]


@pytest.mark.torch
@pytest.mark.timeout(120)
def test_the_quick_run_measures_everything_and_writes_its_rows(tmp_path):
    file = tmp_path / "loop.json"
    command = [sys.executable, "-m", "bench.loop", "--quick", "--json", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(file.read_text())
    assert all(set(row) == {"value", "unit", "target", "ok"} for row in rows.values())
    assert all(isinstance(row["value"], float) for row in rows.values())
    assert rows["run.step() p50, no loader workers"]["value"] > 0
    assert rows["sidecar RSS"]["value"] > 20
    assert 0 < rows["sidecar CPU"]["value"] < 100
    assert 0 < rows["condition to firing, slowest"]["value"] < 20
    assert [name for name in rows if name not in done.stdout] == []


def blocks(added_ns, rng, pairs=200, drift=50_000):
    """Pairs of blocks of 1 ms steps on a machine whose speed drifts far more than the difference looked for."""
    found = []
    for n in range(pairs):
        base = 1_000_000 + drift * n // pairs
        plain = [base + rng.randrange(20_000) for _ in range(15)]
        found.append(([x + added_ns + rng.randrange(-1000, 1000) for x in plain], plain))
    return found


@pytest.mark.parametrize("added_ns", [0, 5_000, 30_000])
def test_the_time_added_to_a_step_is_found_within_its_interval(added_ns):
    rng = random.Random(1)
    found = _paired.added(blocks(added_ns, rng), rng)
    assert found.low - 500 <= added_ns <= found.high + 500
    assert found.value == pytest.approx(added_ns, abs=2_000)


def test_a_step_that_was_preempted_does_not_count_as_ours():
    rng = random.Random(1)
    pairs = blocks(0, rng)
    pairs[3][0][0] += 400_000_000  # another program took the core for 0.4 s
    assert _paired.ratio(pairs, rng).high < 1.005


def test_a_slowdown_of_two_per_cent_is_seen():
    rng = random.Random(1)
    found = _paired.ratio(blocks(20_000, rng), rng)
    assert 1.015 < found.low < found.value < found.high < 1.025


@pytest.mark.parametrize(("limit", "verdict"), [(0.9, False), (1.1, None), (1.3, True)])
def test_a_target_within_the_interval_is_neither_met_nor_missed(limit, verdict):
    assert _paired.Estimate(1.1, 1.0, 1.2).at_most(limit) is verdict


def test_each_pair_has_both_kinds_in_an_order_that_varies():
    asked = []

    def run(attached):
        asked.append(attached)
        return [2] if attached else [1]

    assert _paired.interleaved(20, run, random.Random(1)) == [([2], [1])] * 20
    assert {tuple(asked[n : n + 2]) for n in range(0, 40, 2)} == {(True, False), (False, True)}


def test_a_row_says_whether_its_target_was_met():
    assert _rows.below(3.0, "s", 5.0) == {"value": 3.0, "unit": "s", "target": "< 5 s", "ok": True}
    assert _rows.below(5.0, "s", 5.0)["ok"] is False
    assert _rows.row(1.0, "s") == {"value": 1.0, "unit": "s", "target": None, "ok": None}
