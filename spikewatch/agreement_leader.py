"""Rank 0's part of an agreement: proposes one change at a time, and decides when all have answered, or time is up."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from spikewatch.agreement_board import Board
from spikewatch.change import Change, Kind, Proposal, Verdict
from spikewatch.promises import Promises

NAMED = 4  # ranks that are named as missing
MAX_ATTEMPTS = 30  # to put values back, as for those of one rank
MAX_DOUBLINGS = 5


@dataclass(frozen=True, slots=True)
class Pace:
    """Times in seconds. Too short an allowance costs another attempt, never more."""

    poll: float = 0.2  # between two looks at the store, by one process a node
    busy: float = 0.03  # while a proposal is open
    allowance: float = 1.0  # from a proposal to the step it is for; doubled for each further attempt
    attempts: int = 5  # to agree on a change; on putting values back 30
    least_steps: int = 4  # as above, for slow steps: ranks may be a few steps apart
    patience: float = 20.0  # for the answers of all ranks
    lost_after: float = 600.0  # a training thread waits so long for a verdict, as long as NCCL does for a rank


@dataclass(slots=True)
class _Open:
    """A proposal under way."""

    proposal: Proposal
    deadline: float
    verdict: Verdict | None = None


class Leader:
    """Called on the agreement's thread only, but for `ask`."""

    def __init__(
        self,
        board: Board,
        world: int,
        promises: Promises,
        steps: Callable[[], int],
        pace: Pace,
        clock: Callable[[], float],
        first_version: int = 0,
    ) -> None:
        """`first_version`: above all that an earlier session of this process has used."""
        self._board = board
        self._world = world
        self._promises = promises
        self._steps = steps
        self._pace = pace
        self._clock = clock
        self._asked: deque[tuple[Kind, str]] = deque()
        self._open: _Open | None = None
        self._attempt = 0
        self.next_version = first_version
        self._rate = Rate(clock, steps)

    def ask(self, kind: Kind, change_id: str) -> None:
        """Any thread."""
        self._asked.append((kind, change_id))

    def busy(self) -> bool:
        """Whether there is something to be done soon."""
        open_ = self._open
        if open_ is None:
            return bool(self._asked)
        return open_.verdict is None or not open_.verdict.commit

    def withdraw(self) -> None:
        """This rank stops leading: what is not decided is aborted."""
        if self._open is not None and self._open.verdict is None:
            self._board.decide(
                self._open.proposal.version, Verdict(False, rank=0, reason="timeout", detail="rank 0 left")
            )

    def turn(self) -> None:
        """Takes whatever step is due."""
        self._rate.look()
        if self._open is None:
            self._propose_next()
        elif self._open.verdict is None:
            self._gather(self._open)
        elif self._open.verdict.commit:
            self._land(self._open)
        else:
            self._aborted(self._open, self._open.verdict)

    def _propose_next(self) -> None:
        while self._asked and self._open is None:
            kind, change_id = self._asked.popleft()
            change = self._promises.wanted(kind, change_id)
            if change is not None:
                self._attempt = 0
                self._propose(kind, change)

    def _propose(self, kind: Kind, change: Change) -> None:
        factor = 2 ** min(self._attempt, MAX_DOUBLINGS)
        seconds = self._pace.allowance * factor
        ahead = max(self._pace.least_steps * factor, math.ceil(seconds * self._rate.steps_per_second()))
        proposal = Proposal(
            self.next_version,
            kind,
            change.id,
            dict(change.values),
            dict(change.expect),
            dict(change.found),
            change.undoing,
            change.reason == "failed",
            self._steps() + ahead,
        )
        self._board.propose(proposal)
        self.next_version += 1
        if kind != "keep":  # that one is for information
            self._open = _Open(proposal, self._clock() + self._pace.patience)

    def _gather(self, open_: _Open) -> None:
        version = open_.proposal.version
        open_.verdict = self._board.verdict(version)
        if open_.verdict is None:
            wanted = self._judge(open_)
            open_.verdict = None if wanted is None else self._board.decide(version, wanted)

    def _judge(self, open_: _Open) -> Verdict | None:
        """What this rank would decide now; None: to wait."""
        if open_.proposal.kind == "apply" and self._promises.withdrawn(open_.proposal.change_id):
            return Verdict(False, rank=0, reason="withdrawn")
        answers = self._board.answers(open_.proposal.version)
        if len(answers) == self._world:
            return Verdict(True, after=max(answers.values()))
        if self._clock() <= open_.deadline:
            return None
        missing = [str(rank) for rank in range(self._world) if rank not in answers]
        named = ", ".join(missing[:NAMED]) + (", …" if len(missing) > NAMED else "")
        return Verdict(False, rank=0, reason="timeout", detail=f"no answer from rank {named}")

    def _aborted(self, open_: _Open, verdict: Verdict) -> None:
        self._open = None
        kind, change_id = open_.proposal.kind, open_.proposal.change_id
        self._promises.decided(open_.proposal.version, verdict)
        change = self._promises.wanted(kind, change_id)
        if change is None:
            return
        if self._again(kind, verdict):
            self._attempt += 1
            self._propose(kind, change)
        else:
            detail = f"rank {verdict.rank}: {verdict.detail}" if verdict.rank > 0 else verdict.detail
            self._promises.gave_up(kind, change_id, replace(verdict, detail=detail))
            if kind == "undo":
                self._asked.append(("keep", change_id))

    def _again(self, kind: Kind, verdict: Verdict) -> bool:
        if kind == "undo":
            return verdict.reason != "conflict" and self._attempt + 1 < MAX_ATTEMPTS
        return verdict.reason == "late" and self._attempt + 1 < self._pace.attempts

    def _land(self, open_: _Open) -> None:
        # Without every rank's report nothing else is proposed: it would need their answers anyway, and the store keeps
        # the verdict for those who have yet to ask.
        if self._steps() < open_.proposal.at:
            return
        reports = self._board.reports(open_.proposal.version)
        if len(reports) < self._world:
            return
        self._open = None
        wrong = [f"rank {rank}: {report.failure}" for rank, report in sorted(reports.items()) if report.failure]
        if not wrong and len({report.digest for report in reports.values()}) > 1:
            wrong.append("the ranks ended up with different values")
        if wrong and self._promises.failed(open_.proposal.change_id, "; ".join(wrong)):
            self._asked.appendleft(("undo", open_.proposal.change_id))


class Rate:
    """How fast the training steps, over the last seconds."""

    WINDOW = 5.0  # seconds
    SHORTEST = 1.0  # a burst of steps within less says nothing

    def __init__(self, clock: Callable[[], float] = time.monotonic, steps: Callable[[], int] = lambda: 0) -> None:
        self._clock = clock
        self._steps = steps
        self._seen: deque[tuple[float, int]] = deque()

    def look(self) -> None:
        """Notes the present step, a few times a second at most."""
        now = self._clock()
        if self._seen and now - self._seen[-1][0] < self.WINDOW / 20:
            return
        self._seen.append((now, self._steps()))
        while len(self._seen) > 2 and now - self._seen[0][0] > self.WINDOW:
            self._seen.popleft()

    def steps_per_second(self) -> float:
        """0 where nothing moves."""
        if not self._seen:
            return 0.0
        seconds, steps = self._clock() - self._seen[0][0], self._steps() - self._seen[0][1]
        return steps / max(seconds, self.SHORTEST)
