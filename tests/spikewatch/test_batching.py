"""A loop that asks its run when to step and what a loss weighs; the knobs that change the answer."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spikewatch
from spikewatch.batching import Batching, Counted
from spikewatch.refusal import Refused


def steps_of(batching, batches):
    """The groups of a pass over `batches` (their sizes), with the weight of each batch."""
    groups, group = [], []
    for size in Counted(batches, batching):
        group.append((size, batching.loss_weight()))
        if batching.should_step():
            groups.append(group)
            group = []
            batching.stepped()
    return groups, group


@settings(deadline=None)
@given(st.integers(0, 30), st.integers(1, 8))
def test_a_step_has_so_many_batches_and_the_pass_ends_with_a_step(batches, accumulation):
    groups, rest = steps_of(Batching(accumulation), [1] * batches)
    assert rest == []
    assert [len(group) for group in groups[:-1]] == [accumulation] * (len(groups) - 1)
    assert sum(map(len, groups)) == batches
    for group in groups:
        assert [weight for _, weight in group] == [1 / len(group)] * len(group)


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 8), st.integers(1, 5), st.booleans())
def test_the_weights_of_a_step_are_its_batches_shares_of_its_samples(samples, size, accumulation, drop_last):
    from torch.utils.data import DataLoader

    loader = DataLoader(range(samples), batch_size=size, drop_last=drop_last)
    batching, group = Batching(accumulation, size), []
    for batch in Counted(loader, batching):
        group.append((len(batch), batching.loss_weight()))
        if batching.should_step():
            whole = sum(length for length, _ in group)
            assert [weight for _, weight in group] == [length / whole for length, _ in group]
            assert math.isclose(sum(weight for _, weight in group), 1.0)
            group = []
    assert group == []


def test_where_nobody_knows_the_end_of_a_pass_its_last_group_goes_on_in_the_next():
    batching = Batching(4)
    first, rest = steps_of(batching, (n for n in range(6)))
    second, left = steps_of(batching, (n for n in range(6)))
    assert [len(group) for group in first] == [4]
    assert len(rest) + len(second[0]) == 4
    assert left == []


@pytest.mark.parametrize("steps", [0, -1])
def test_a_loop_without_batches_is_a_mistake_of_the_script(steps):
    with pytest.raises(ValueError, match="from 1"):
        spikewatch.attach(accumulation_steps=steps)


pytest_torch = pytest.mark.torch


@pytest_torch
@pytest.mark.parametrize("kind", ["workers", "no workers", "generator", "iterable"])
@pytest.mark.parametrize("accumulation", [1, 3])
def test_a_disabled_run_steps_and_weighs_as_an_attached_one(kind, accumulation, indices, monkeypatch, no_children_left):
    from torch.utils.data import DataLoader, IterableDataset

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(26))

    def make():
        if kind == "generator":
            return (item for item in range(10))
        if kind == "iterable":
            return DataLoader(Stream(), batch_size=4)
        return DataLoader(indices(26), batch_size=4, num_workers=1 if kind == "workers" else 0)

    def loop(run):
        told = []
        for _ in range(1 if kind == "generator" else 2):
            for _ in run.loader:
                with run.accumulate():
                    told.append((run.loss_weight, run.should_step(), run.accumulation_steps))
                if told[-1][1]:
                    run.step()
        run.close()
        run.loader = None
        return told

    attached = loop(spikewatch.attach(loader=make(), accumulation_steps=accumulation))
    monkeypatch.setenv("SPIKEWATCH_DISABLE", "1")
    assert loop(spikewatch.attach(loader=make(), accumulation_steps=accumulation)) == attached
    assert any(step for _, step, _ in attached)


def test_without_accumulation_every_batch_is_a_step():
    run = spikewatch.attach(loader=[1, 2])
    for _ in run.loader:
        with run.accumulate():
            assert (run.should_step(), run.loss_weight, run.accumulation_steps) == (True, 1.0, 1)
        run.step()


class Model:
    """Counts as DistributedDataParallel or FSDP2 would be told."""

    def __init__(self, kind):
        self.told = []
        if kind == "FSDP2":
            self.set_requires_gradient_sync = self.told.append
        elif kind == "DDP":
            self.no_sync = self._no_sync

    def _no_sync(self):
        import contextlib

        self.told.append(False)
        return contextlib.nullcontext()


@pytest.mark.parametrize(
    ("kind", "told"), [("DDP", [False, False]), ("FSDP2", [False, False, True, True]), ("plain", [])]
)
def test_ranks_exchange_gradients_in_the_last_batch_of_a_step_only(kind, told):
    model = Model(kind)
    run = spikewatch.attach(model=model, loader=[1, 2, 3, 4], accumulation_steps=3)
    for _ in run.loader:
        with run.accumulate():
            pass
    assert model.told == told


# --- the knobs ------------------------------------------------------------------------------------------------------


@pytest.fixture
def looping(indices, no_children_left):
    """Attaches and goes once through a first step, so that the knobs are open."""
    runs = []

    def make(batch_size=8, accumulation_steps=2, weigh=True, ask=True, loader=None, **more):
        from torch.utils.data import DataLoader

        loader = loader or DataLoader(indices(96), batch_size=batch_size)
        run = spikewatch.attach(loader=loader, accumulation_steps=accumulation_steps, **more)
        runs.append(run)
        run.batches = iter(run.loader)
        for _ in range(accumulation_steps):
            next(run.batches)
            if weigh:
                _ = run.loss_weight
            if ask:
                run.should_step()
        run.step()
        return run

    yield make
    for run in runs:
        run.close()
        run.batches = run.loader = None


def closed(run):
    return run._parts.knobs.unavailable().get("micro_batch_size", "")


@pytest_torch
@pytest.mark.parametrize(
    ("asked", "becomes"),
    [
        ({"micro_batch_size": 4}, (4, 4)),
        ({"micro_batch_size": 16}, (16, 1)),
        ({"accumulation_steps": 1}, (16, 1)),
        ({"accumulation_steps": 16}, (1, 16)),
        ({"micro_batch_size": 2, "accumulation_steps": 8}, (2, 8)),
    ],
)
def test_one_knob_brings_the_other_along_so_that_a_step_keeps_its_samples(asked, becomes, looping):
    knobs = looping()._parts.knobs
    knobs.check(asked)
    knobs.change(asked)
    values = knobs.values()
    assert (values["micro_batch_size"], values["accumulation_steps"]) == becomes
    knobs.change({"micro_batch_size": 8})
    assert knobs.values()["accumulation_steps"] == 2


@pytest_torch
@pytest.mark.parametrize(
    "asked",
    [
        {"micro_batch_size": 3},
        {"micro_batch_size": 0},
        {"micro_batch_size": 32},
        {"accumulation_steps": 5},
        {"micro_batch_size": 4, "accumulation_steps": 2},
        {"micro_batch_size": 4.0},
    ],
)
def test_values_that_would_change_what_a_step_uses_are_refused(asked, looping):
    with pytest.raises(Refused) as refused:
        looping()._parts.knobs.check(asked)
    assert refused.value.reason == "out_of_bounds"


@pytest_torch
def test_a_script_can_let_the_samples_of_a_step_change_in_whole_batches_of_its_own(looping):
    run = looping(global_batch_may_change=True)
    knobs = run._parts.knobs
    knobs.check({"micro_batch_size": 4, "accumulation_steps": 6})
    with pytest.raises(Refused, match="multiple of the loader's own 8"):
        knobs.check({"micro_batch_size": 3, "accumulation_steps": 1})
    knobs.change({"micro_batch_size": 4, "accumulation_steps": 6})
    seen, steps = [], []
    for batch in run.batches:
        seen += batch.tolist()
        if run.should_step():
            steps.append(len(seen))
            seen = []
    assert steps == [24, 24, 24, 8]


@pytest_torch
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (dict(ask=False), "without asking run.should_step"),
        (dict(weigh=False), "loss with run.loss_weight"),
        (dict(accumulation_steps=1), ""),
    ],
)
def test_the_knobs_are_closed_to_a_loop_that_would_not_follow(make, reason, looping):
    assert (reason in closed(looping(**make))) if reason else closed(looping(**make)) == ""


@pytest_torch
def test_a_step_in_the_middle_of_an_accumulation_closes_the_knobs_and_nothing_changes_there(looping):
    run = looping()
    next(run.batches)
    run.should_step()
    with pytest.raises(Refused, match="middle"):
        run._parts.knobs.change({"micro_batch_size": 4})
    run.step()
    assert "middle" in closed(run)
    assert run.accumulation_steps == 2


@pytest_torch
def test_a_pass_within_a_pass_does_not_confuse_the_steps_of_the_outer_one(looping):
    """An evaluation over the training data, say."""
    run = looping(accumulation_steps=5, batch_size=8)  # 12 batches: steps of 5, 5 and 2
    told = []
    for number, _ in enumerate(run.batches, 5):
        if number == 6:
            with run.phase("eval"):
                for inner, _ in enumerate(run.loader):
                    if inner == 1:
                        assert "two passes" in closed(run)
            assert "two passes" not in closed(run)
            continue
        told.append((number, run.should_step(), run.loss_weight))
    assert [number for number, step, _ in told if step] == [9, 11]
    assert [weight for _, _, weight in told] == [0.2] * 4 + [0.5] * 2


@pytest_torch
@pytest.mark.parametrize("kind", ["iterable", "no batch size", "list of batches", "out of order", "not accumulating"])
def test_loaders_whose_batches_cannot_be_cut_say_why(kind, indices, no_children_left):
    from torch.utils.data import DataLoader, IterableDataset

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(26))

    loader, reason = {
        "iterable": (lambda: DataLoader(Stream(), batch_size=4), "iterable-style"),
        "no batch size": (lambda: DataLoader(indices(8), batch_size=None), "batch_size=None"),
        "list of batches": (lambda: DataLoader(indices(8), batch_sampler=[[1, 2], [3]]), "list has no batch_size"),
        "out of order": (lambda: DataLoader(indices(8), num_workers=1, in_order=False), "in_order=False"),
        "not accumulating": (lambda: DataLoader(indices(8), batch_size=4), "accumulation_steps"),
    }[kind]
    run = spikewatch.attach(loader=loader(), accumulation_steps=None if kind == "not accumulating" else 2)
    for _ in run.loader:
        if run.should_step() and run.loss_weight:
            run.step()
    assert reason in closed(run)
    with pytest.raises(Refused) as refused:
        run._parts.knobs.check({"micro_batch_size": 2})
    assert refused.value.reason == "unsupported"
    run.close()
    run.loader = None


@pytest_torch
def test_a_sampler_that_draws_an_index_at_a_time_is_not_looked_ahead_into(looping, indices):
    """That would draw from the run's random state before the model does."""
    from torch.utils.data import BatchSampler, DataLoader, Sampler

    class Lazy(Sampler):
        def __iter__(self):
            for _ in range(96):
                yield random.randrange(96)

        def __len__(self):
            return 96

    before = random.getstate()
    try:
        loader = DataLoader(indices(96), batch_sampler=BatchSampler(Lazy(), 8, drop_last=False))
        run = looping(loader=loader)
        for _ in run.batches:
            if run.should_step() and run.loss_weight:
                run.step()
        assert "random state" in closed(run)
    finally:
        random.setstate(before)


