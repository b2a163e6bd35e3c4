"""The page of frameworks says what the adapters and the record of the proof say."""

import json
import re
from pathlib import Path

from spikewatch import zerocode
from spikewatch.adapters import accelerate, deepspeed

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "frameworks.md").read_text()
COLUMNS = {"huggingface": 3, "lightning": 4, "accelerate": 5, "deepspeed": 6}


def cells():
    """(knob, framework) → what the table says."""
    _, _, table = PAGE.partition("## What can be changed")
    found = {}
    for row in re.findall(r"^\| (`.+?) \|(.+)\|$", table, re.M):
        for knob in re.findall(r"`(\w+)`", row[0]):
            for framework, column in COLUMNS.items():
                found[knob, framework] = row[1].split("|")[column - 1].strip()
    return found


def test_what_the_table_calls_yes_is_what_the_proof_has_shown():
    proof = json.loads((ROOT / "docs" / "proof" / "frameworks.json").read_text())["frameworks"]
    table = cells()
    assert table["micro_batch_size", "huggingface"].startswith("yes")
    for (knob, framework), text in table.items():
        shown = [cell for name, cell in proof[framework].items() if name.partition(",")[0] == knob]
        said = text.startswith(("yes", "models that can", "ZeRO"))
        if said:
            assert shown, (knob, framework)
            assert all(cell["changes_the_run"] and cell["noticed_when_taken_out"] for cell in shown), (knob, framework)
        if not said:
            assert not shown, (knob, framework)


def test_what_an_adapter_has_planned_is_planned_in_the_table():
    table = cells()
    for name, adapter in (("accelerate", accelerate), ("deepspeed", deepspeed)):
        assert {knob for knob in adapter.PLANNED if table[knob, name].startswith("planned")} == set(adapter.PLANNED)


def test_the_switches_of_the_zero_code_attach_are_named():
    assert f"`{zerocode.SWITCH}`" in PAGE
    assert "spikewatch-run --path" in PAGE
