"""Gradient overflows in a row: one real step of a real model is searched, and trains on as if it were not."""

import logging
import sys

import pytest

import spikewatch
from spikewatch.search import STORM

pytestmark = pytest.mark.torch


def model(kind):
    import torch

    class Trouble(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(8, 8)
            self.register_buffer("mask", torch.full((8,), -torch.inf))

        def forward(self, x):
            return {
                "exp": lambda x: torch.exp(self.inner(x) * 1e6),
                "log": lambda x: torch.log(self.inner(x) * 0),
                "sqrt": lambda x: torch.sqrt(self.inner(x) * 0),  # fine forward, infinite backward
                "masked row": lambda x: torch.softmax(self.inner(x) + self.mask, -1),
                "half": lambda x: (self.inner(x) * 1e6).half().float(),
                "none": lambda x: self.inner(x),
            }[kind](x)

    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.1), Trouble(), torch.nn.Linear(8, 1))


@pytest.fixture(autouse=True)
def nothing_compiled():
    """Where something was compiled nothing is searched; what other tests of this process compiled does not count."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is not None:
        dynamo.counters.clear()


class Training:
    """A loop with a real GradScaler on the CPU."""

    def __init__(
        self, kind, steps=STORM + 4, attached=True, after=lambda run, step: None, data=None, wrap=lambda m: m, **more
    ):
        import torch

        self.model = made = wrap(model(kind))
        optimizer = torch.optim.SGD(made.parameters(), 0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
        run = spikewatch.attach(model=made, optimizer=optimizer, scaler=scaler, **more) if attached else None
        self.scales = []
        for step in range(steps):
            x = torch.randn(4, 8) if data is None else data(step)
            loss = made(x).float().pow(2).mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            self.scales.append(scaler.get_scale())
            if run is not None:
                run.step(loss)
                after(run, step)
        self.weights = [p.detach().numpy().tobytes() for p in made.parameters()]
        self.random = torch.get_rng_state().tolist()
        if run is not None:
            self.search, self.errors = run._measuring.search, run._parts.meter.errors
            self.about = dict(run._measuring.telemetry.about)
            run.close()


@pytest.mark.parametrize(
    ("kind", "operation", "direction"),
    [
        ("exp", "exp", "forward"),
        ("log", "log", "forward"),
        ("masked row", "_softmax", "forward"),
        ("half", "_to_copy", "forward"),
        ("sqrt", "div", "backward"),
    ],
)
def test_the_module_and_the_operation_where_it_began_are_named(kind, operation, direction, caplog):
    with caplog.at_level(logging.WARNING, "spikewatch"):
        done = Training(kind)
    origin = done.search.origin
    assert (origin.module, origin.operation, origin.direction) == ("2", operation, direction)
    assert done.about["origin_operation"] == operation
    assert f"{operation}, {direction}, in 2" in caplog.text
    assert done.errors == 0


@pytest.mark.parametrize("kind", ["exp", "sqrt", "none"])
def test_a_searched_run_trains_bit_by_bit_as_one_without_us(kind):
    import torch

    watched, plain = Training(kind), Training(kind, attached=False)
    assert watched.search.done == (kind != "none")
    assert (watched.weights, watched.random, watched.scales) == (plain.weights, plain.random, plain.scales)
    assert not torch.nn.modules.module._global_forward_hooks
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


def test_one_step_is_searched_in_a_storm_not_every_one():
    done = Training("exp", steps=STORM + 20)
    assert done.search.done == 1
    assert done.scales[-1] < done.scales[STORM]


def test_a_batch_that_is_not_finite_is_told_from_a_module_that_makes_it_so():
    import torch

    batch = torch.full((4, 8), torch.nan)
    done = Training("none", data=lambda step: batch)
    assert (done.search.origin.operation, done.search.origin.direction) == ("input", "outside")


def test_a_weight_that_is_not_finite_is_named():
    import torch

    def spoil(run, step):
        if step == 0:
            with torch.no_grad():
                run.spoiled.weight[0, 0] = torch.nan

    def after(run, step):
        run.spoiled = run._measuring.search._model[3]
        spoil(run, step)

    origin = Training("none", after=after).search.origin
    assert (origin.module, origin.operation, origin.direction) == ("3.weight", "parameter", "outside")


def test_a_storm_that_ends_before_the_searched_step_has_no_origin():
    import torch

    done = Training("none", data=lambda step: torch.full((4, 8), torch.nan if step < STORM else 1.0))
    assert done.search.done == 1
    assert done.search.origin is None


def test_compiled_code_is_left_alone_with_the_reason(caplog):
    import torch

    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x + 1, backend="eager")
    compiled(torch.ones(2))
    try:
        done = Training("exp")
    finally:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
    assert (done.search.done, done.search.origin) == (0, None)
    assert "compiled code" in done.search.refused
    assert "their origin is not searched" in caplog.text


def test_another_dispatch_mode_is_left_alone():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Theirs(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    with Theirs():
        assert Training("exp").search.refused == "another dispatch mode is active"


def test_a_mode_that_is_entered_during_the_searched_step_and_outlives_it_is_not_disturbed():
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

    class Theirs(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    theirs = Theirs()

    def data(step):
        if step == STORM:  # the step that is searched
            theirs.__enter__()
        if step == STORM + 2:
            assert _get_current_dispatch_mode() is theirs
            theirs.__exit__(None, None, None)
        return torch.ones(4, 8)

    done = Training("exp", data=data)
    assert done.search.origin.operation == "exp"
    assert not done.search.busy
    assert _get_current_dispatch_mode() is None


def test_under_ddp_the_modules_have_their_own_names_and_every_step_is_as_without_us():
    import torch

    def under_ddp(**more):
        return Training("exp", wrap=torch.nn.parallel.DistributedDataParallel, **more)

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        watched, plain = under_ddp(), under_ddp(attached=False)
    finally:
        torch.distributed.destroy_process_group()
    origin = watched.search.origin
    assert origin is not None, watched.search.refused
    assert (origin.module, origin.operation, origin.direction) == ("2", "exp", "forward")
    assert (watched.weights, watched.random, watched.scales) == (plain.weights, plain.random, plain.scales)
    assert watched.errors == 0


def test_recomputed_activations_are_searched_like_others():
    from torch.utils.checkpoint import checkpoint

    class Recomputed:
        def __init__(self, inner):
            self.inner = inner

        def __getattr__(self, name):
            return getattr(self.inner, name)

        def __call__(self, x):
            return checkpoint(self.inner, x, use_reentrant=False)

    watched = Training("sqrt", wrap=Recomputed)
    assert (watched.search.origin.operation, watched.search.origin.direction) == ("div", "backward")
    assert watched.weights == Training("sqrt", wrap=Recomputed, attached=False).weights


def test_it_can_be_turned_off(monkeypatch):
    monkeypatch.setenv("SPIKEWATCH_SEARCH", "0")
    assert Training("exp").search.refused == "SPIKEWATCH_SEARCH=0"


def test_a_run_that_is_closed_amid_the_searched_step_leaves_no_mode_and_no_hook_behind():
    import torch
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    Training("exp", steps=STORM)
    assert _get_current_dispatch_mode() is None
    assert not torch.nn.modules.module._global_forward_pre_hooks


def test_an_error_of_ours_while_recording_is_counted_and_the_step_goes_on(monkeypatch):
    from spikewatch.tracing import Trace

    def fails(*_):
        raise ArithmeticError

    monkeypatch.setattr(Trace, "_extremes", fails)
    watched, plain = Training("exp"), Training("exp", attached=False)
    assert watched.weights == plain.weights
    assert watched.search.origin is None
    assert watched.errors > 10
