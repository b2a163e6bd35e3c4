"""Loss scale, growth interval and precision with a real GradScaler: changed at a step, or so from then on, is one."""

import gc

import pytest

import spikewatch
from spikewatch.numerics_precision import MixedPrecision
from spikewatch.numerics_scaler import FOREVER, Scaler
from spikewatch.refusal import Refused

pytestmark = pytest.mark.torch

STEPS, AT = 16, 7


class Training:
    """A small model in fp16 on the CPU, with a scaler, attached; or not, and changed by hand."""

    def __init__(self, attached=True, outlier=0.0, kept=True, **scaler):
        import torch

        self.torch = torch
        self.generator = torch.Generator().manual_seed(8)
        self.weight = torch.nn.Parameter(torch.randn(16, 16, generator=self.generator) * 0.01)
        self.optimizer = torch.optim.SGD([self.weight], 0.05)
        self.scaler = torch.amp.GradScaler("cpu", **{"init_scale": 1024.0, "growth_interval": 2000, **scaler})
        self.outlier = outlier
        socket = {"optimizer": self.optimizer, "scaler": self.scaler}
        self.run = spikewatch.attach(**socket) if attached else None
        self.dtype = torch.float16
        self.context = self.autocast() if kept else None
        self.weights, self.scales = [], []

    def autocast(self):
        make = self.run.autocast if self.run else self.torch.autocast
        return make("cpu", self.torch.float16 if self.run else self.dtype)

    def step(self):
        batch = self.torch.randn(4, 16, generator=self.generator)
        self.optimizer.zero_grad()
        with self.context or self.autocast():
            out = batch @ self.weight * (1 + self.outlier)
            loss = (out / (1 + self.outlier)).pow(2).mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.weights.append(self.weight.detach().numpy().tobytes())
        self.scales.append(self.scaler.get_scale())
        if self.run:
            self.run.step(loss)
        return self

    def values(self):
        return self.run._parts.knobs.values()

    def unavailable(self):
        return self.run._parts.knobs.unavailable()

    def skipped(self):
        """Steps that changed nothing."""
        return [a == b for a, b in zip(self.weights, self.weights[1:], strict=False)]


def changed(order, steps=STEPS, at=AT, kept=True, settings=None, **values):
    training = Training(kept=kept, **settings or {})
    for number in range(1, steps + 1):
        if number == at:
            order(training.run, **values)
        training.step()
    return training


def by_hand(change, settings=None):
    training = Training(attached=False, kept=False, **settings or {})
    for number in range(1, STEPS + 1):
        training.step()
        if number == AT:
            change(training)
    return training


def test_what_is_told_of_the_run_follows_a_change_of_precision_and_its_way_back(order):
    training = Training().step()

    def told():
        return training.run._parts.agent._state()["about"]["precision"]

    training.run.describe(precision="fp16-mixed")
    change = order(training.run, precision="bf16")
    assert told() == "fp16-mixed", "nothing has changed before the step"
    training.step()
    assert told() == "bf16-mixed"
    training.run._parts.ledger.revert(change)
    training.step()
    assert told() == "fp16-mixed"
    training.run.close()


def test_a_loss_scale_equals_a_run_whose_scaler_was_filled_with_it(order):
    """3 is no power of two, so the scale shows in what fp16 rounds."""

    def fill(training):
        training.scaler._scale.fill_(3.0)
        training.scaler._growth_tracker.fill_(0)

    settings = {"growth_interval": 5}
    ours, theirs = changed(order, loss_scale=3.0, settings=settings), by_hand(fill, settings)
    plain = by_hand(lambda training: None, settings)
    assert (ours.weights, ours.scales) == (theirs.weights, theirs.scales)
    assert ours.weights[:AT] == plain.weights[:AT]
    assert ours.weights[AT:] != plain.weights[AT:]
    assert ours.values()["loss_scale"] == ours.scales[-1]


def test_a_smaller_loss_scale_ends_a_storm_of_overflows_at_once(order):
    settings = {"init_scale": 2.0**30, "backoff_factor": 0.9}
    storm = changed(order, at=99, settings=settings)
    assert all(storm.skipped())
    calmed = changed(order, loss_scale=1024.0, settings=settings)
    assert calmed.skipped() == [True] * (AT - 1) + [False] * (STEPS - AT)
    assert calmed.run._parts.meter.consecutive_overflows == 0


def test_a_growth_interval_shorter_than_what_has_passed_still_lets_the_scale_grow(order):
    ours = changed(order, loss_scale_growth_interval=4)
    assert ours.scales[AT - 1 :] == [1024.0] * 4 + [2048.0] * 4 + [4096.0] * 2
    assert ours.values()["loss_scale_growth_interval"] == 4


def test_the_scale_can_be_set_before_the_scaler_was_ever_used(order):
    training = Training()
    order(training.run, loss_scale=256.0, loss_scale_growth_interval=3)
    training.run.step()
    for _ in range(4):
        training.step()
    assert training.scales == [256.0, 256.0, 512.0, 512.0]


def pass_through(training):
    state = {"scale": 1.0, "backoff_factor": 1.0, "growth_interval": 2**31 - 1, "_growth_tracker": 0}
    training.scaler.load_state_dict(training.scaler.state_dict() | state)
    training.dtype = training.torch.bfloat16


