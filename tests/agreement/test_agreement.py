"""All ranks or none: what becomes of a change that all have to agree on, whatever one of them does."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from simulated_ranks import Job

from spikewatch.agreement_board import KEEP_VERSIONS
from spikewatch.change import AgreementLost
from spikewatch.ledger_book import MAX_REMEMBERED
from spikewatch.promises import NEVER
from spikewatch.refusal import Refused

pytestmark = pytest.mark.torch


@pytest.fixture
def job():
    return Job()


def refused(call, *args):
    with pytest.raises(Refused) as refusal:
        call(*args)
    return refusal.value.reason


def test_it_is_applied_at_one_step_on_every_rank_and_every_rank_knows(job):
    job.order(lr=4)
    job.run()
    steps = {job.report(rank=number)["step"] for number in (0, 1)}
    assert len(steps) == 1
    assert job.lrs() == [4, 4]
    assert job.ranks[0].history == job.ranks[1].history
    assert job.ranks[0].history[steps.pop()]["lr"] == 4
    assert [job.state(rank=number) for number in (0, 1)] == [("applied", ""), ("applied", "")]
    assert job.report(rank=1)["found"] == {"lr": 8}
    assert all(rank.ledger.boundary == NEVER for rank in job.ranks)


def test_the_training_waits_for_nobody_a_step_that_comes_too_early_aborts_it_for_all(job):
    job.order(lr=4)
    job.work(1, without={1})  # rank 1 has not heard of it
    job.ranks[0].step()
    job.ranks[0].step()  # the appointed step, with one yes of two
    assert job.leader.now["lr"] == 8
    job.ranks[1].work()
    job.step()
    assert job.lrs() == [8, 8]
    job.run(30)  # proposed again, for a step further ahead
    assert job.lrs() == [4, 4]
    common = min(len(rank.history) for rank in job.ranks)
    assert job.ranks[0].history[:common] == job.ranks[1].history[:common]


def test_a_rank_that_hears_of_it_after_its_own_step_aborts_it_for_all(job):
    job.leader.work()
    job.order(lr=4)
    job.leader.leader.turn()  # proposed for step 2
    job.ranks[1].ledger.steps = 2
    job.ranks[1].hear()
    job.leader.hear()
    assert job.leader.board.verdict(0).reason == "late"
    assert job.leader.board.verdict(0).rank == 1


def test_after_some_attempts_that_come_too_late_it_is_refused(job):
    job.order(lr=4)
    for _ in range(60):
        job.work(2, without={1})
        job.step(60)  # rank 1 is always late
        job.clock.seconds += 6
        job.ranks[1].work()
    assert job.state() == ("refused", "late")
    assert job.lrs() == [8, 8]


def test_a_rank_that_refuses_makes_it_refused_everywhere_and_is_named(job):
    job.ranks[1].most = 10
    job.order(lr=20)
    job.run()
    assert job.lrs() == [8, 8]
    assert job.state() == ("refused", "out_of_bounds")
    assert job.report()["detail"] == "rank 1: at most 10"
    assert job.state(rank=1) == ("refused", "out_of_bounds")


def test_a_rank_that_has_another_value_refuses(job):
    job.ranks[1].now["workers"] = 5
    job.order(lr=4, expect={"workers": 2})
    job.run()
    assert job.state() == ("refused", "conflict")
    assert "workers is 5, not 2" in job.report()["detail"]


def test_a_rank_that_never_answers_is_named_when_time_is_up(job):
    job.order(lr=4)
    job.work(2, without={1})
    job.clock.seconds += 21
    job.work(2, without={1})
    assert job.state() == ("refused", "timeout")
    assert job.report()["detail"] == "no answer from rank 1"
    job.ranks[1].work()  # it comes back and finds it decided
    job.step(5)
    assert job.lrs() == [8, 8]


def test_a_lease_that_runs_out_at_rank_0_ends_it_on_all_ranks_at_one_step(job):
    job.order(lr=4, lease_ms=3_000)
    job.run(10)
    assert job.lrs() == [4, 4]
    job.run(60)
    assert job.lrs() == [8, 8]
    assert job.ranks[0].history == job.ranks[1].history
    assert [job.report(rank=n)["by"] for n in (0, 1)] == ["lease", "lease"]
    assert job.report()["state"] == "reverted"


def test_renewed_and_confirmed_it_stays_and_the_others_learn_that_it_is_over(job):
    job.order(lr=4, lease_ms=3_000)
    for _ in range(6):
        job.run(10)
        job.leader.ledger.renew("c", 3_000)
    assert refused(job.ranks[1].ledger.set, "own", {"workers": 3}, {}, 1_000) == "busy"
    job.leader.ledger.keep("c")
    job.run(60)
    assert job.lrs() == [4, 4]
    assert [job.state(rank=n)[0] for n in (0, 1)] == ["kept", "kept"]
    job.ranks[1].ledger.set("own again", {"workers": 3}, {}, 1_000)
    job.step()
    assert job.ranks[1].now["workers"] == 3


def test_taken_back_before_it_was_decided_it_is_never_applied(job):
    job.order(lr=4)
    job.work(1, without={1})
    job.leader.ledger.revert("c")
    job.run()
    assert job.lrs() == [8, 8]
    assert all(values["lr"] == 8 for values in job.leader.history)
    assert job.state()[0] == "reverted"
    assert job.report()["by"] == "order"


def test_taken_back_before_it_was_proposed_nobody_else_hears_of_it(job):
    job.order(lr=4)
    job.leader.ledger.revert("c")
    job.run()
    assert job.state()[0] == "reverted"
    assert job.report(rank=1) is None


def test_taken_back_after_all_have_said_yes_it_is_applied_and_then_undone_together(job):
    job.order(lr=4)
    job.work(2)
    job.leader.ledger.revert("c")
    job.run(30)
    assert {values["lr"] for values in job.leader.history} == {8, 4}
    assert job.ranks[0].history == job.ranks[1].history
    assert job.lrs() == [8, 8]


def test_only_rank_0_takes_orders_about_what_all_share(job):
    other = job.ranks[1].ledger
    assert refused(other.set, "mine", {"lr": 4}, {}, 1_000) == "not_leader"
    job.order(lr=4)
    job.run()
    for verb in (other.keep, other.revert):
        assert refused(verb, "c") == "not_leader"
    assert refused(other.renew, "c", 1_000) == "not_leader"


def test_a_change_of_both_kinds_is_agreed_and_each_rank_gets_its_own_local_value_back(job):
    job.ranks[1].now["workers"] = 5
    job.order(lr=4, workers=7)
    job.run()
    assert [rank.now for rank in job.ranks] == [{"lr": 4, "workers": 7}] * 2
    job.leader.ledger.revert("c")
    job.run()
    assert [rank.now for rank in job.ranks] == [{"lr": 8, "workers": 2}, {"lr": 8, "workers": 5}]


def test_what_is_put_back_is_what_rank_0_found(job):
    """A loss scale read late on one rank must not come back as another value there."""
    for rank in job.ranks:
        rank.drifts.add("lr")
    job.ranks[1].now["lr"] = 9
    job.order(lr=4)
    job.run()
    job.leader.ledger.revert("c")
    job.run()
    assert job.lrs() == [8, 8]


@pytest.mark.parametrize("broken", [0, 1])
def test_a_rank_that_fails_in_carrying_it_out_has_it_undone_on_all(job, broken):
    job.ranks[broken].broken = True
    job.order(lr=4)
    job.run(8)
    job.ranks[broken].broken = False
    job.run(30)
    assert job.lrs() == [8, 8]
    assert job.report(rank=1 - broken)["state"] == "reverted"
    assert "out of memory" in job.report()["detail"]
    assert job.report()["state"] == ("refused" if broken == 0 else "reverted")


def test_ranks_that_end_up_with_different_values_have_it_undone(job):
    honest = job.ranks[1].change

    def another(values, after=0):
        honest({name: value + 1 for name, value in values.items()} if values == {"lr": 4} else values, after)

    job.ranks[1].change = another
    job.order(lr=4)
    job.run(40)
    assert [values["lr"] for values in job.ranks[1].history].count(5) > 0
    assert job.report()["detail"] == "the ranks ended up with different values"
    assert job.lrs() == [8, 8]


def test_a_value_that_was_set_by_another_hand_since_is_left_alone(job):
    job.order(lr=4)
    job.run()
    job.ranks[1].now["lr"] = 3
    job.leader.ledger.revert("c")
    job.run(40)
    assert job.lrs() == [4, 3]
    assert job.state() == ("kept", "conflict")
    assert job.state(rank=1)[0] == "kept"


def test_the_largest_number_of_batches_under_way_goes_to_every_rank(job):
    job.ranks[0].in_flight, job.ranks[1].in_flight = 3, 11
    job.order(lr=4)
    job.run()
    assert [rank.carried_out[0][2] for rank in job.ranks] == [11, 11]


def test_a_change_that_a_rank_has_forgotten_can_still_be_undone(job):
    job.order(lr=4)
    job.run()
    job.leader.ledger.keep("c")
    job.run()
    for number in range(MAX_REMEMBERED + 1):
        refused(job.ranks[1].ledger.set, f"other {number}", {"workers": 10_000}, {}, 1_000)
    assert job.report(rank=1) is None
    job.leader.ledger.revert("c")
    job.run()
    assert job.lrs() == [8, 8]


def test_a_verdict_that_was_learned_while_the_training_asked_for_it_counts(job):
    job.order(lr=4)
    job.work(1)
    job.leader.leader.turn()  # committed, and rank 1 has not learned it

    def lost_meanwhile(version, wait=None):
        job.ranks[1].learn()
        raise AgreementLost

    job.ranks[1].verdict = lost_meanwhile
    job.step(2)
    assert job.lrs() == [4, 4]


def test_the_store_does_not_grow_with_the_number_of_changes(job):
    sizes = []
    for number in range(3 * KEEP_VERSIONS):
        job.order(f"c{number}", lr=number)
        job.run(14)
        job.leader.ledger.keep(f"c{number}")
        job.run(2)
        sizes.append(job.store.num_keys())
    assert job.lrs() == [3 * KEEP_VERSIONS - 1] * 2
    assert sizes[-1] == sizes[KEEP_VERSIONS]


def test_a_new_session_begins_afresh_and_what_an_earlier_one_left_does_not_count(job):
    job.order(lr=4)
    job.run()
    again = Job()
    again.store = job.store
    for rank in again.ranks:
        rank.board._store = job.store
    again.leader.board.open("another")
    again.ranks[1].work()
    again.order(lr=2)
    again.run()
    assert again.lrs() == [2, 2]


def answer(call, *args, **more):
    """The reason of a refusal, empty where there is none."""
    try:
        call(*args, **more)
    except Refused as refusal:
        return refusal.reason
    return ""


class AnyTiming(RuleBasedStateMachine):
    """Three ranks whose threads run in any order: they never differ after the same step, and all comes to an end."""

    def __init__(self):
        super().__init__()
        self.job = Job(world=3)
        self.orders, self.frozen = 0, set()

    def newest(self):
        return f"c{self.orders}"

    @rule(value=st.integers(1, 20), lease=st.sampled_from([2_000, 600_000]))
    def order(self, value, lease):
        self.orders += 1
        assert answer(self.job.order, self.newest(), lease, {}, lr=value) in ("", "busy", "out_of_bounds")

    @precondition(lambda self: self.orders)
    @rule(verb=st.sampled_from(["keep", "revert"]))
    def about_it(self, verb):
        assert answer(getattr(self.job.leader.ledger, verb), self.newest()) in ("", "conflict", "lease_expired")

    @rule(number=st.integers(0, 2), part=st.sampled_from(["work", "report", "hear", "learn"]))
    def work(self, number, part):
        if number not in self.frozen:
            getattr(self.job.ranks[number], part)()

    @rule(number=st.integers(0, 2))
    def step(self, number):
        """As far as the collective in every step lets it."""
        if self.job.ranks[number].ledger.steps <= min(rank.ledger.steps for rank in self.job.ranks):
            self.job.ranks[number].step()

    @rule()
    def all_run(self):
        self.job.run(2, without=self.frozen)

    @rule(number=st.integers(0, 2), frozen=st.booleans())
    def freeze(self, number, frozen):
        (self.frozen.add if frozen else self.frozen.discard)(number)

    @rule(number=st.integers(0, 2), most=st.sampled_from([10, 1_000]))
    def bound(self, number, most):
        if self.job.ranks[number].now["lr"] <= most and most > 8:
            self.job.ranks[number].most = most

    @rule(seconds=st.sampled_from([0.5, 25.0]))
    def pass_time(self, seconds):
        self.job.clock.seconds += seconds

    @invariant()
    def after_the_same_step_the_ranks_have_the_same_values(self):
        common = min(len(rank.history) for rank in self.job.ranks)
        histories = [[values["lr"] for values in rank.history[:common]] for rank in self.job.ranks]
        assert histories[0] == histories[1] == histories[2]

    def teardown(self):
        job = self.job
        for rank in job.ranks:
            rank.most = 1_000
        while len({rank.ledger.steps for rank in job.ranks}) > 1:
            min(job.ranks, key=lambda rank: rank.ledger.steps).step()
        for _ in range(8):
            job.run(70)
            job.clock.seconds += 700
        self.after_the_same_step_the_ranks_have_the_same_values()
        for rank in job.ranks:
            assert [r for r in rank.ledger.reports() if r["state"] in ("pending", "applied")] == []
            assert rank.ledger.boundary == NEVER
            assert rank.ledger.promises.owed() == 0


TestAnyTiming = AnyTiming.TestCase
TestAnyTiming.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
