"""`lr_factor`: a run changed at a step is, bit for bit, a run that had the value from that step on."""

import pytest

import spikewatch
from spikewatch.numerics_lr import LrFactor
from spikewatch.refusal import Refused

pytestmark = pytest.mark.torch

STEPS, AT = 14, 6

SCHEDULES = {
    "constant": lambda lr, opt: None,
    "lambda": lambda lr, opt: lr.LambdaLR(opt, lambda epoch: 1 / (1 + epoch)),
    "one cycle": lambda lr, opt: lr.OneCycleLR(opt, 0.3, total_steps=STEPS + 1),
    "cosine": lambda lr, opt: lr.CosineAnnealingLR(opt, STEPS),
    "warm restarts": lambda lr, opt: lr.CosineAnnealingWarmRestarts(opt, 5),
    "steps": lambda lr, opt: lr.StepLR(opt, 3, 0.5),
    "exponential": lambda lr, opt: lr.ExponentialLR(opt, 0.9),
    "sequence": lambda lr, opt: lr.SequentialLR(opt, [lr.ConstantLR(opt), lr.ExponentialLR(opt, 0.8)], [4]),
}
OPTIMIZERS = {
    "sgd": lambda torch, p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01),
    "adamw": lambda torch, p: torch.optim.AdamW(p, 0.1, foreach=False),
    "fused": lambda torch, p: torch.optim.AdamW(p, 0.1, fused=True),
    "tensor rate": lambda torch, p: torch.optim.SGD(p, torch.tensor(0.1), foreach=False),
}


def training(make_optimizer, make_schedule, before_step, after_step):
    """Weights and scheduled rates after each step of a small run."""
    import torch

    generator = torch.Generator().manual_seed(4)
    weight = torch.nn.Parameter(torch.randn(6, 3, generator=generator))
    optimizer = make_optimizer(torch, [weight])
    schedule = make_schedule(torch.optim.lr_scheduler, optimizer)
    seen = []
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        (torch.randn(5, 6, generator=generator) @ weight).pow(2).mean().backward()
        restore = before_step(optimizer, step)
        optimizer.step()
        restore()
        if schedule is not None:
            schedule.step()
        after_step(optimizer, step)
        seen.append((weight.detach().numpy().tobytes(), float(optimizer.param_groups[0]["lr"])))
    return seen


def by_hand(factor, first, last=STEPS):
    """What a script would do: another rate for the steps from `first` to `last`."""

    def before(optimizer, step):
        group, rate = optimizer.param_groups[0], optimizer.param_groups[0]["lr"]
        if first <= step <= last:
            group["lr"] = rate * factor
        return lambda: group.__setitem__("lr", rate)

    return before


def changed(order, factor, at=AT, revert_at=None):
    """An attached run that is told to change after step `at`."""
    runs, ids = [], []

    def after(optimizer, step):
        if not runs:
            runs.append(spikewatch.attach(optimizer=optimizer))
        if step == at:
            ids.append(order(runs[0], lr_factor=factor))
        if step == revert_at:
            runs[0]._parts.ledger.revert(ids[0])
        runs[0].step()

    return after


def nothing(*_):
    return lambda: None


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_it_equals_a_run_with_that_rate_under_any_scheduler(order, schedule):
    make = OPTIMIZERS["sgd"], SCHEDULES[schedule]
    ours = training(*make, nothing, changed(order, 0.7))
    theirs = training(*make, by_hand(0.7, AT + 1), nothing)
    plain = training(*make, nothing, nothing)
    assert ours == theirs
    assert [rate for _, rate in ours] == [rate for _, rate in plain]  # schedules and logs see what they set
    assert ours[:AT] == plain[:AT]
    assert all(a != b for (a, _), (b, _) in zip(ours[AT:], plain[AT:], strict=True))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_it_equals_a_run_with_that_rate_for_any_implementation(order, optimizer):
    make = OPTIMIZERS[optimizer], SCHEDULES["lambda"]
    assert training(*make, nothing, changed(order, 1.5)) == training(*make, by_hand(1.5, AT + 1), nothing)


def test_it_equals_a_run_whose_whole_schedule_was_made_with_the_smaller_rate(order):
    """Another way to the same numbers: a power of two commutes with the scheduler's own product."""
    import torch

    def halved(lr, optimizer):
        return lr.LambdaLR(optimizer, lambda epoch: (0.5 if epoch >= AT else 1) / (1 + epoch))

    sgd = OPTIMIZERS["sgd"]
    ours = training(sgd, SCHEDULES["lambda"], nothing, changed(order, 0.5))
    theirs = training(sgd, halved, nothing, nothing)
    assert [weights for weights, _ in ours] == [weights for weights, _ in theirs]
    assert torch.is_grad_enabled()


def test_taken_back_it_equals_a_run_that_had_it_for_those_steps_only(order):
    make = OPTIMIZERS["adamw"], SCHEDULES["cosine"]
    ours = training(*make, nothing, changed(order, 0.5, revert_at=10))
    assert ours == training(*make, by_hand(0.5, AT + 1, 10), nothing)


def make_optimizer():
    import torch

    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    return torch.optim.SGD([weight], 0.5)


def test_without_a_change_the_optimizer_is_not_touched_and_after_one_it_is_as_before():
    optimizer = make_optimizer()
    knob = LrFactor(optimizer)
    untouched = optimizer.state_dict()
    assert not optimizer._optimizer_step_pre_hooks
    knob.change({"lr_factor": 0.5}, 0)
    optimizer.step()
    assert optimizer.state_dict() == untouched
    knob.change({"lr_factor": 1.0}, 0)
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


def test_a_step_that_raises_leaves_no_changed_rate_behind():
    optimizer = make_optimizer()
    LrFactor(optimizer).change({"lr_factor": 0.5}, 0)

    def broken():
        raise OverflowError

    with pytest.raises(OverflowError):
        optimizer.step(broken)
    before = optimizer.param_groups[0]["params"][0].clone()
    optimizer.step()
    assert (before - optimizer.param_groups[0]["params"][0]).tolist() == [0.25, 0.25]
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_optimizers_that_cannot_be_reached_say_why():
    class Wrapper:
        param_groups = ()

        def register_step_pre_hook(self, hook):
            raise AttributeError

    assert LrFactor(None).unavailable() == {"lr_factor": "no optimizer was given to attach"}
    assert "the optimizer inside it" in LrFactor(Wrapper()).unavailable()["lr_factor"]
    assert LrFactor(make_optimizer()).unavailable() == {}
    captured = make_optimizer()
    captured.param_groups[0]["capturable"] = True
    with pytest.raises(Refused, match="CUDA graph"):
        LrFactor(captured).check({"lr_factor": 0.5})
