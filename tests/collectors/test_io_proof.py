"""Long: the read probe against fio, and how fast a backlog of NCCL's log is typed. `make proof` runs them."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.collectors.io import features

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.proof


def measured(bench, tmp_path):
    file = tmp_path / "rows.json"
    done = subprocess.run(
        [sys.executable, "-m", f"bench.{bench}", "--json", str(file)],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(file.read_text())


@pytest.mark.timeout(900)
def test_the_read_probe_reaches_85_percent_of_fio(tmp_path, record_proof):
    if shutil.which("fio") is None:
        pytest.skip("fio is not installed (Debian: apt-get install fio)")
    if not features.probe().works:
        pytest.skip(f"io_uring may not be used here: {features.probe().reason}")
    rows = measured("io_probe", tmp_path)
    what = "direct random reads of 1 GiB, 128 KiB blocks, depth 32; nine pairs in turns"
    record_proof("io_probe", {"what": what, "rows": rows})
    assert rows["ours over fio's, median of 9 pairs"]["value"] >= 0.85


@pytest.mark.timeout(900)
def test_a_backlog_is_typed_at_50_megabytes_a_second(tmp_path, record_proof):
    rows = measured("nccl_backlog", tmp_path)
    what = "files to events to counters, by CPU time; 60 MB each, median of five"
    record_proof("nccl_backlog", {"what": what, "rows": rows})
    assert {name for name, row in rows.items() if not row["ok"]} == set()
