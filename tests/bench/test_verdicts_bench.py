"""The figures about verdicts rest on simulated noise and on a real recording; both still run."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_recording_is_steps_and_samples_that_only_grow_second_by_second():
    from bench.verdicts import SECONDS, recording

    for name in ("cpu_run", "cpu_run_neighbours"):
        rows = recording(name)
        assert len(rows) > 4 * SECONDS
        assert all(a < b for (a, _, _), (b, _, _) in zip(rows, rows[1:], strict=False))
        assert all(a <= b for (_, a, _), (_, b, _) in zip(rows, rows[1:], strict=False))
        assert rows[-1][1] > rows[0][1]
        assert rows[-1][2] > rows[0][2]


@pytest.mark.timeout(120)
def test_the_quick_bench_prints_a_row_for_each_noise_and_for_each_recording():
    run = subprocess.run(
        [sys.executable, "-m", "bench.verdicts", "--quick"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    names = [line.partition("  ")[0] for line in run.stdout.splitlines()]
    assert names == [
        f"{what}, {noise}"
        for noise in ("rho 0", "rho 0.6", "rho 0.9", "recorded", "recorded beside neighbours")
        for what in ("false helped", "+10 % found")
    ]
