"""The adapters' modules are imported where their frameworks are not."""

import subprocess
import sys
from pathlib import Path

import pytest

import spikewatch

ROOT = Path(spikewatch.__file__).parents[1]
MODULES = sorted(f"spikewatch.adapters.{f.stem}" for f in (ROOT / "spikewatch" / "adapters").glob("*.py"))


def python(code):
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}"],
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_every_adapter_is_imported_by_a_bare_interpreter():
    assert len(MODULES) > 6
    done = python("\n".join(f"import {name}" for name in MODULES if not name.endswith("__init__")))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("adapter", "missing"), [("huggingface", "transformers"), ("lightning", "lightning")])
def test_asking_for_a_callback_without_its_framework_names_what_is_missing(adapter, missing):
    done = python(f"from spikewatch.adapters.{adapter} import SpikewatchCallback")
    assert f"ModuleNotFoundError: No module named '{missing}'" in done.stderr
