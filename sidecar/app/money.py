"""Savings taken up after a restart: read back from the journal and the experiments of before."""

from __future__ import annotations

import json

from sidecar.responses.journal import Entry, Journal
from sidecar.responses.savings import Run, Savings

_ENTRIES = (
    "SELECT at_ms, kind, response, change_id, data FROM journal WHERE kind IN ('experiment', 'verdict') ORDER BY id"
)
_RUNS = "SELECT change_id, data FROM experiments WHERE phase = 'closed'"


def recover(savings: Savings, journal: Journal) -> None:
    """Gives `savings` what the journal knows. Raises StateError when it cannot be read."""
    runs: dict[str, Run] = {
        row["change_id"]: tuple(json.loads(row["data"]).get("run_ids", ())) for row in journal.rows(_RUNS)
    }
    entries = [
        Entry(row["at_ms"], row["kind"], "", row["response"], row["change_id"], json.loads(row["data"]))
        for row in journal.rows(_ENTRIES)
    ]
    savings.replay(entries, runs)
