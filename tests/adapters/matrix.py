"""What it means, under any framework, that a knob changes the run: one check a knob, over the tiny training.

Each check fails where the change has no effect; `neutral=True` makes changes have none, to show that.
"""

import torch
from tiny import BATCH, SIZE, Plan

AT = 7  # the step whose end carries the change out


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def close(one, other):
    return all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(one, other, strict=True))


def applied(trace):
    assert [report["state"] for report in trace.reports] == ["applied"] * len(trace.reports), trace.reports
    assert trace.reports


def observed(train, **more):
    """Attached and nothing changed: bit-identical to a run without us, and measured. Returns (with us, without)."""
    watched, plain = train(Plan(**more)), train(Plan(attached=False, **more))
    assert equal(watched.weights, plain.weights)
    assert watched.order() == plain.order()
    steps = len(plain.per_step)
    assert (watched.fields["steps_total"], watched.fields["samples_total"]) == (steps, len(plain.order()))
    assert watched.fields["step_seconds_total"] > watched.fields["data_wait_seconds_total"] > 0
    assert watched.fields["loss"] > 0
    return watched, plain


def num_workers(train, neutral=False):
    plain = train(Plan(attached=False))
    changed = train(Plan(orders={AT + 2: {"num_workers": 1}}, neutral=neutral))
    applied(changed)
    assert set(changed.workers) == {1}  # of the last epoch's samples, all loaded in the worker
    assert changed.order() == plain.order()
    assert equal(changed.weights, plain.weights)


def prefetch_factor(train, neutral=False):
    many = {"workers": 1, "epochs": 1, "size": 2 * SIZE}
    plain = train(Plan(attached=False, **many))
    order = {9: {"prefetch_factor": 6}}  # a sampler that is not torch's is looked at for some batches first
    patience = 2.0 if neutral else 20.0
    # one batch may lie in the framework's hands, so that one less than all is what must be there
    changed = train(Plan(orders=order, ahead=(10, 5), patience=patience, neutral=neutral, **many))
    applied(changed)
    assert changed.ahead
    assert changed.order() == plain.order()
    assert equal(changed.weights, plain.weights)


def lr_factor(train, neutral=False):
    plain = train(Plan(attached=False))
    by_hand = train(Plan(attached=False, lr_from=(AT, 0.5)))
    changed = train(Plan(orders={AT: {"lr_factor": 0.5}}, neutral=neutral))
    applied(changed)
    assert equal(changed.weights, by_hand.weights)
    assert not equal(changed.weights, plain.weights)


def micro_batch_size(train, neutral=False):
    """Smaller batches and more of them: the step's samples, their order and the gradient stay."""
    for accumulate in (1, 2):
        plain = train(Plan(attached=False, accumulate=accumulate, size=SIZE - 1))
        order = {"micro_batch_size": 2, "accumulation_steps": 2 * accumulate}
        changed = train(Plan(orders={3: order}, accumulate=accumulate, size=SIZE - 1, neutral=neutral))
        applied(changed)
        assert changed.order() == plain.order()
        before, after = changed.forwards[: 3 * accumulate], changed.forwards[3 * accumulate :]
        assert {len(numbers) for numbers in before} == {BATCH}
        assert {len(numbers) for numbers in after} == {2, 1}
        assert len(changed.per_step) == len(plain.per_step)
        assert close(changed.weights, plain.weights)


def accumulation_steps(train, neutral=False):
    changed = train(Plan(orders={3: {"accumulation_steps": 4}}, neutral=neutral))
    applied(changed)
    assert {len(numbers) for numbers in changed.forwards[3:]} == {1}
    assert changed.values["micro_batch_size"] == 1


def loss_scale(train, neutral=False):
    changed = train(Plan(fp16=True, orders={AT: {"loss_scale": 64.0}}, neutral=neutral, epochs=1))
    applied(changed)
    assert changed.scales[AT - 2] == 1024.0
    assert set(changed.scales[AT:]) == {64.0}
    # the raw gradients are scaled by it
    before, after = changed.gradients[AT - 1], changed.gradients[AT]
    assert 0.02 < after / before < 0.2, (before, after)


def loss_scale_growth_interval(train, neutral=False):
    changed = train(Plan(fp16=True, orders={AT: {"loss_scale_growth_interval": 2}}, neutral=neutral, epochs=1))
    applied(changed)
    assert changed.scales[AT : AT + 4] == [1024.0, 2048.0, 2048.0, 4096.0]


def precision(train, neutral=False):
    changed = train(Plan(fp16=True, orders={AT: {"precision": "bf16"}}, neutral=neutral, epochs=1))
    applied(changed)
    assert set(changed.dtypes[:AT]) == {"float16"}
    assert set(changed.dtypes[AT:]) == {"bfloat16"}
    assert set(changed.scales[AT:]) == {1.0}


def storm_ends_by_precision(train, neutral=False):
    """Activations that fp16 cannot hold: every step overflows until the run computes in bf16."""
    changed = train(Plan(fp16=True, hot=True, orders={AT: {"precision": "bf16"}}, neutral=neutral, epochs=1))
    applied(changed)
    assert changed.storm[AT - 2] == AT - 1  # overflows in a row
    assert set(changed.storm[AT:]) == {0}
    assert torch.equal(changed.per_step[0], changed.per_step[AT - 1])
    assert not torch.equal(changed.per_step[AT - 1], changed.per_step[-1])  # it trains again


def storm_ends_by_loss_scale(train, neutral=False):
    """A scale far too large: halving would take 20 steps more, the order takes one."""
    changed = train(Plan(fp16=True, scale=2.0**40, orders={3: {"loss_scale": 1024.0}}, neutral=neutral, epochs=1))
    applied(changed)
    assert changed.storm[1] == 2
    assert set(changed.storm[3:]) == {0}
    assert not torch.equal(changed.per_step[3], changed.per_step[2])


CHECKS = {
    "num_workers": num_workers,
    "prefetch_factor": prefetch_factor,
    "lr_factor": lr_factor,
    "micro_batch_size": micro_batch_size,
    "accumulation_steps": accumulation_steps,
    "loss_scale": loss_scale,
    "loss_scale_growth_interval": loss_scale_growth_interval,
    "precision": precision,
    "overflow storm, ended by precision": storm_ends_by_precision,
    "overflow storm, ended by loss_scale": storm_ends_by_loss_scale,
}
