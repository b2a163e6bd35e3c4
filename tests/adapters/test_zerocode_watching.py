"""Zero-code attach watches loaders and optimizers, finds the training loader, and gives up at anything odd."""

import importlib
import logging
import threading
from types import SimpleNamespace

import pytest

import spikewatch
from spikewatch import layout
from spikewatch.zerocode_watch import MAX_CANDIDATES, Watcher

pytestmark = pytest.mark.torch


@pytest.fixture
def watcher():
    """A watcher that watches this process, as after an import of torch; undone at the end."""
    from torch.utils.data import DataLoader, dataloader

    optimizers = importlib.import_module("torch.optim.optimizer")  # torch.optim hides it behind another name
    before = DataLoader.__iter__, len(optimizers._global_optimizer_post_hooks)
    made = Watcher()
    made.optimizers_imported(optimizers)
    made.loaders_imported(dataloader)
    yield made
    made.off("the test is over")
    assert (DataLoader.__iter__, len(optimizers._global_optimizer_post_hooks)) == before


@pytest.fixture
def world():
    """A model of one weight, its optimizer and a function that makes loaders of `size` numbers."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    model = torch.nn.Linear(1, 1)
    return SimpleNamespace(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), 0.01),
        loader=lambda size=12: DataLoader(TensorDataset(torch.arange(float(size))[:, None]), batch_size=4),
    )


def train(world, loader, optimizer=None):
    for (batch,) in loader:
        world.model(batch).mean().backward()
        (optimizer or world.optimizer).step()


def fields(run):
    meter = run._parts.meter
    return dict(zip(layout.FIELDS, meter.record(meter.now()), strict=True))


def test_the_first_step_attaches_and_every_step_counts_with_its_samples_and_waits(watcher, world):
    loader = world.loader(size=10)
    assert watcher.run is None
    train(world, loader)
    train(world, loader)
    now = fields(watcher.run)
    assert (now["steps_total"], now["samples_total"], now["epoch"], now["batch_size"]) == (6, 20, 1, 4)
    assert now["step_seconds_total"] > now["data_wait_seconds_total"] > 0
    assert layout.PHASES[int(now["phase"])] == "train"


def test_the_loader_that_fed_the_step_is_the_runs_and_the_others_are_not(watcher, world):
    other, training = world.loader(8), world.loader(40)
    for _ in other:
        pass  # statistics of the data, say
    train(world, training)
    assert fields(watcher.run)["samples_total"] == 40
    assert training._get_iterator.tuner.meter is watcher.run._parts.meter


def test_a_loader_knob_is_changed_amid_an_epoch_and_no_sample_is_lost(watcher, world, order):
    seen, change = [], None
    for _ in range(2):
        for (batch,) in (loader := world.loader(80)) if change is None else loader:
            seen += batch[:, 0].tolist()
            world.model(batch).mean().backward()
            world.optimizer.step()
            if change is None and len(seen) == 40:
                change = order(watcher.run, num_workers=1)
    assert seen == [float(i) for i in range(80)] * 2
    assert watcher.run._parts.ledger.report(change)["state"] == "applied"
    assert loader.num_workers == 1


def test_an_evaluation_between_steps_is_no_training_time(watcher, world):
    loader, evaluation = world.loader(), world.loader()
    train(world, loader)
    for _ in evaluation:
        pass
    assert layout.PHASES[watcher.run._parts.meter.phase] == "eval"
    train(world, loader)
    assert layout.PHASES[watcher.run._parts.meter.phase] == "train"
    assert fields(watcher.run)["samples_total"] == 24


def test_a_second_optimizer_makes_no_second_step(watcher, world):
    import torch

    loader, second = world.loader(), torch.optim.SGD(world.model.parameters(), 0.1)
    train(world, loader)
    train(world, loader, second)
    assert fields(watcher.run)["steps_total"] == 3


def test_a_loader_that_cannot_be_changed_is_trained_with_and_the_reason_is_told(watcher, world):
    import torch
    from torch.utils.data import DataLoader, IterableDataset

    class Numbers(IterableDataset):
        def __iter__(self):
            return iter([(torch.ones(1),)] * 8)

    train(world, DataLoader(Numbers(), batch_size=4))
    assert fields(watcher.run)["steps_total"] == 2
    assert watcher.run._parts.agent._knobs.unavailable()["num_workers"]


def test_a_script_that_attaches_by_itself_is_left_to_it(watcher, world, caplog):
    loader = world.loader()
    with spikewatch.attach(optimizer=world.optimizer, loader=loader) as run:
        for (batch,) in run.loader:
            world.model(batch).mean().backward()
            world.optimizer.step()
            run.step()
        assert fields(run)["steps_total"] == 3
    assert watcher.run is None
    assert watcher.why_off == "the script attaches by itself"


def test_steps_outside_the_main_thread_turn_it_off_and_training_goes_on(watcher, world, caplog):
    loader = world.loader()
    thread = threading.Thread(target=train, args=(world, loader))
    thread.start()
    thread.join()
    assert watcher.why_off == "the optimizer steps outside the main thread"
    assert "attaches to nothing here" in caplog.text


def test_a_script_of_very_many_loaders_turns_it_off(watcher, world):
    loaders = [world.loader() for _ in range(MAX_CANDIDATES + 1)]
    for loader in loaders:
        assert len(list(loader)) == 3
    assert "loaders were opened" in watcher.why_off
    train(world, loaders[0])
    assert watcher.run is None


def test_an_error_of_ours_turns_it_off_without_a_word_to_the_script(watcher, world, monkeypatch, caplog):
    monkeypatch.setattr(watcher, "_attach", lambda **more: 1 / 0)
    loader = world.loader()
    train(world, loader)
    train(world, loader)
    assert watcher.why_off == "division by zero"
    assert [r.levelno for r in caplog.records] == [logging.WARNING]


def test_a_torch_whose_loader_somebody_else_has_replaced_is_left_alone(monkeypatch):
    from torch.utils.data import DataLoader, dataloader

    def theirs(self):
        return iter(())

    monkeypatch.setattr(DataLoader, "__iter__", theirs)
    watcher = Watcher()
    watcher.loaders_imported(dataloader)
    assert DataLoader.__iter__ is theirs
    assert "DataLoader.__iter__ comes from" in watcher.why_off


def test_a_torch_without_such_hooks_is_left_alone():
    watcher = Watcher()
    watcher.optimizers_imported(SimpleNamespace())
    assert "register_optimizer_step_post_hook" in watcher.why_off


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")  # torch's compiler uses it itself
def test_a_compiled_optimizer_step_is_counted_and_computes_the_same(watcher, world):
    import torch

    compiled = torch.compile(world.optimizer.step, backend="eager")
    for (batch,) in world.loader():
        world.model(batch).mean().backward()
        compiled()
    assert fields(watcher.run)["steps_total"] == 3
    assert watcher.why_off == ""
