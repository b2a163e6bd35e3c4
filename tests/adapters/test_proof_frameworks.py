"""Every knob under every framework changes the run, and each check notices when it does not."""

import importlib
import json
import os
import socket
import subprocess
import sys
import time
import warnings
from importlib.metadata import version
from pathlib import Path

import pytest

LOADER = ("num_workers", "prefetch_factor")
PIECES = ("micro_batch_size", "accumulation_steps")
NUMERICS = ("lr_factor", "loss_scale", "loss_scale_growth_interval", "precision")
STORMS = ("overflow storm, ended by precision", "overflow storm, ended by loss_scale")
CELLS = {
    "huggingface": (*LOADER, *PIECES, *NUMERICS, *STORMS),
    "lightning": (*LOADER, *PIECES, *NUMERICS, *STORMS),
    "accelerate": (*LOADER, *NUMERICS, *STORMS),
}
RANKS = ("huggingface", "lightning", "accelerate", "fsdp2")
ALL = {name: (*CELLS.get(name, ()), "two ranks") for name in RANKS}
ALL["huggingface"] += ("gradient_checkpointing", "labels of unequal length")
ALL["accelerate"] += ("gradient_checkpointing",)
ALL |= {"deepspeed": ("observed, stage 3",), "trl": ("lr_factor",)}  # a record without them would be less than the last

pytestmark = [
    pytest.mark.proof,
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler.step"),  # the first step of a storm is skipped
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated"),
]


@pytest.fixture(scope="module")
def results(record_proof):
    """Collects what was found; written down once all of it is there."""
    found = {}
    yield found
    cells = [found.get(name, {}).get(cell) for name, cells in ALL.items() for cell in cells]
    if all(cells):
        what = "A tiny training under each framework: each knob changes the run, and the check fails without its effect"
        names = ("torch", "transformers", "accelerate", "lightning", "deepspeed", "trl")
        versions = {name: version(name) for name in names}
        record_proof("frameworks", {"what": what, "versions": versions, "frameworks": found})


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


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    """Gives the training of a real, tiny language model of transformers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tiny_language_model import train

    return lambda *orders, **more: train(tmp_path_factory.mktemp("lm"), *orders, **more)


def weights_apart(one, other):
    return max(float((a - b).abs().max()) for a, b in zip(one.weights, other.weights, strict=True))


def test_gradient_checkpointing_computes_the_layers_twice_and_the_same(language_model, results):
    orders = {2: {"gradient_checkpointing": True}, 4: {"gradient_checkpointing": False}}
    plain, changed = language_model(attached=False), language_model(orders)
    assert plain.ran == [2] * 6
    assert changed.ran == [2, 2, 4, 4, 2, 2]
    assert weights_apart(plain, changed) == 0.0
    assert language_model(orders, neutral=True).ran == plain.ran
    record = {"changes_the_run": True, "noticed_when_taken_out": True, "weights_bit_identical": True}
    results.setdefault("huggingface", {})["gradient_checkpointing"] = record


def test_gradient_checkpointing_under_accelerate(language_model, results):
    from tiny_language_model import train_accelerated

    orders = {2: {"gradient_checkpointing": True}, 4: {"gradient_checkpointing": False}}
    plain, changed = train_accelerated(attached=False), train_accelerated(orders)
    assert plain.ran == [1] * 6
    assert changed.ran == [1, 1, 2, 2, 1, 1]
    assert weights_apart(plain, changed) == 0.0
    assert train_accelerated(orders, neutral=True).ran == plain.ran
    record = {"changes_the_run": True, "noticed_when_taken_out": True, "weights_bit_identical": True}
    results.setdefault("accelerate", {})["gradient_checkpointing"] = record


def test_smaller_batches_weigh_labels_of_unequal_length_as_the_trainer_does(language_model, results):
    plain, changed = language_model(attached=False), language_model({2: {"micro_batch_size": 1}})
    assert changed.sizes == [4] * 4 + [1] * 32
    apart = weights_apart(plain, changed)
    assert apart < 1e-7
    assert set(language_model({2: {"micro_batch_size": 1}}, neutral=True).sizes) == {4}
    results.setdefault("huggingface", {})["labels of unequal length"] = {"largest_difference_of_a_weight": apart}


@pytest.mark.parametrize("name", RANKS)
def test_two_ranks_change_at_the_same_step_and_stay_equal(name, clean_environment, tmp_path, results):
    script = Path(__file__).parent / "rank_under_a_framework.py"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launcher, str(script), name],
        env={**clean_environment, "SPIKEWATCH_SOCKET": str(tmp_path / "nobody.sock")},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    ranks = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"rank"')]
    assert sorted(rank.pop("rank") for rank in ranks) == [0, 1], done.stderr[-3000:]
    assert ranks[0] == ranks[1]
    found = ranks[0]
    assert found["state"] == "applied"
    assert found["weights_equal_on_all_ranks"]
    assert found["samples_as_without_us"]
    assert found["parallelism"] == ("fsdp2" if name == "fsdp2" else "ddp")
    splits = name in ("huggingface", "lightning")
    assert found["weights_close_to_without_us"] == splits
    assert found["forward_sizes"] == ([2, 4] if splits else [4])
    results.setdefault(name, {})["two ranks"] = found


def test_every_knob_under_every_stage_of_deepspeed(clean_environment, tmp_path, results):
    if importlib.util.find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed: pip install -e '.[deepspeed]'")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    alone["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # it compiles with ninja
    alone |= {"DS_ACCELERATOR": "cpu", "SPIKEWATCH_SOCKET": str(tmp_path / "nobody.sock")}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "tiny_deepspeed.py")],
        env={**clean_environment, **alone},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    said = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert said, done.stderr[-3000:]
    found = json.loads(said[0].removeprefix("FOUND "))
    assert all(cell.get("noticed_when_taken_out", True) for cell in found.values())
    assert {found[f"observed, stage {stage}"]["parallelism"] for stage in range(1, 4)} == {"zero1", "zero2", "zero3"}
    results["deepspeed"] = found


def test_supervised_fine_tuning_with_trl(clean_environment, tmp_path, results):
    if importlib.util.find_spec("trl") is None:
        pytest.skip("trl is not installed: pip install trl")
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "tiny_trl.py")],
        env={**clean_environment, "SPIKEWATCH_SOCKET": str(tmp_path / "nobody.sock"), "DS_ACCELERATOR": "cpu"},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    said = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert said, done.stderr[-3000:]
    found = json.loads(said[0].removeprefix("FOUND "))
    assert found["observed, bit-identical"]
    for knob in ("micro_batch_size", "lr_factor"):
        assert found[knob]["changes_the_run"]
        assert found[knob]["noticed_when_taken_out"]
    assert found["micro_batch_size"]["largest_difference_of_a_weight"] < 1e-6
    results["trl"] = found
