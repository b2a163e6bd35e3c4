"""Gradient overflows and the loss scale, with torch's own scaler, which works on the CPU in full."""

import math

import pytest

import spikewatch
from spikewatch import layout

pytestmark = pytest.mark.torch


@pytest.fixture
def training():
    """A loop over `fails` (which steps overflow) under a scaler; gives back the attached run after it."""
    import torch

    runs = []

    def go(fails, fused=False, **scaling):
        model = torch.nn.Linear(2, 1)
        kind = torch.optim.AdamW if fused else torch.optim.SGD
        optimizer = kind(model.parameters(), 0.01, **({"fused": True} if fused else {}))
        scaler = torch.amp.GradScaler("cpu", **{"init_scale": 1024.0, **scaling})
        run = spikewatch.attach(model=model, optimizer=optimizer, scaler=scaler)
        runs.append(run)
        for overflow in fails:
            loss = model(torch.ones(1, 2)).sum() * (math.inf if overflow else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            run.step(loss)
        meter = run._parts.meter
        return dict(zip(layout.FIELDS, meter.record(meter.now()), strict=True))

    yield go
    for run in runs:
        run.close()


@pytest.mark.parametrize("fused", [False, True])
def test_skipped_steps_are_counted_in_all_and_in_a_row(training, fused):
    now = training([0, 1, 0, 1, 1, 1], fused=fused)
    assert now["overflows_total"] == 4
    assert now["consecutive_overflows"] == 3
    assert now["loss_scale"] == 1024 / 2**4
    assert now["errors_total"] == 0


def test_a_good_step_ends_the_row(training):
    now = training([1, 1, 0])
    assert (now["overflows_total"], now["consecutive_overflows"]) == (2, 0)


def test_overflows_are_counted_also_when_the_scale_has_reached_zero(training):
    """Its halving has no floor: there the falling scale alone would no longer tell."""
    now = training([1] * 20, init_scale=2.0**-140)
    assert now["loss_scale"] == 0
    assert now["overflows_total"] == 20


def test_a_disabled_scaler_has_no_scale(training):
    now = training([0, 0], enabled=False)
    assert layout.is_missing(now["loss_scale"])
    assert layout.is_missing(now["overflows_total"])


def test_a_scaler_that_only_passes_through_has_no_scale():
    """As bf16 training keeps it: scale 1, never backed off."""
    import torch

    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    scaler.set_backoff_factor(1.0)
    run = spikewatch.attach(optimizer=torch.optim.SGD([torch.ones(1, requires_grad=True)], 0.1), scaler=scaler)
    scaler.scale(torch.ones(1))
    run.step()
    assert layout.is_missing(run._parts.meter.loss_scale)
    run.close()


def test_steps_that_only_accumulate_are_no_overflows():
    import torch

    parameter = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], 0.1)
    scaler = torch.amp.GradScaler("cpu")
    run = spikewatch.attach(optimizer=optimizer, scaler=scaler)
    for micro in range(1, 9):
        scaler.scale(parameter.sum()).backward()
        if micro % 4 == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        run.step()
    assert (run._parts.meter.overflows, run._parts.meter.consecutive_overflows) == (0, 0)
    run.close()


def test_checkpoints_of_a_watched_optimizer_and_scaler_are_as_before():
    import torch

    def states(watch):
        parameter = torch.ones(1, requires_grad=True)
        optimizer, scaler = torch.optim.SGD([parameter], 0.1), torch.amp.GradScaler("cpu")
        run = spikewatch.attach(optimizer=optimizer, scaler=scaler) if watch else None
        scaler.scale(parameter.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        if run is not None:
            run.step()
            run.close()
        return optimizer.state_dict(), scaler.state_dict()

    assert states(True) == states(False)
