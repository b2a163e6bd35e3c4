"""Orders, leases and what becomes of them, with knobs that are a dict and a clock that moves when told to."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from spikewatch.changes import MAX_ATTEMPTS, Ledger
from spikewatch.ledger_book import MAX_REMEMBERED
from spikewatch.promises import NEVER
from spikewatch.refusal import Refused


class Knobs:
    def __init__(self):
        self.now = {"num_workers": 2, "prefetch_factor": 2}
        self.broken = False

    def values(self):
        return dict(self.now)

    def check(self, values):
        for name, value in values.items():
            if name not in self.now:
                raise Refused("unknown_knob", name)
            if not 0 <= value <= 8:
                raise Refused("out_of_bounds", name)

    def change(self, values, after=0):
        if self.broken:
            raise Refused("failed", "no more processes")
        self.now.update(values)

    def shared(self, names):
        return False

    def drifting(self, name):
        return False

    def lag(self, values):
        return 0


class Time:
    seconds = 100.0

    def __call__(self):
        return self.seconds


@pytest.fixture
def knobs():
    return Knobs()


@pytest.fixture
def time():
    return Time()


@pytest.fixture
def ledger(knobs, time):
    return Ledger(knobs, time)


def state(ledger, change_id):
    report = ledger.report(change_id)
    return report["state"], report["by"], report["reason"]


def refused(call, *args):
    with pytest.raises(Refused) as refusal:
        call(*args)
    return refusal.value.reason


def test_an_order_waits_for_the_step_boundary_and_is_applied_there_as_one(ledger, knobs):
    ledger.set("a", {"num_workers": 4, "prefetch_factor": 8}, {"num_workers": 2}, 30_000)
    assert knobs.now == {"num_workers": 2, "prefetch_factor": 2}
    assert ledger.boundary <= 1
    ledger.at_boundary(17)
    assert knobs.now == {"num_workers": 4, "prefetch_factor": 8}
    report = ledger.report("a")
    assert (report["state"], report["step"]) == ("applied", 17)
    assert report["found"] == {"num_workers": 2, "prefetch_factor": 2}
    assert ledger.boundary == NEVER


def test_an_order_is_refused_when_the_values_found_are_not_the_expected_ones(ledger, knobs):
    assert refused(ledger.set, "a", {"num_workers": 4}, {"num_workers": 3}, 30_000) == "conflict"
    ledger.set("b", {"num_workers": 4}, {"num_workers": 2}, 30_000)
    knobs.now["num_workers"] = 5  # set by the script itself, before the boundary
    ledger.at_boundary(1)
    assert state(ledger, "b") == ("refused", "", "conflict")
    assert knobs.now["num_workers"] == 5


@pytest.mark.parametrize(("values", "reason"), [({"lr": 1}, "unknown_knob"), ({"num_workers": 99}, "out_of_bounds")])
def test_an_order_that_cannot_be_is_refused_with_a_reason_and_remembered(ledger, values, reason):
    assert refused(ledger.set, "a", values, {}, 30_000) == reason
    assert state(ledger, "a") == ("refused", "", reason)
    assert ledger.boundary == NEVER


def test_the_same_order_twice_is_one_change_and_another_under_its_id_is_refused(ledger, knobs):
    for _ in range(3):
        ledger.set("a", {"num_workers": 4}, {"num_workers": 2}, 30_000)
    ledger.at_boundary(1)
    ledger.set("a", {"num_workers": 4}, {"num_workers": 2}, 30_000)
    ledger.at_boundary(2)
    assert ledger.report("a")["step"] == 1
    assert refused(ledger.set, "a", {"num_workers": 5}, {}, 30_000) == "conflict"


def test_one_unconfirmed_change_at_a_time(ledger):
    ledger.set("a", {"num_workers": 4}, {}, 30_000)
    assert refused(ledger.set, "b", {"num_workers": 5}, {}, 30_000) == "busy"
    ledger.at_boundary(1)
    assert refused(ledger.set, "c", {"num_workers": 5}, {}, 30_000) == "busy"
    ledger.keep("a")
    ledger.set("d", {"num_workers": 5}, {}, 30_000)


def test_a_lease_that_runs_out_puts_the_found_values_back_at_the_next_boundary(ledger, knobs, time):
    ledger.set("a", {"num_workers": 4}, {}, 30_000)
    ledger.at_boundary(1)
    time.seconds += 29
    ledger.expire()
    assert ledger.boundary == NEVER
    time.seconds += 2
    ledger.expire()
    assert knobs.now["num_workers"] == 4
    ledger.at_boundary(9)
    assert knobs.now["num_workers"] == 2
    assert state(ledger, "a") == ("reverted", "lease", "")
    assert ledger.report("a")["step"] == 9


def test_a_renewed_lease_lasts_and_a_confirmed_change_has_none(ledger, knobs, time):
    ledger.set("a", {"num_workers": 4}, {}, 30_000)
    ledger.at_boundary(1)
    for _ in range(10):
        time.seconds += 20
        ledger.renew("a", 30_000)
        ledger.expire()
    ledger.keep("a")
    time.seconds += 1_000
    ledger.expire()
    ledger.at_boundary(2)
    assert knobs.now["num_workers"] == 4
    assert state(ledger, "a") == ("kept", "", "")


def test_a_renewal_or_confirmation_that_comes_too_late_does_not_rescue_a_change(ledger, knobs, time):
    ledger.set("a", {"num_workers": 4}, {}, 1_000)
    ledger.at_boundary(1)
    time.seconds += 2
    ledger.expire()
    ledger.renew("a", 30_000)
    assert refused(ledger.keep, "a") == "lease_expired"
    ledger.at_boundary(2)
    assert refused(ledger.keep, "a") == "lease_expired"
    assert knobs.now["num_workers"] == 2


def test_a_lease_that_runs_out_before_the_boundary_means_it_is_never_applied(ledger, knobs, time):
    ledger.set("a", {"num_workers": 4}, {}, 1_000)
    time.seconds += 2
    ledger.expire()
    knobs.broken = True  # nothing may be tried
    ledger.at_boundary(1)
    assert state(ledger, "a") == ("reverted", "lease", "")


def test_a_revert_order_undoes_also_what_was_confirmed(ledger, knobs):
    ledger.set("a", {"num_workers": 4}, {}, 30_000)
    ledger.at_boundary(1)
    ledger.keep("a")
    ledger.revert("a")
    ledger.revert("a")
    ledger.at_boundary(2)
    assert knobs.now["num_workers"] == 2
    assert state(ledger, "a") == ("reverted", "order", "")


def test_a_revert_leaves_values_alone_that_somebody_else_has_set_since(ledger, knobs):
    ledger.set("a", {"num_workers": 4}, {}, 30_000)
    ledger.at_boundary(1)
    knobs.now["num_workers"] = 7
    ledger.revert("a")
    ledger.at_boundary(2)
    assert knobs.now["num_workers"] == 7
    assert state(ledger, "a") == ("kept", "", "conflict")


def test_values_that_cannot_be_put_back_at_once_are_tried_again_and_nothing_else_gets_in_between(ledger, knobs):
    ledger.set("a", {"num_workers": 4}, {}, 30_000)
    ledger.at_boundary(1)
    ledger.revert("a")
    knobs.broken = True
    ledger.at_boundary(2)
    assert state(ledger, "a") == ("applied", "", "failed")
    assert refused(ledger.set, "b", {"num_workers": 5}, {}, 30_000) == "busy"
    assert 2 < ledger.boundary < NEVER
    knobs.broken = False
    ledger.at_boundary(ledger.boundary)
    assert state(ledger, "a") == ("reverted", "order", "")
    assert knobs.now["num_workers"] == 2


def test_values_that_can_never_be_put_back_are_given_up_in_the_end(ledger, knobs):
    ledger.set("a", {"num_workers": 4}, {}, 30_000)
    ledger.at_boundary(1)
    ledger.revert("a")
    knobs.broken = True
    for _ in range(MAX_ATTEMPTS):
        assert state(ledger, "a")[0] == "applied"
        ledger.at_boundary(ledger.boundary)
    assert state(ledger, "a") == ("kept", "", "failed")
    assert ledger.boundary == NEVER


def test_a_mistake_of_our_own_refuses_the_change_instead_of_leaving_it_open(ledger, knobs, monkeypatch):
    def mistake(values, after=0):
        raise AttributeError("no such thing in this torch")

    monkeypatch.setattr(knobs, "change", mistake)
    ledger.set("a", {"num_workers": 4}, {}, 30_000)
    ledger.at_boundary(1)
    assert state(ledger, "a") == ("refused", "", "failed")
    assert "no such thing" in ledger.report("a")["detail"]


def test_a_change_that_the_library_refuses_is_refused(ledger, knobs):
    ledger.set("a", {"num_workers": 4}, {}, 30_000)
    knobs.broken = True
    ledger.at_boundary(1)
    assert state(ledger, "a") == ("refused", "", "failed")


def test_giving_up_undoes_at_once_what_nobody_confirmed(ledger, knobs):
    ledger.set("a", {"num_workers": 4}, {}, 30_000)
    ledger.at_boundary(1)
    ledger.give_up(1)
    assert knobs.now["num_workers"] == 2


def test_what_is_remembered_is_bounded_and_never_drops_the_open_change(ledger):
    ledger.set("open", {"num_workers": 4}, {}, 30_000)
    for number in range(100):
        refused(ledger.set, f"other-{number}", {"lr": 1}, {}, 30_000)
    assert len(ledger.reports()) == MAX_REMEMBERED
    assert ledger.report("open")["state"] == "pending"


@pytest.mark.parametrize("verb", ["keep", "revert"])
def test_orders_about_a_change_nobody_knows_are_refused(ledger, verb):
    assert refused(getattr(ledger, verb), "a") == "unknown_change"


def answer(call, *args):
    """The reason of a refusal, empty where there is none."""
    try:
        call(*args)
    except Refused as refusal:
        return refusal.reason
    return ""


class AnyOrder(RuleBasedStateMachine):
    """Orders, steps and time in any order: values are always those found, or those of one change."""

    def __init__(self):
        super().__init__()
        self.knobs, self.time = Knobs(), Time()
        self.ledger = Ledger(self.knobs, self.time)
        self.ids, self.step = [], 0

    @rule(workers=st.integers(0, 8), lease=st.sampled_from([1_000, 30_000]))
    def order(self, workers, lease):
        self.ids.append(f"c{len(self.ids)}")
        assert answer(self.ledger.set, self.ids[-1], {"num_workers": workers}, {}, lease) in ("", "busy")

    @precondition(lambda self: self.ids)
    @rule(data=st.data(), verb=st.sampled_from(["keep", "revert", "renew"]))
    def about_one(self, data, verb):
        change_id = data.draw(st.sampled_from(self.ids[-3:]))
        reason = answer(getattr(self.ledger, verb), change_id, *([5_000] if verb == "renew" else []))
        assert reason in ("", "conflict", "lease_expired", "unknown_change")

    @rule(seconds=st.sampled_from([0.1, 2.0, 40.0]))
    def pass_time(self, seconds):
        self.time.seconds += seconds
        self.ledger.expire()

    @rule()
    def reach_boundary(self):
        self.step += 1
        if self.step >= self.ledger.boundary:
            self.ledger.at_boundary(self.step)

    @invariant()
    def at_most_one_is_open(self):
        open_ones = [r for r in self.ledger.reports() if r["state"] in ("pending", "applied")]
        assert len(open_ones) <= 1

    @invariant()
    def what_stands_is_explained(self):
        """The value is the found one, or that of the newest change that stands."""
        reports = self.ledger.reports()
        allowed = {2} | {r["values"]["num_workers"] for r in reports if r["state"] in ("applied", "kept")}
        if len(reports) < MAX_REMEMBERED:
            assert self.knobs.now["num_workers"] in allowed | {
                r["found"]["num_workers"] for r in reports if r["state"] == "reverted" and r["found"]
            }

    @invariant()
    def a_lease_that_is_over_leaves_nothing_behind(self):
        if self.step >= 0 and self.ledger.boundary == NEVER:
            for report in self.ledger.reports():
                assert report["state"] not in ("pending",)
                assert report["state"] != "applied" or report["lease_ms"] > 0


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
