"""The agreement's thread: over a real TCPStore, one process a node that looks, and when the store is gone."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from simulated_ranks import SimulatedRank

from spikewatch import agreement_bell
from spikewatch.agreement import THREAD_NAME, Agreement
from spikewatch.agreement_bell import Bell
from spikewatch.agreement_board import LEFT, NONE, Board
from spikewatch.agreement_group import Group
from spikewatch.agreement_leader import Pace
from spikewatch.change import AgreementLost, Proposal
from spikewatch.changes import Ledger

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]

LIVENESS = 60.0  # seconds: only a hang takes so long
PACE = Pace(poll=0.02, busy=0.005, allowance=0.05, patience=10.0, lost_after=LIVENESS)

SERVER = """
import sys, time
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""


def eventually(check):
    until = time.monotonic() + LIVENESS
    while time.monotonic() < until:
        result = check()
        if result:
            return result
        time.sleep(0.005)
    raise AssertionError(f"never came true: {check}")


class Rank:
    """The training thread is the test's; the agreement's is real."""

    values, check, change = SimulatedRank.values, SimulatedRank.check, SimulatedRank.change
    shared, drifting, lag = SimulatedRank.shared, SimulatedRank.drifting, SimulatedRank.lag
    step = SimulatedRank.step

    def __init__(self, number, world, store):
        self.now, self.most, self.broken, self.drifts, self.in_flight = {"lr": 8}, 100, False, set(), 0
        self.history, self.carried_out = [], []
        self.ledger = Ledger(self)
        self.group = Group(store, number, world) if store is not None else None
        self.agreement = Agreement(self.ledger.promises, lambda: self.ledger.steps, lambda: self.group, PACE)
        self.ledger.agree_by(self.agreement)
        self.agreement.look()

    @property
    def session(self):
        return self.agreement._session


@pytest.fixture
def stores():
    """Gives a client of a store whose server is in this process; connected as a job's own would be."""
    from torch.distributed import TCPStore

    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return lambda: TCPStore("127.0.0.1", server.port, is_master=False)


@pytest.fixture
def ranks(stores):
    made = []

    def make(world=2, store=stores, **more):
        made.extend(Rank(number, world, store()) for number in range(world))
        for rank in made:
            eventually(lambda rank=rank: not rank.agreement.why_not())
        return list(made)

    yield make
    for rank in made:
        rank.agreement.stop(LIVENESS)
    assert [t.name for t in threading.enumerate() if t.name == THREAD_NAME] == []


def train_until(ranks, check):
    """Steps of all ranks, until that is true."""
    until = time.monotonic() + LIVENESS
    while not check():
        assert time.monotonic() < until
        for rank in ranks:
            rank.step()
        time.sleep(0.002)


def change(ranks, change_id, value):
    ranks[0].ledger.set(change_id, {"lr": value}, {}, 600_000)
    train_until(ranks, lambda: ranks[0].ledger.report(change_id)["state"] not in ("pending",))
    assert [rank.now["lr"] for rank in ranks] == [value] * len(ranks)
    assert all(rank.history == ranks[0].history for rank in ranks)
    ranks[0].ledger.keep(change_id)
    eventually(lambda: all(rank.ledger.report(change_id)["state"] == "kept" for rank in ranks))


def test_ranks_agree_through_a_real_store(ranks):
    both = ranks()
    for number in range(5):
        change(both, f"c{number}", number)


def test_one_process_of_a_node_looks_and_all_hear(ranks):
    three = ranks(world=3)
    eventually(lambda: sum(rank.session.bell.looks for rank in three) == 1)
    change(three, "c", 4)


def test_a_leader_that_leaves_is_missed(ranks):
    leader, other = ranks()
    leader.agreement.stop(LIVENESS)
    eventually(lambda: other.agreement.why_not() == "rank 0 has left")
    other.step()


def test_a_process_group_that_goes_ends_it_and_another_begins_it_anew(ranks, stores):
    both = ranks()
    change(both, "before", 4)
    groups = [rank.group for rank in both]
    for rank in both:
        rank.group = None
        rank.agreement.look()
        assert rank.agreement.why_not() or rank.agreement.alone()
    store = stores()
    for rank, group in zip(both, groups, strict=True):
        rank.group = Group(store, group.rank, group.world)
        rank.agreement.look()
    for rank in both:
        eventually(lambda rank=rank: not rank.agreement.why_not())
    change(both, "after", 5)


def test_what_a_process_group_left_unfinished_is_proposed_to_the_next(ranks, stores):
    both = ranks()
    groups = [rank.group for rank in both]
    both[1].agreement.stop(LIVENESS)  # without it nothing is agreed
    both[0].ledger.set("c", {"lr": 4}, {}, 600_000)
    store = stores()
    for rank, group in zip(both, groups, strict=True):
        rank.group = Group(store, group.rank, group.world)
        rank.agreement.look()
    train_until(both, lambda: [rank.now["lr"] for rank in both] == [4, 4])


def test_a_session_that_another_has_followed_proposes_nothing_that_anybody_looks_for(stores):
    older, newer, rank = (Board(stores(), "epoch") for _ in range(3))
    older.open("older")
    older.propose(Proposal(0, "apply", "c", {}, {}, {}, "", False, 9))
    assert rank.latest() == 0
    newer.open("newer")
    older.propose(Proposal(1, "apply", "c", {}, {}, {}, "", False, 9))
    assert (rank.latest(), newer.latest(), older.latest()) == (NONE, NONE, LEFT)
    newer.propose(Proposal(2, "apply", "c", {}, {}, {}, "", False, 9))
    assert (rank.latest(), rank.session) == (2, "newer")


