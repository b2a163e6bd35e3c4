"""A change on several ranks is one unit: simulated ranks with the real ledger, over connections that break."""

from collections import deque
from types import SimpleNamespace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from sidecar.clock import FakeClock
from sidecar.model import ChangeState, Knob, Order
from sidecar.trainer.orders import Orders
from spikewatch.changes import Ledger
from spikewatch.refusal import Refused

FOUND, SET = 2, 4


class SimulatedRank:
    """A trainer process without process, thread or socket: what is said to it is done when `work` is called."""

    def __init__(self, number, clock):
        self.number, self.rank, self.run_id = number, number, f"run-{number}"
        self.now = {"num_workers": FOUND}
        self.most = 64
        self.ledger = Ledger(self, lambda: clock.monotonic_ms() / 1000)
        self.peer = SimpleNamespace(send=self._send)
        self.connected = False
        self.inbox, self.said, self.steps = deque(), deque(), 0

    @property
    def knobs(self):
        return {name: Knob(name, value) for name, value in self.now.items()}

    def values(self):
        return dict(self.now)

    def check(self, values):
        if values["num_workers"] > self.most:
            raise Refused("out_of_bounds")

    def change(self, values, after=0):
        self.now.update(values)

    def shared(self, names):
        return False

    def drifting(self, name):
        return False

    def _send(self, message):
        if self.connected:
            self.inbox.append(message)

    def attach(self, orders):
        self.connected = True
        self.ledger.news.clear()
        orders.attached(self, self.ledger.reports())

    def detach(self, orders):
        self.connected = False
        self.inbox.clear()
        self.said.clear()
        orders.left(self)

    def listen(self):
        """The client's thread: answers everything that came in."""
        self.ledger.expire()
        while self.inbox:
            message = self.inbox.popleft()
            change_id = message["change_id"]
            try:
                match message["type"]:
                    case "set":
                        args = message["values"], message["expect"], message["lease_ms"], message["ranks"]
                        self.ledger.set(change_id, *args)
                    case "renew":
                        self.ledger.renew(change_id, message["lease_ms"])
                    case verb:
                        getattr(self.ledger, verb)(change_id)
            except Refused as refusal:
                self.said.append((change_id, refusal.reason))
            self.said.append((change_id, None))
        while self.ledger.news:
            self.said.append((self.ledger.news.popleft(), None))

    def step(self):
        """The training thread."""
        self.steps += 1
        if self.steps >= self.ledger.boundary:
            self.ledger.at_boundary(self.steps)

    def deliver(self, orders, ranks):
        """What was said reaches the sidecar."""
        while self.said:
            change_id, reason = self.said.popleft()
            report = self.ledger.report(change_id)
            if reason is not None:
                orders.refused(self, change_id, reason, ranks)
            elif report is not None:
                orders.heard(self, report, ranks)


class Pod:
    """Some ranks and a sidecar's orders."""

    def __init__(self, ranks=2, settle_ms=120_000):
        self.clock = FakeClock()
        self.ranks = [SimulatedRank(n, self.clock) for n in range(ranks)]
        self.settle_ms = settle_ms
        self.restart()

    def restart(self):
        for rank in self.ranks:
            rank.connected = False
            rank.inbox.clear()
            rank.said.clear()
        self.orders = Orders(self.clock, self.settle_ms)
        for rank in self.ranks:
            rank.attach(self.orders)

    @property
    def there(self):
        return [rank for rank in self.ranks if rank.connected]

    def order(self, change_id="c", workers=SET, lease_ms=30_000):
        self.orders.give(Order(change_id, {"num_workers": workers}, {"num_workers": FOUND}, lease_ms), self.there)

    def talk(self, rank):
        rank.listen()
        if rank.connected:
            rank.deliver(self.orders, self.there)

    def settle(self, rounds=6):
        """Everyone steps and talks until nothing moves any more."""
        for _ in range(rounds):
            self.orders.tick(self.there)
            for rank in self.ranks:
                rank.step()
                self.talk(rank)

    def outcome(self, change_id="c"):
        return self.orders.outcome(change_id, self.there)

    def workers(self):
        return [rank.now["num_workers"] for rank in self.ranks]


@pytest.fixture
def pod():
    return Pod()


def test_it_is_applied_when_every_rank_has_applied_it(pod):
    pod.order()
    pod.ranks[0].listen()
    pod.ranks[0].step()
    for rank in pod.ranks:
        pod.talk(rank)
    assert pod.outcome().state is ChangeState.PENDING
    pod.ranks[1].steps = 76
    pod.settle()
    outcome = pod.outcome()
    assert outcome.state is ChangeState.APPLIED
    assert outcome.step == 77
    assert (outcome.found, outcome.now) == ({"num_workers": FOUND}, {"num_workers": SET})