@pytest_torch
def test_length_and_batch_size_of_the_loader_tell_what_comes(looping):
    from torch.utils.data import BatchSampler

    run = looping()
    own = run.loader.batch_sampler
    run._parts.knobs.change({"micro_batch_size": 4})
    assert (len(run.loader), run.loader.batch_size, run.loader.batch_sampler.batch_size) == (24, 4, 4)
    assert run._parts.meter.batch_size == 4
    list(run.batches)
    assert len(list(run.loader)) == 24
    run._parts.knobs.change({"micro_batch_size": 8})
    assert run.loader.batch_sampler is own
    assert isinstance(own, BatchSampler)
    assert (len(run.loader), run.loader.batch_size) == (12, 8)


@pytest_torch
def test_a_batch_sampler_of_the_scripts_own_stays_the_loaders_only_word_on_size(looping, indices):
    from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

    class Own(BatchSampler):
        pass

    own = Own(SequentialSampler(range(96)), 8, drop_last=False)
    run = looping(loader=DataLoader(indices(96), batch_sampler=own))
    for _ in range(4):  # until it is seen to draw nothing
        for _ in range(2):
            next(run.batches)
            _ = run.loss_weight, run.should_step()
        run.step()
    run._parts.knobs.check({"micro_batch_size": 4})
    run._parts.knobs.change({"micro_batch_size": 4})
    assert (run.loader.batch_size, run.loader.batch_sampler.batch_size) == (None, 4)
    run._parts.knobs.change({"micro_batch_size": 8})
    assert (run.loader.batch_size, run.loader.batch_sampler) == (None, own)


@pytest_torch
def test_ordered_by_the_sidecar_they_change_at_a_step_and_go_back_when_nobody_confirms(looping, order):
    run = looping()
    change = order(run, micro_batch_size=4)
    next(run.batches)
    assert run.accumulation_steps == 2  # not in the middle of a step
    next(run.batches)
    assert run.should_step()
    assert run.loss_weight == 0.5
    run.step()
    assert run._parts.ledger.report(change)["state"] == "applied"
    assert [len(next(run.batches)) for _ in range(4)] == [4] * 4
    assert run.should_step()
    assert run.loss_weight == 0.25
    run._parts.ledger.revert(change)
    run.step()
    assert len(next(run.batches)) == 8
    assert run.accumulation_steps == 2