@pytest.mark.parametrize("kept", [True, False], ids=["one context for all steps", "a context each step"])
def test_bf16_equals_a_run_that_used_it_from_that_step_with_a_scaler_that_passes_through(order, kept):
    ours, theirs = changed(order, kept=kept, precision="bf16"), by_hand(pass_through)
    plain = by_hand(lambda training: None)
    assert ours.weights == theirs.weights
    assert ours.weights[:AT] == plain.weights[:AT]
    assert ours.weights[AT:] != plain.weights[AT:]


def test_bf16_ends_a_storm_of_overflows_that_no_loss_scale_can_end(order):
    settings = {"outlier": 1e7}  # the forward pass itself overflows in fp16
    storm = changed(order, at=99, settings=settings)
    assert all(storm.skipped())
    calmed = changed(order, precision="bf16", settings=settings)
    assert calmed.skipped() == [True] * (AT - 1) + [False] * (STEPS - AT)


def test_in_bf16_a_step_that_is_not_finite_is_still_skipped_and_checkpoints_keep_a_state(order):
    training = changed(order, precision="bf16")
    training.outlier = float("inf")
    training.step()
    assert training.skipped()[-1]
    assert training.scaler.is_enabled()
    assert training.scaler.state_dict()["scale"] == 1.0
    training.torch.amp.GradScaler("cpu").load_state_dict(training.scaler.state_dict())


def test_taken_back_the_scaler_goes_on_where_it_was(order):
    training = changed(order, precision="bf16")
    training.run._parts.ledger.revert("change-0")
    training.step().step()
    assert training.values()["precision"] == "fp16"
    assert training.scales[-1] == training.scales[AT - 1] == 1024.0
    assert training.scaler.get_growth_interval() == 2000
    with training.context:
        assert (training.weight @ training.weight).dtype is training.torch.float16


def test_in_bf16_the_loss_scale_is_out_of_reach(order):
    training = changed(order, precision="bf16")
    training.run._parts.ledger.keep("change-0")
    assert training.unavailable()["loss_scale"] == "bf16 needs no loss scale"
    with pytest.raises(Refused, match="bf16 needs no loss scale"):
        order(training.run, loss_scale=4.0)


def test_a_loss_scale_that_moved_since_does_not_make_a_conflict_but_another_interval_does(order):
    training = Training(growth_interval=2)
    for _ in range(3):
        training.step()
    ledger = training.run._parts.ledger
    ledger.set("a", {"loss_scale": 64.0}, {"loss_scale": 1024.0}, 600_000)  # it is at 2048 by now
    for _ in range(5):
        training.step()
    assert training.scales[-1] > 64.0
    ledger.revert("a")
    training.step()
    assert ledger.report("a")["state"] == "reverted"
    assert training.scaler.get_scale() == ledger.report("a")["found"]["loss_scale"] == 4096.0
    with pytest.raises(Refused, match="is 2, not 3"):
        ledger.set("b", {"loss_scale_growth_interval": 9}, {"loss_scale_growth_interval": 3}, 600_000)


@pytest.mark.parametrize("scale", [0.5, 0.0, float("inf"), float("nan"), 2.0**40, "1", True])
def test_a_scale_that_could_do_harm_is_refused(order, scale):
    training = Training().step()
    with pytest.raises(Refused, match="out_of_bounds"):
        order(training.run, loss_scale=scale)


def test_what_cannot_be_changed_says_why():
    import torch

    run = spikewatch.attach(scaler=torch.amp.GradScaler("cpu", enabled=False))
    unavailable = run._parts.knobs.unavailable
    assert unavailable()["loss_scale"] == "no enabled GradScaler was given to attach"
    assert unavailable()["precision"] == "the forward pass is not run under run.autocast(…)"
    run.autocast("cpu", torch.bfloat16)
    assert unavailable()["precision"] == "the forward pass runs in bfloat16, not in fp16"
    run.autocast("cpu", torch.float16, enabled=False)
    assert "precision" in unavailable()
    run.autocast("cpu", torch.float16)
    assert "precision" not in unavailable()


def test_a_context_of_the_scripts_own_that_is_not_fp16_stays_as_it_is(order):
    training = Training()
    own = training.run.autocast("cpu", training.torch.bfloat16)
    off = training.run.autocast("cpu", training.torch.float16, enabled=False)
    order(training.run, precision="bf16")
    training.step()
    order_back = training.run._parts.ledger
    order_back.revert("change-0")
    training.step()
    assert own.fast_dtype is training.torch.bfloat16
    assert off.fast_dtype is training.torch.float16


def test_contexts_made_for_every_step_are_not_held():
    import torch

    precision = MixedPrecision(None)
    for _ in range(50):
        precision.autocast("cpu", torch.float16)
    gc.collect()
    assert len(precision._contexts) == 0
    assert precision.values() == {"precision": "fp16"}


def test_a_scale_on_a_device_is_what_has_arrived_from_there():
    class OnDevice:
        is_cpu = False

    class Holder:
        _scale = OnDevice()

    seen = float("nan")
    scaler = Scaler(Holder(), lambda: seen)
    precision = MixedPrecision(scaler)
    assert scaler.scale() is None
    assert precision._why_no_scale() == "the scale is not known yet"
    seen = 512.0
    assert scaler.scale() == 512.0
    assert FOREVER == 2**31 - 1
