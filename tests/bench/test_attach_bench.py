"""bench/attach.py runs to its end beside a real sidecar; what single steps side by side say of a difference."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench import _paired, attach

ROOT = Path(__file__).parents[2]


@pytest.mark.torch
@pytest.mark.timeout(170)
def test_the_quick_run_measures_everything_harms_nothing_and_writes_its_rows(tmp_path):
    file = tmp_path / "attach.json"
    command = [sys.executable, "-W", "ignore", "-m", "bench.attach", "--quick", "--json", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=160, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(file.read_text())
    assert all(set(row) == {"value", "unit", "target", "ok"} for row in rows.values())
    assert rows["run.step() p50, steps of 1 ms"]["value"] > 0
    assert rows["step time ratio, client's thread included, 95 % to"]["target"] == "<= 1.005 x"
    harm = {name: row["value"] for name, row in rows.items() if "errors" in name}
    assert len(harm) == 2 + len(attach.QUICK.troubles)
    assert set(harm.values()) == {0}
    assert [name for name in rows if name not in done.stdout] == []


def test_every_trouble_has_a_condition_and_the_full_run_has_all():
    assert set(attach._CONDITIONS) == set(attach.TROUBLES) == set(attach.FULL.troubles)


def steps(added_ns, rng, pairs=4000, preempted=0.02):
    """Single steps of 10 ms on a machine that drifts by 20 % and takes the core away now and then."""
    found = []
    for n in range(pairs):
        base = 10_000_000 * (1 + 0.2 * n / pairs)
        with_us, without = (base * rng.gauss(1, 0.03) for _ in range(2))
        with_us += added_ns
        if rng.random() < preempted:
            without += rng.uniform(0, 50_000_000)
        if rng.random() < preempted:
            with_us += rng.uniform(0, 50_000_000)
        found.append((with_us, without))
    return found


@pytest.mark.parametrize("added_ns", [0, 40_000, 300_000])
def test_the_time_added_to_single_steps_is_found_within_its_interval(added_ns):
    rng = random.Random(7)
    found = _paired.added_to_steps(steps(added_ns, rng), rng)
    assert found.low - 10_000 <= added_ns <= found.high + 10_000
    assert found.high - found.low < 60_000


def test_thousands_of_pairs_tell_half_a_per_cent_from_nothing():
    rng = random.Random(7)
    nothing, two = (_paired.ratio_of_steps(steps(ns, rng), rng) for ns in (0, 220_000))
    assert nothing.low < 1 < nothing.high < 1.005
    assert 1.015 < two.low < 1.02 < two.high < 1.025


def test_each_pair_has_both_kinds_and_what_they_gave():
    asked = []

    def step(watched):
        asked.append(watched)
        return "with" if watched else "without"

    assert _paired.alternated(20, step, random.Random(1)) == [("with", "without")] * 20
    assert {tuple(asked[n : n + 2]) for n in range(0, 40, 2)} == {(True, False), (False, True)}
    assert len(_paired.alternated(20, step, random.Random(1), seconds=0)) == 1
