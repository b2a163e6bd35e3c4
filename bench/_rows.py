"""Rows of a benchmark's table, in the form `python -m bench` reads."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def row(value: float, unit: str, target: str = "", ok: bool | None = None) -> Row:
    """`ok` None: there is no target, or the measurement was too noisy to say."""
    return {"value": value, "unit": unit, "target": target or None, "ok": ok}


def below(value: float, unit: str, limit: float) -> Row:
    """A value that should be under a limit."""
    return row(value, unit, f"< {limit:g} {unit}", value < limit)


def arguments(text: str) -> argparse.Namespace:
    """The command line every benchmark has: `json` (where to write, or None) and `quick`."""
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--quick", action="store_true", help="few repetitions: shows that it runs, not how fast")
    return parser.parse_args()


def publish(rows: dict[str, Row], file: Path | None) -> None:
    """Prints the rows, and writes them where a file was asked for."""
    width = max(len(name) for name in rows)
    verdicts = {True: "ok", False: "MISSED", None: ""}
    for name, r in rows.items():
        print(f"{name:{width}}  {r['value']:.4g} {r['unit']:8} {r['target'] or '':22} {verdicts[r['ok']]}".rstrip())
    if file is not None:
        file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