def test_one_rank_that_refuses_makes_the_others_revert(pod):
    pod.ranks[1].most = 3
    pod.order()
    pod.ranks[0].listen()
    pod.ranks[0].step()
    pod.talk(pod.ranks[0])
    assert pod.workers() == [SET, FOUND]
    pod.settle()
    assert pod.workers() == [FOUND, FOUND]
    assert (pod.outcome().state, pod.outcome().reason) == (ChangeState.REFUSED, "out_of_bounds")


def test_a_lease_that_runs_out_on_one_rank_ends_it_on_all(pod):
    pod.order()
    pod.settle()
    pod.ranks[1].detach(pod.orders)
    for _ in range(7):
        pod.clock.advance(5_000)
        pod.orders.renew("c", 30_000, pod.there)
        pod.settle(1)
    assert pod.workers() == [SET, FOUND]
    pod.ranks[1].attach(pod.orders)
    pod.settle()
    assert pod.workers() == [FOUND, FOUND]
    assert (pod.outcome().state, pod.outcome().by) == (ChangeState.REVERTED, "lease")


def test_renewed_it_stands_and_confirmed_it_stays(pod):
    pod.order()
    pod.settle()
    for _ in range(20):
        pod.clock.advance(5_000)
        pod.orders.renew("c", 30_000, pod.there)
        pod.settle(1)
    assert pod.outcome().state is ChangeState.APPLIED
    pod.orders.keep("c", pod.there)
    pod.settle()
    pod.clock.advance(1_000_000)
    pod.settle()
    assert pod.outcome().state is ChangeState.KEPT
    assert pod.workers() == [SET, SET]


def test_it_is_not_confirmed_before_every_rank_has_applied_it(pod):
    pod.order()
    pod.ranks[0].listen()
    pod.ranks[0].step()
    pod.talk(pod.ranks[0])
    pod.orders.keep("c", pod.there)
    pod.settle()
    assert pod.outcome().state is ChangeState.APPLIED


def test_a_rank_that_was_away_when_it_was_confirmed_or_undone_hears_of_it_when_it_is_back(pod):
    for verb, state in (("keep", ChangeState.KEPT), ("revert", ChangeState.REVERTED)):
        pod = Pod()
        pod.order()
        pod.settle()
        pod.ranks[1].detach(pod.orders)
        getattr(pod.orders, verb)("c", pod.there)
        pod.settle()
        pod.ranks[1].attach(pod.orders)
        pod.settle()
        assert pod.outcome().state is state


def test_an_order_that_was_lost_with_the_connection_is_sent_again(pod):
    pod.order()
    pod.ranks[1].detach(pod.orders)
    pod.ranks[1].attach(pod.orders)
    pod.settle()
    assert pod.outcome().state is ChangeState.APPLIED


def test_a_sidecar_that_restarts_learns_from_the_ranks_what_became_of_its_orders(pod):
    pod.order()
    pod.settle()
    pod.restart()
    outcome = pod.outcome()
    assert (outcome.state, outcome.found) == (ChangeState.APPLIED, {"num_workers": FOUND})
    pod.orders.keep("c", pod.there)
    pod.settle()
    pod.restart()
    assert pod.outcome().state is ChangeState.KEPT


def test_without_a_trainer_an_order_is_refused_at_once():
    pod = Pod(ranks=0)
    pod.order()
    assert (pod.outcome().state, pod.outcome().reason) == (ChangeState.REFUSED, "no_trainer")


def test_a_change_nobody_has_heard_of_is_unknown(pod):
    assert pod.outcome("never").state is ChangeState.UNKNOWN
    pod.orders.revert("never", pod.there)
    pod.orders.keep("never", pod.there)


def test_a_rank_that_stays_away_for_a_whole_lease_is_given_up_and_the_others_revert(pod):
    pod.order()
    pod.settle()
    pod.ranks[1].detach(pod.orders)
    pod.clock.advance(20_000)
    pod.orders.renew("c", 30_000, pod.there)
    pod.settle()
    assert pod.outcome().state is ChangeState.APPLIED
    pod.clock.advance(20_000)
    pod.settle()
    assert (pod.outcome().state, pod.outcome().reason) == (ChangeState.REVERTED, "trainer_gone")
    assert pod.ranks[0].now["num_workers"] == FOUND