def test_a_rank_alone_needs_nobody_and_a_launched_one_waits_for_its_process_group(monkeypatch):
    alone = Rank(0, 1, None)
    assert alone.agreement.alone()
    assert alone.agreement.why_not() == ""
    alone.ledger.set("c", {"lr": 4}, {}, 1_000)
    alone.step()
    assert alone.now["lr"] == 4
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert not alone.agreement.alone()
    assert alone.agreement.why_not() == "torch.distributed is not initialised"


def test_a_closing_rank_aborts_what_is_undecided_and_keeps_its_word_on_what_is_not(ranks):
    both = ranks()
    both[0].ledger.set("c", {"lr": 4}, {}, 600_000)
    appointments = both[1].ledger.promises._appointments
    eventually(lambda: [a for a in list(appointments.values()) if a.verdict is not None])
    assert both[1].ledger.give_up(both[1].ledger.steps)
    train_until(both, lambda: both[0].now["lr"] == 4)
    assert both[1].history == both[0].history
    assert both[1].ledger.promises.owed() == 0


def test_a_process_group_that_another_torch_made_otherwise_closes_these_knobs_with_the_reason(monkeypatch):
    def no_such_thing():
        raise AttributeError("_get_default_store")

    monkeypatch.setenv("WORLD_SIZE", "2")
    rank = Rank(0, 1, None)
    rank.agreement._find = no_such_thing
    rank.agreement.look()
    assert "_get_default_store" in rank.agreement.why_not()


def test_a_store_that_cannot_be_cloned_closes_these_knobs_with_the_reason():
    rank = Rank(0, 2, lambda: None)
    eventually(lambda: "cannot clone" in rank.agreement.why_not())
    rank.agreement.stop(LIVENESS)


class Elsewhere:
    """A store whose server is another process."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.port = int(self.process.stdout.readline())

    def client(self):
        from torch.distributed import TCPStore

        return TCPStore("127.0.0.1", self.port, is_master=False)

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def elsewhere():
    server = Elsewhere()
    yield server
    server.end()


def test_a_store_that_is_gone_stops_a_rank_that_gave_its_word_and_no_other(ranks, elsewhere, capfd):
    leader, other = ranks(store=elsewhere.client)
    leader.session._leader._judge = lambda open_: None  # it never decides
    leader.ledger.set("c", {"lr": 4}, {}, 600_000)
    eventually(lambda: other.ledger.promises.undecided())
    elsewhere.end()
    eventually(lambda: "does not answer" in other.agreement.why_not())
    with pytest.raises(AgreementLost, match="could let the replicas diverge"):
        for _ in range(10_000):
            other.step()
    assert other.now["lr"] == 8
    capfd.readouterr()  # torch says on stderr that its store is gone


def test_a_store_that_hangs_holds_a_rank_up_for_a_bounded_time(ranks, elsewhere):
    leader, other = ranks(store=elsewhere.client)
    leader.session._leader._judge = lambda open_: None
    leader.ledger.set("c", {"lr": 4}, {}, 600_000)
    version = eventually(lambda: other.ledger.promises.undecided())[0]
    elsewhere.process.send_signal(signal.SIGSTOP)
    status = Path(f"/proc/{elsewhere.process.pid}/stat")
    eventually(lambda: status.read_text().rpartition(")")[2].split()[0] == "T")
    try:
        with pytest.raises(AgreementLost):
            other.agreement.verdict(version, 0.2)
    finally:
        elsewhere.process.send_signal(signal.SIGCONT)
    assert not other.agreement.verdict(version, LIVENESS).commit


@pytest.fixture
def bells():
    made = []

    def make():
        made.append(Bell())
        return made[-1]

    yield make
    for bell in made:
        if bell._open:
            bell.close()


def test_who_finds_the_place_free_looks_and_rings_the_others(bells):
    one, two, three = bells(), bells(), bells()
    for bell in (one, two, three):
        bell.tune("session")
    assert [bell.looks for bell in (one, two, three)] == [True, False, False]
    for _ in range(2):
        one.wait(LIVENESS)  # lets them in
    one.ring()
    assert two.wait(LIVENESS)
    assert three.wait(LIVENESS)
    assert not two.wait(0)
    one.close()
    assert two.wait(LIVENESS)
    assert three.wait(LIVENESS)
    assert sorted([two.looks, three.looks]) == [False, True]


def test_another_session_is_another_place_and_a_strangers_is_nobodys(bells, monkeypatch):
    one, two, three = bells(), bells(), bells()
    one.tune("session")
    two.tune("another")
    assert two.looks
    monkeypatch.setattr(agreement_bell, "_uid", lambda connection: os.getuid() + 1)
    three.tune("session")
    assert three.looks


def test_a_wake_ends_the_wait_and_after_the_end_does_nothing(bells):
    bell = bells()
    thread = threading.Thread(target=bell.wake)
    thread.start()
    assert bell.wait(LIVENESS) is False
    thread.join()
    bell.close()
    bell.wake()


def test_a_forked_child_does_not_keep_the_place(bells):
    one, two = bells(), bells()
    one.tune("session")
    one.forked()  # as it is called in the child
    two.tune("session")
    assert two.looks
