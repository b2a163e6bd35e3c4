"""Ranks of a job without processes and threads: the real ledger and agreement over torch's in-memory store."""

from collections import deque

from spikewatch.agreement_board import Board
from spikewatch.agreement_leader import Leader, Pace
from spikewatch.agreement_member import Member
from spikewatch.changes import Ledger
from spikewatch.refusal import Refused

PACE = Pace(allowance=1.0, least_steps=2, patience=20.0, attempts=3)


class Time:
    def __init__(self):
        self.seconds = 100.0

    def __call__(self):
        return self.seconds


class SimulatedRank:
    """One rank: `step` is its training thread, `work` (or its parts) its agreement's thread."""

    def __init__(self, number, world, store, clock, values, pace=PACE):
        self.number, self.found = number, dict(values)
        self.now, self.most, self.broken = dict(values), 1_000, False
        self.drifts = set()
        self.history = [dict(values)]  # after each step
        self.carried_out = []  # (step, value, after)
        self.ledger = Ledger(self, clock)
        self.ledger.agree_by(self)
        self.board = Board(store, "epoch")
        self.member = Member(self.board, number, self.ledger.promises, lambda: self.ledger.steps)
        self.reports = deque()
        self.leader = None
        self.in_flight = 0
        if number == 0:
            self.board.open("session")
            self.leader = Leader(
                self.board, world, self.ledger.promises, lambda: self.ledger.steps, pace, clock, first_version=0
            )

    # --- the training thread ----------------------------------------------------------------------------------------

    def step(self):
        self.ledger.steps += 1
        if self.ledger.steps >= self.ledger.boundary:
            self.ledger.at_boundary(self.ledger.steps)
        self.history.append(dict(self.now))

    # --- the agreement's thread -------------------------------------------------------------------------------------

    def work(self):
        self.report()
        self.ledger.expire()
        if self.leader is not None:
            self.leader.turn()
        self.hear()
        self.learn()

    def report(self):
        while self.reports:
            self.member.report(*self.reports.popleft())

    def hear(self):
        latest = self.board.latest()
        if latest is not None:
            self.member.hear(latest)

    def learn(self):
        return self.member.learn()

    # --- change.Pact ------------------------------------------------------------------------------------------------

    def alone(self):
        return False

    def leads(self):
        return self.leader is not None

    def why_not(self):
        return ""

    def ask(self, kind, change_id):
        self.leader.ask(kind, change_id)

    def verdict(self, version, wait=None):
        return self.member.insist(version)

    def done(self, version, digest, failure):
        self.reports.append((version, digest, failure))

    # --- knobs ------------------------------------------------------------------------------------------------------

    def values(self):
        return dict(self.now)

    def check(self, values):
        if any(value > self.most for value in values.values()):
            raise Refused("out_of_bounds", f"at most {self.most}")

    def change(self, values, after=0):
        if self.broken:
            raise RuntimeError("out of memory")
        self.now.update(values)
        self.carried_out.append((self.ledger.steps, dict(values), after))

    def shared(self, names):
        return "lr" in names

    def drifting(self, name):
        return name in self.drifts

    def lag(self, values):
        return self.in_flight


class Job:
    """Some ranks in lock-step: a collective in every step lets none get ahead of another by more than one."""

    def __init__(self, world=2, values=None):
        from torch.distributed import HashStore

        self.clock, self.store = Time(), HashStore()
        self.ranks = [
            SimulatedRank(number, world, self.store, self.clock, values or {"lr": 8, "workers": 2})
            for number in range(world)
        ]
        self.leader = self.ranks[0]

    def order(self, change_id="c", lease_ms=30_000, expect=None, **values):
        self.leader.ledger.set(change_id, values, expect or {}, lease_ms)

    def work(self, rounds=3, without=()):
        for _ in range(rounds):
            for rank in self.ranks:
                if rank.number not in without:
                    rank.work()

    def step(self, steps=1):
        for _ in range(steps):
            for rank in self.ranks:
                rank.step()

    def run(self, steps=12, seconds=0.1, without=()):
        """Steps and work side by side, as in life."""
        for _ in range(steps):
            self.work(1, without)
            self.step()
            self.clock.seconds += seconds
        self.work(3, without)

    def lrs(self):
        return [rank.now["lr"] for rank in self.ranks]

    def report(self, change_id="c", rank=0):
        return self.ranks[rank].ledger.report(change_id)

    def state(self, change_id="c", rank=0):
        report = self.report(change_id, rank)
        return report["state"], report["reason"]