def test_a_rank_that_gave_up_unseen_takes_back_even_what_was_confirmed_on_the_others(pod):
    pod.order()
    pod.settle()
    pod.clock.advance(1_000)
    pod.ranks[1].detach(pod.orders)
    pod.clock.advance(24_000)
    pod.orders.renew("c", 30_000, pod.there)
    pod.settle(1)
    pod.clock.advance(5_500)
    pod.settle()
    pod.orders.keep("c", pod.there)
    pod.settle()
    assert pod.workers() == [SET, FOUND]
    pod.ranks[1].attach(pod.orders)
    pod.settle()
    assert pod.workers() == [FOUND, FOUND]
    assert pod.outcome().state is ChangeState.REVERTED


def test_a_restarted_sidecar_confirms_nothing_that_a_rank_may_never_have_heard_of(pod):
    pod.order()
    pod.ranks[0].detach(pod.orders)
    pod.settle(2)
    pod.orders = Orders(pod.clock, pod.settle_ms)
    pod.ranks[1].attach(pod.orders)
    assert pod.workers() == [FOUND, SET]
    assert pod.outcome().state is ChangeState.PENDING
    pod.orders.keep("c", pod.there)
    pod.ranks[0].attach(pod.orders)
    pod.clock.advance(31_000)
    pod.settle()
    assert pod.workers() == [FOUND, FOUND]


def test_when_no_rank_is_left_nothing_is_known(pod):
    pod.order()
    pod.settle()
    for rank in pod.ranks:
        rank.detach(pod.orders)
    pod.clock.advance(31_000)
    pod.orders.tick([])
    assert (pod.outcome().state, pod.outcome().reason) == (ChangeState.UNKNOWN, "trainer_gone")


def test_a_rank_that_never_reaches_a_step_makes_the_unit_time_out():
    pod = Pod(settle_ms=60_000)
    pod.order()
    for _ in range(14):
        pod.clock.advance(5_000)
        pod.orders.renew("c", 30_000, pod.there)
        pod.orders.tick(pod.there)
        pod.ranks[0].step()
        for rank in pod.ranks:
            pod.talk(rank)
    assert pod.workers() == [FOUND, FOUND]
    pod.settle()
    assert (pod.outcome().state, pod.outcome().reason) == (ChangeState.REVERTED, "timeout")


def test_the_same_order_twice_is_one(pod):
    pod.order()
    pod.order(workers=9)
    pod.settle()
    assert pod.workers() == [SET, SET]


class AnythingGoesWrong(RuleBasedStateMachine):
    """Orders, steps, lost connections, restarts and time in any order. When it is quiet again, all ranks agree."""

    def __init__(self):
        super().__init__()
        self.pod = Pod(ranks=3)
        self.orders = 0

    def newest(self):
        return f"c{self.orders}"

    @precondition(lambda self: all(rank.connected for rank in self.pod.ranks))  # an order goes to who is there
    @rule(workers=st.sampled_from([3, 4, 99]))
    def give(self, workers):
        self.orders += 1
        expect = dict(self.pod.ranks[0].now)
        order = Order(self.newest(), {"num_workers": workers}, expect, 30_000)
        self.pod.orders.give(order, self.pod.there)

    @rule(number=st.integers(0, 2))
    def step(self, number):
        self.pod.ranks[number].step()

    @rule(number=st.integers(0, 2))
    def talk(self, number):
        self.pod.talk(self.pod.ranks[number])

    @rule(number=st.integers(0, 2))
    def lose_connection(self, number):
        if self.pod.ranks[number].connected:
            self.pod.ranks[number].detach(self.pod.orders)

    @rule(number=st.integers(0, 2))
    def come_back(self, number):
        if not self.pod.ranks[number].connected:
            self.pod.ranks[number].attach(self.pod.orders)

    @rule(ms=st.sampled_from([100, 5_000, 40_000]))
    def pass_time(self, ms):
        self.pod.clock.advance(ms)
        self.pod.orders.tick(self.pod.there)

    @precondition(lambda self: self.orders)
    @rule(verb=st.sampled_from(["keep", "revert", "renew"]))
    def about_it(self, verb):
        more = (30_000,) if verb == "renew" else ()
        getattr(self.pod.orders, verb)(self.newest(), *more, self.pod.there)

    @rule()
    def work(self):
        self.pod.settle(1)

    @rule()
    def restart_sidecar(self):
        self.pod.restart()

    def teardown(self):
        pod = self.pod
        for rank in pod.ranks:
            if not rank.connected:
                rank.attach(pod.orders)
        for _ in range(4):  # long enough for every lease and time limit
            pod.settle()
            pod.clock.advance(130_000)
        pod.settle(10)
        assert len(set(pod.workers())) == 1, [rank.ledger.reports() for rank in pod.ranks]
        for number in range(1, self.orders + 1):
            assert pod.outcome(f"c{number}").state not in (ChangeState.PENDING, ChangeState.APPLIED)


TestAnythingGoesWrong = AnythingGoesWrong.TestCase
TestAnythingGoesWrong.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
