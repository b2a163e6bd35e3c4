"""The read probe against fio: direct random reads of the same file, the same block, depth and time, turn by turn.

    python -m bench.io_probe [--json FILE] [--quick]

Nine pairs; each is our engine and fio's io_uring one right after the other, in turns of who is first, because a shared
disk drifts by tens of percent within a minute. What counts is the median of the nine ratios. Without fio, or where
io_uring is not allowed, the rows say so and there is no verdict.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path

from bench._rows import Row, arguments, publish, row
from sidecar.collectors.io import features
from sidecar.collectors.io.readprobe import EXTENT, Plan, measure

TARGET = 0.85
BLOCK, DEPTH, SIZE, SECONDS, PAIRS = 128 << 10, 32, 1 << 30, 2.0, 9


def ours(path: Path, seconds: float, engine: str, seed: int) -> float:
    """Bytes a second."""
    plan = Plan((str(path),), BLOCK, DEPTH, 1 << 50, seconds, engine, seed)
    return measure(plan).bytes_per_second


def fio(path: Path, seconds: float, seed: int) -> float:
    """Bytes a second, by fio's own account."""
    command = [
        "fio",
        "--name=probe",
        f"--filename={path}",
        f"--size={path.stat().st_size}",
        f"--rw=randread:{EXTENT // BLOCK}",  # as we do: a random place, then blocks in a row
        f"--bs={BLOCK}",
        f"--iodepth={DEPTH}",
        "--direct=1",
        "--ioengine=io_uring",
        "--time_based",
        f"--runtime={round(seconds * 1000)}ms",
        f"--randseed={seed + 1}",
        "--output-format=json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=seconds + 60)
    return float(json.loads(done.stdout)["jobs"][0]["read"]["bw_bytes"])


def pairs(path: Path, count: int, seconds: float) -> list[tuple[float, float]]:
    """(ours, fio's) of each pair."""
    found = []
    for n in range(count):
        if n % 2:
            theirs, mine = fio(path, seconds, n), ours(path, seconds, "io_uring", n)
        else:
            mine, theirs = ours(path, seconds, "io_uring", n), fio(path, seconds, n)
        found.append((mine, theirs))
    return found


def main() -> None:
    """Prints the table."""
    args = arguments(__doc__ or "")
    count, seconds, size = (3, 0.3, 64 << 20) if args.quick else (PAIRS, SECONDS, SIZE)
    rows: dict[str, Row] = {}
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", ".")) as folder:
        path = Path(folder) / "data.bin"
        with path.open("wb") as file:
            for _ in range(size >> 20):
                file.write(os.urandom(1 << 20))
            os.fsync(file.fileno())
        rows["preadv, threads"] = row(ours(path, seconds, "preadv", 0) / 1e9, "GB/s")
        if not features.probe().works:
            rows["io_uring"] = row(features.probe().reason, "not allowed")
        elif shutil.which("fio") is None:
            rows["io_uring"] = row(ours(path, seconds, "io_uring", 0) / 1e9, "GB/s")
            rows["fio"] = row("fio is not installed", "")
        else:
            found = pairs(path, count, seconds)
            ratio = statistics.median(mine / theirs for mine, theirs in found)
            rows["io_uring"] = row(statistics.median(mine for mine, _ in found) / 1e9, "GB/s")
            rows["fio"] = row(statistics.median(theirs for _, theirs in found) / 1e9, "GB/s")
            verdict = None if args.quick else ratio >= TARGET
            rows[f"ours over fio's, median of {count} pairs"] = row(ratio, "", f">= {TARGET}", verdict)
    publish(rows, args.json)


if __name__ == "__main__":
    main()
