"""`python -m bench [NAME…]`: runs every benchmark, each in its own process, and prints one table."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent


def main(names: list[str]) -> int:
    """Returns 1 when a benchmark failed or missed a target."""
    scripts = sorted(p for p in HERE.glob("*.py") if not p.name.startswith("_"))
    if names:
        scripts = [p for p in scripts if p.stem in names]
    rows: list[tuple[str, str, str, str]] = []
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        for script in scripts:
            out = Path(folder) / f"{script.stem}.json"
            print(f"+ python -m bench.{script.stem} --json {out.name}", flush=True)
            code = subprocess.run(
                [sys.executable, "-m", f"bench.{script.stem}", "--json", str(out)], check=False
            ).returncode
            if code or not out.exists():
                rows.append((script.stem, f"exit code {code}", "", "FAILED"))
                bad += 1
                continue
            for name, row in json.loads(out.read_text()).items():
                verdict = {True: "ok", False: "MISSED", None: ""}[row["ok"]]
                bad += row["ok"] is False
                value = f"{row['value']:.4g}" if isinstance(row["value"], int | float) else str(row["value"])
                rows.append((f"{script.stem}: {name}", f"{value} {row['unit']}", str(row["target"] or ""), verdict))
    widths = [max(len(r[i]) for r in [*rows, ("benchmark", "measured", "target", "")]) for i in range(4)]
    for row in [("benchmark", "measured", "target", ""), *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
