"""A run whose batches are cut anew from some step on is the run that had them from that step on, bit for bit."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import spikewatch

pytestmark = pytest.mark.torch

SAMPLES, OWN, ACCUMULATION = 76, 8, 2  # a pass ends with a short step: 16, 16, 16, 16, 12


class Model:
    """A model with dropout, its optimizer, and one micro-batch's forward and backward."""

    def __init__(self):
        import torch

        torch.manual_seed(1)
        self.net = torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1))
        self.optimizer = torch.optim.AdamW(self.net.parameters(), 0.01)

    def learn(self, batch, weight):
        loss = self.net(batch.float()[:, None] / 100).pow(2).mean()
        (loss * weight).backward()

    def step(self):
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self):
        import torch

        state = [p.detach().numpy().tobytes() for p in self.net.parameters()]
        return state, torch.get_rng_state().tolist(), random.getstate()


def make_loader(workers):
    from torch.utils.data import DataLoader

    return DataLoader(range(SAMPLES), OWN, shuffle=True, num_workers=workers)


def by_hand(changes, passes):
    """No line of ours: whole passes are read, laid end to end, and cut as `changes` say."""
    import torch

    model, loader, size, number = Model(), make_loader(0), OWN, 0
    for _ in range(passes):
        samples = torch.cat(list(loader))
        for group in samples.split(OWN * ACCUMULATION):
            for batch in group.split(size):
                model.learn(batch, len(batch) / len(group))
            model.step()
            number += 1
            size = changes.get(number, size)
    return model.state()


def with_us(changes, passes, workers, others=None):
    model = Model()
    run = spikewatch.attach(
        model=model.net, optimizer=model.optimizer, loader=make_loader(workers), accumulation_steps=ACCUMULATION
    )
    knobs, number = run._parts.knobs, 0
    for _ in range(passes):
        for batch in run.loader:
            with run.accumulate():
                model.learn(batch, run.loss_weight)
            if run.should_step():
                model.step()
                run.step()
                number += 1
                for values in ({"micro_batch_size": changes.get(number)}, (others or {}).get(number)):
                    if values and None not in values.values():
                        knobs.check(values)
                        knobs.change(values)
    assert run._parts.meter.errors == 0
    state = model.state()
    run.close()
    run.loader = None
    return state


@settings(
    max_examples=7, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    changes=st.dictionaries(st.integers(1, 14), st.sampled_from([1, 2, 4, 8, 16]), max_size=4),
    workers=st.sampled_from([0, 2]),
)
def test_weights_and_random_state_are_those_of_a_run_that_had_the_values_from_that_step(
    changes, workers, no_children_left
):
    assert with_us(changes, 3, workers) == by_hand(changes, 3)


def test_changes_of_workers_in_between_change_nothing(no_children_left):
    changes = {2: 4, 7: 16, 9: 2}
    others = {3: {"num_workers": 1}, 4: {"prefetch_factor": 4}, 8: {"num_workers": 0}, 11: {"num_workers": 2}}
    assert with_us(changes, 3, 2, others) == by_hand(changes, 3)


def test_an_unchanged_loop_that_accumulates_is_bit_identical_to_one_without_us(no_children_left):
    for workers in (0, 2):
        assert with_us({}, 2, workers) == by_hand({}, 2)


def test_smaller_batches_make_the_same_step_but_for_rounding(no_children_left):
    """Without dropout, which draws anew for every batch: a mean of sums is the sum of their shares."""
    import torch

    def weights(changes):
        model = Model()
        model.net[1].p = 0.0
        run = spikewatch.attach(loader=make_loader(0), accumulation_steps=ACCUMULATION)
        number = 0
        for _ in range(3):
            for batch in run.loader:
                model.learn(batch, run.loss_weight)
                if run.should_step():
                    model.step()
                    run.step()
                    number += 1
                    if number in changes:
                        run._parts.knobs.change({"micro_batch_size": changes[number]})
        run.close()
        run.loader = None
        return torch.cat([p.detach().flatten() for p in model.net.parameters()])

    torch.testing.assert_close(weights({1: 2, 8: 16}), weights({}), rtol=1e-4, atol=1e-6)


def test_augmentation_in_this_process_draws_as_in_a_run_that_had_the_size_from_that_step(no_children_left):
    import torch
    from torch.utils.data import DataLoader

    class Noisy:
        def __len__(self):
            return 48

        def __getitem__(self, i):
            return i + torch.rand(())

    class Chunks:
        """The same samples as DataLoader(shuffle=True) takes, by the same draws, in these sizes."""

        def __init__(self, sizes):
            self.sizes = sizes

        def __iter__(self):
            seed = int(torch.empty((), dtype=torch.int64).random_().item())
            order = torch.randperm(48, generator=torch.Generator().manual_seed(seed)).tolist()
            for size in self.sizes:
                yield order[:size]
                del order[:size]

    expected, number = Model(), 0
    for batch in DataLoader(Noisy(), batch_sampler=Chunks([8, 8] + [4] * 8)):
        expected.learn(batch, len(batch) / 8)
        number += len(batch)
        if number % 8 == 0:
            expected.step()

    model = Model()
    run = spikewatch.attach(loader=DataLoader(Noisy(), 8, shuffle=True), accumulation_steps=1)
    for batch in run.loader:
        model.learn(batch, run.loss_weight)
        if run.should_step():
            model.step()
            run.step()
            if run._parts.meter.steps == 2:
                run._parts.knobs.check({"micro_batch_size": 4})
                run._parts.knobs.change({"micro_batch_size": 4})
    run.close()
    run.loader = None
    assert model.state() == expected.state()
