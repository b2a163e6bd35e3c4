"""Every knob under every framework changes the run, and each check notices when it does not."""

import importlib
import json
import subprocess
import time
import warnings
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "docs" / "proof" / "frameworks.json"

LOADER = ("num_workers", "prefetch_factor")
PIECES = ("micro_batch_size", "accumulation_steps")
NUMERICS = ("lr_factor", "loss_scale", "loss_scale_growth_interval", "precision")
STORMS = ("overflow storm, ended by precision", "overflow storm, ended by loss_scale")
CELLS = {
    "huggingface": (*LOADER, *PIECES, *NUMERICS, *STORMS),
    "lightning": (*LOADER, *PIECES, *NUMERICS, *STORMS),
    "accelerate": (*LOADER, *NUMERICS, *STORMS),
}
PACKAGES = {"huggingface": "transformers", "lightning": "lightning", "accelerate": "accelerate"}

pytestmark = [
    pytest.mark.proof,
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler.step"),  # the first step of a storm is skipped
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated"),
]


@pytest.fixture(scope="module")
def results():
    """Collects what was found; written down once all of it is there."""
    found = {}
    yield found
    if all(knob in found.get(name, {}) for name, knobs in CELLS.items() for knob in knobs):
        report = {
            "what": "A tiny training under each framework: the knob changes the run, and with the change taken out the "
            "same check fails",
            "commit": said("git", "rev-parse", "HEAD"),
            "changes_on_top": bool(said("git", "status", "--porcelain", "--", "spikewatch")),
            "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "versions": {name: version(name) for name in ("torch", *PACKAGES.values())},
            "frameworks": found,
        }
        RESULT.write_text(json.dumps(report, indent=1) + "\n")


def said(*command):
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    """Gives a framework's tiny training by its name."""

    def of(name):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the framework's own imports
            module = importlib.import_module(f"tiny_{name}")
        return lambda plan: module.train(plan, tmp_path_factory.mktemp(name))

    return of


@pytest.mark.parametrize(("name", "knob"), [(name, knob) for name, knobs in CELLS.items() for knob in knobs])
def test_a_knob_changes_the_run_and_without_its_effect_the_check_fails(name, knob, training, results):
    from matrix import CHECKS

    began = time.monotonic()
    CHECKS[knob](training(name))
    with pytest.raises(AssertionError):
        CHECKS[knob](training(name), neutral=True)
    seconds = round(time.monotonic() - began, 1)
    results.setdefault(name, {})[knob] = {"changes_the_run": True, "noticed_when_taken_out": True, "seconds": seconds}


@pytest.mark.parametrize("name", CELLS)
def test_observing_changes_nothing(name, training, results):
    from matrix import observed

    watched, plain = observed(training(name), workers=1)
    results.setdefault(name, {})["observed"] = {"bit_identical": True, "steps": len(plain.per_step), **watched.about}
