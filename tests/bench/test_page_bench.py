"""bench/page.py in small: a busy pod in a process of its own is scraped and measured."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(120)
def test_the_quick_run_measures_processor_memory_and_page(tmp_path):
    file = tmp_path / "page.json"
    command = [sys.executable, "-m", "bench.page", "--quick", "--json", str(file)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(file.read_text())
    assert all(set(row) == {"value", "unit", "target", "ok"} for row in rows.values())
    assert rows["/metrics, size"]["value"] > 1400 * 40 / 1000, "every series is on the page"
    assert 0 < rows["/metrics, p50"]["value"] <= rows["/metrics, p99"]["value"]
    assert 0 < rows["memory over the idle process"]["value"] < 200
