"""Batches go to pinned memory, or no longer do, in the middle of a pass. Only the device is absent, torch pins."""

import types

import pytest

import spikewatch
from spikewatch.refusal import Refused

pytestmark = pytest.mark.torch


class Batch:
    """A batch of a type of its own, which torch pins by this method. Its tensors would need the device."""

    def __init__(self, items):
        self.items, self.pinned = items, False

    def pin_memory(self):
        self.pinned = True
        return self


@pytest.fixture
def accelerator(monkeypatch):
    """What torch's loader asks of a device while it pins, answered as by a machine that has one."""
    import torch

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_: types.SimpleNamespace(type="cuda"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda index: None)


def through(run, changes):
    """(items, whether pinned) of each batch of a pass."""
    told = []
    for number, batch in enumerate(run.loader):
        told.append((batch.items, batch.pinned))
        run.step()
        if number in changes:
            run._parts.knobs.check(changes[number])
            run._parts.knobs.change(changes[number])
    return told


def make_loader(indices, workers, pin=False, persistent=False):
    from torch.utils.data import DataLoader

    return DataLoader(
        indices(96), 4, num_workers=workers, pin_memory=pin, collate_fn=Batch, persistent_workers=persistent
    )


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("pin", [False, True])
def test_batches_are_pinned_from_soon_after_the_change_on_and_none_is_lost(
    pin, persistent, indices, accelerator, no_children_left
):
    run = spikewatch.attach(loader=make_loader(indices, 2, pin, persistent))
    changes = {5: {"pin_memory": not pin}, 12: {"pin_memory": pin}, 13: {"num_workers": 1}}
    first = through(run, changes)
    assert [items for items, _ in first] == [list(range(i, i + 4)) for i in range(0, 96, 4)]
    under_way = 4  # two workers, two batches each, in the old way
    expected = [pin] * (6 + under_way) + [not pin] * 7 + [pin] * (24 - 13 - under_way)
    assert [pinned for _, pinned in first] == expected
    run._parts.knobs.change({"pin_memory": not pin})
    assert {pinned for _, pinned in through(run, {})} == {not pin}
    assert run.loader.pin_memory is not pin
    run.close()
    run.loader = None


def test_without_workers_the_very_next_batch_is_pinned(indices, accelerator, no_children_left):
    run = spikewatch.attach(loader=make_loader(indices, 0))
    told = through(run, {5: {"pin_memory": True}, 8: {"pin_memory": False}})
    assert [pinned for _, pinned in told] == [False] * 6 + [True] * 3 + [False] * 15
    run.close()
    run.loader = None


def test_without_an_accelerator_there_is_nothing_to_pin_for(indices, no_children_left):
    run = spikewatch.attach(loader=make_loader(indices, 1))
    assert "accelerator" in run._parts.knobs.unavailable()["pin_memory"]
    with pytest.raises(Refused, match="accelerator"):
        run._parts.knobs.check({"pin_memory": True})
    run.close()
    run.loader = None


@pytest.mark.parametrize("value", [1, "yes", None])
def test_it_is_true_or_false(value, indices, accelerator, no_children_left):
    run = spikewatch.attach(loader=make_loader(indices, 1))
    with pytest.raises(Refused) as refused:
        run._parts.knobs.check({"pin_memory": value})
    assert refused.value.reason == "out_of_bounds"
    run.close()
    run.loader = None
