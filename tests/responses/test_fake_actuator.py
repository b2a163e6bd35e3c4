"""The fake trainer keeps the promises of the real one, so that what is proved with it means something."""

from __future__ import annotations

import pytest

from sidecar.clock import FakeClock
from sidecar.errors import ChannelError
from sidecar.hooks import Actuator
from sidecar.model import ChangeState, Knob, Order
from sidecar.responses.fake_actuator import FakeActuator

LEASE = 30_000


@pytest.fixture
def clock():
    return FakeClock(1_000_000)


@pytest.fixture
def trainer(clock):
    return FakeActuator(clock, {"workers": Knob("workers", 2)})


def order(change="c1", to=4, expect=2):
    return Order(change, {"workers": to}, {"workers": expect}, LEASE)


def test_it_is_an_actuator(trainer):
    assert isinstance(trainer, Actuator)


def test_an_order_is_applied_and_kept(clock, trainer):
    trainer.apply(order())
    outcome = trainer.outcome("c1")
    assert (outcome.state, outcome.step, outcome.found, outcome.now) == (
        ChangeState.APPLIED,
        1000,
        {"workers": 2},
        {"workers": 4},
    )
    trainer.keep("c1")
    clock.advance(10 * LEASE)
    assert trainer.outcome("c1").state is ChangeState.KEPT
    assert trainer.values() == {"workers": 4}


def test_a_lease_that_nobody_renews_brings_the_found_value_back(clock, trainer):
    trainer.apply(order())
    clock.advance(LEASE - 1)
    trainer.renew("c1", LEASE)
    clock.advance(LEASE - 1)
    assert trainer.values() == {"workers": 4}
    clock.advance(1)
    assert trainer.values() == {"workers": 2}
    assert (trainer.outcome("c1").state, trainer.outcome("c1").by) == (ChangeState.REVERTED, "lease")
    trainer.keep("c1")
    assert trainer.values() == {"workers": 2}


def test_a_revert_puts_back_what_was_found(trainer):
    trainer.apply(order())
    trainer.revert("c1")
    assert trainer.values() == {"workers": 2}
    assert (trainer.outcome("c1").state, trainer.outcome("c1").by) == (ChangeState.REVERTED, "order")


def test_a_value_that_somebody_else_has_set_is_neither_overwritten_nor_reverted(trainer):
    trainer.apply(order(expect=3))
    assert trainer.outcome("c1").state is ChangeState.REFUSED
    trainer.apply(order("c2"))
    trainer.set_by_hand("workers", 9)
    trainer.revert("c2")
    assert (trainer.values(), trainer.outcome("c2").state) == ({"workers": 9}, ChangeState.KEPT)


def test_a_second_change_is_refused_while_one_is_open(trainer):
    trainer.apply(order())
    trainer.apply(order("c2", 8, 4))
    assert (trainer.outcome("c2").state, trainer.outcome("c2").reason) == (ChangeState.REFUSED, "busy")
    trainer.keep("c1")
    trainer.apply(order("c3", 8, 4))
    assert trainer.outcome("c3").state is ChangeState.APPLIED


def test_the_same_order_twice_is_carried_out_once(trainer):
    trainer.apply(order())
    trainer.revert("c1")
    trainer.apply(order())
    assert trainer.values() == {"workers": 2}
    assert len(trainer.history) == 2


def test_a_delayed_order_is_pending_and_its_revert_comes_before_it(clock, trainer):
    trainer.delay_ms = 5000
    trainer.apply(order())
    assert trainer.outcome("c1").state is ChangeState.PENDING
    trainer.revert("c1")
    clock.advance(60_000)
    assert trainer.outcome("c1").state is ChangeState.REVERTED
    assert trainer.history == []


def test_a_restarted_trainer_is_another_one_with_the_values_of_its_start(trainer):
    before = trainer.identity()
    trainer.apply(order())
    trainer.restart_trainer()
    assert trainer.identity().run_ids != before.run_ids
    assert trainer.outcome("c1").state is ChangeState.UNKNOWN
    assert trainer.values() == {"workers": 2}


def test_while_nobody_is_attached_nothing_is_known_and_nothing_arrives(clock, trainer):
    trainer.apply(order())
    trainer.detach()
    assert trainer.identity() is None
    assert trainer.knobs() == {}
    assert trainer.outcome("c1").state is ChangeState.UNKNOWN
    trainer.keep("c1")
    trainer.attach(after_ms=2000)
    assert trainer.identity() is None
    clock.advance(2000)
    assert trainer.outcome("c1").state is ChangeState.APPLIED


def test_messages_are_lost_refused_or_broken_on_request(trainer):
    trainer.lose = {"apply"}
    trainer.apply(order())
    assert trainer.outcome("c1").state is ChangeState.UNKNOWN
    trainer.lose, trainer.refuse = set(), "unsupported"
    trainer.apply(order())
    assert (trainer.outcome("c1").state, trainer.outcome("c1").reason) == (ChangeState.REFUSED, "unsupported")
    trainer.broken = True
    with pytest.raises(ChannelError):
        trainer.revert("c1")
    assert trainer.sent == [("apply", "c1"), ("apply", "c1"), ("revert", "c1")]
