"""All ranks or none: how a change of what the ranks share is agreed through the job's own store.

Rank 0 proposes a change for the end of a step some way ahead. Every rank checks it, notes the appointment and says
yes, or aborts for all. When all have said yes, rank 0 decides to commit; a verdict is written once, whoever decides,
and counts for everybody. A training thread that comes to the appointed step before there is a verdict has it aborted,
so nobody ever waits for another rank. All of this happens in a thread of its own; only there is the store used.
"""

from __future__ import annotations

import atexit
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable

from spikewatch.agreement_bell import Bell
from spikewatch.agreement_board import LEFT, Board
from spikewatch.agreement_group import Group, launched_world
from spikewatch.agreement_leader import Leader, Pace
from spikewatch.agreement_member import Member
from spikewatch.change import AgreementLost, Kind, Verdict
from spikewatch.identity import identify
from spikewatch.promises import Promises

log = logging.getLogger("spikewatch")

THREAD_NAME = "spikewatch-agreement"
AT_EXIT = 5.0  # seconds an ending interpreter waits for the thread
LOOK_ANYWAY = 10.0  # seconds after which a process looks at the store though nobody rang


class _Question:
    """A training thread waits for a verdict."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.verdict: Verdict | None = None
        self.answered = threading.Event()


class Agreement:
    """A `change.Pact`. `look` begins and ends sessions as the process group comes and goes."""

    def __init__(
        self,
        promises: Promises,
        steps: Callable[[], int],
        group: Callable[[], Group | None],
        pace: Pace | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`steps`: how many steps the training thread has finished, read from any thread."""
        self._promises = promises
        self._steps = steps
        self._find = group
        self._pace = pace or Pace()
        self._clock = clock
        self._group: Group | None = None
        self._session: _Session | None = None
        self._next_version = 0
        self._why = "torch.distributed is not initialised"

    def look(self) -> None:
        """Begins a session where there is a process group of several ranks. A few times a second, on one thread."""
        try:
            group = self._find()
        except Exception as error:  # noqa: BLE001  another torch: then these knobs are not offered
            self._why, group = f"the process group cannot be looked into: {error!r}"[:200], None
        before = self._group
        if group is not None and before is not None and group.store is before.store:
            return
        self._end(0.0)
        self._group = group
        if group is not None and group.world > 1:
            self._session = _Session(group, self._promises, self._steps, self._pace, self._clock, self._next_version)
            self._session.start()

    def _end(self, wait: float) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.stop(wait)
            self._next_version = session.next_version()

    def stop(self, wait: float = 1.0) -> None:
        """Ends the thread, if the store lets it, within `wait` seconds."""
        self._end(wait)
        self._group = None

    def forked(self) -> None:
        """In the child of a fork: lets go of what it must not hold open."""
        if self._session is not None:
            atexit.unregister(self._session.stop)
            self._session.bell.forked()

    # --- change.Pact ------------------------------------------------------------------------------------------------

    def alone(self) -> bool:
        group = self._group
        return (group.world if group is not None else launched_world()) == 1

    def leads(self) -> bool:
        return self._group is None or self._group.rank == 0

    def why_not(self) -> str:
        """Empty for a rank alone, and for one that can agree with the others."""
        if self.alone():
            return ""
        session = self._session
        return session.trouble if session is not None else self._why

    def ask(self, kind: Kind, change_id: str) -> None:
        session = self._session
        if session is not None:
            session.ask(kind, change_id)

    def verdict(self, version: int, wait: float | None = None) -> Verdict:
        session = self._session
        if session is None:
            raise AgreementLost("the process group is gone")
        return session.verdict(version, self._pace.lost_after if wait is None else wait)

    def done(self, version: int, digest: str, failure: str) -> None:
        session = self._session
        if session is not None:
            session.done(version, digest, failure)


class _Session:
    """One process group's agreement, and its thread."""

    def __init__(
        self,
        group: Group,
        promises: Promises,
        steps: Callable[[], int],
        pace: Pace,
        clock: Callable[[], float],
        first_version: int,
    ) -> None:
        self._group = group
        self._promises = promises
        self._steps = steps
        self._pace = pace
        self._clock = clock
        self._asked: deque[tuple[Kind, str]] = deque()
        self._questions: deque[_Question] = deque()
        self._reports: deque[tuple[int, str, str]] = deque()
        self._first_version = first_version
        self._leader: Leader | None = None
        self._seen: int | None = None
        self._look_at = 0.0
        self.bell = Bell()
        self.trouble = "the ranks have not found each other yet"
        self._stop = False
        self._over = False
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)

    def start(self) -> None:
        self._thread.start()
        # An interpreter that ends while the thread is inside the store aborts the process.
        atexit.register(self.stop, AT_EXIT)

    def stop(self, wait: float) -> None:
        """Also more than once."""
        atexit.unregister(self.stop)
        self._stop = True
        self._wake()
        if wait and self._thread is not threading.current_thread():
            self._thread.join(wait)

    def next_version(self) -> int:
        return self._leader.next_version if self._leader is not None else self._first_version

    def ask(self, kind: Kind, change_id: str) -> None:
        self._asked.append((kind, change_id))
        self._wake()

    def done(self, version: int, digest: str, failure: str) -> None:
        self._reports.append((version, digest, failure))
        self._wake()

    def verdict(self, version: int, wait: float) -> Verdict:
        question = _Question(version)
        self._questions.append(question)
        self._wake()
        if self._over:  # the thread may have ended before it saw the question
            question.answered.set()
        question.answered.wait(wait)
        if question.verdict is None:
            raise AgreementLost(
                "this rank has agreed to a change and cannot learn from the job's store whether all ranks have: "
                f"{self.trouble or 'no answer'}; it stops, for going on could let the replicas diverge"
            )
        return question.verdict

    def _wake(self) -> None:
        self.bell.wake()

    # --- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            if not hasattr(self._group.store, "clone"):
                raise TypeError("this torch cannot clone it")
            board = Board(self._group.store.clone(), f"spikewatch/{identify(None).epoch}")
            member = Member(board, self._group.rank, self._promises, self._steps)
            try:
                self._work(board, member)
            finally:
                self._leave(board, member)
        except Exception as error:  # the store is gone: with it the job, or the process group
            self.trouble = f"the job's store does not answer: {str(error).partition(chr(10))[0] or repr(error)}"[:200]
            log.debug("agreement ended", exc_info=error)
        finally:
            self._over = True
            while self._questions:
                self._questions.popleft().answered.set()
            self.bell.close()

    def _work(self, board: Board, member: Member) -> None:
        if self._group.rank == 0:
            board.open(secrets.token_hex(8))
            self._leader = Leader(
                board, self._group.world, self._promises, self._steps, self._pace, self._clock, self._first_version
            )
            for kind, change_id in self._promises.unfinished():
                self._leader.ask(kind, change_id)
        while not self._stop:
            self._turn(board, member)

    def _leave(self, board: Board, member: Member) -> None:
        """Whatever the reason to leave, what this rank has said yes to is decided, if the store is there."""
        self._serve(board, member)
        for version in self._promises.undecided():
            self._promises.decided(version, member.insist(version))
        if self._leader is not None:
            self._leader.withdraw()
            board.leave()

    def _serve(self, board: Board, member: Member) -> None:
        """What the other threads of this process are waiting for."""
        while self._questions:
            question = self._questions.popleft()
            question.verdict = member.insist(question.version)
            question.answered.set()
        while self._reports:
            member.report(*self._reports.popleft())
        while self._asked and self._leader is not None:
            self._leader.ask(*self._asked.popleft())

    def _turn(self, board: Board, member: Member) -> None:
        self._serve(board, member)
        leader, busy = self._leader, False
        if leader is not None:
            leader.turn()
            busy = leader.busy()
        now = self._clock()
        if busy or self._seen is None or self.bell.looks or now >= self._look_at:
            self._look(board, member, now)
        waiting = member.learn()
        if self._questions or self._stop:
            return
        pause = self._pace.busy if busy or waiting else self._pace.poll if self._often() else LOOK_ANYWAY
        if self.bell.wait(pause):
            self._look_at = 0.0

    def _often(self) -> bool:
        return self.bell.looks or self._leader is not None or self._seen is None

    def _look(self, board: Board, member: Member, now: float) -> None:
        self._look_at = now + LOOK_ANYWAY
        latest = board.latest()
        if latest is None:
            return  # no leader yet
        self.bell.tune(board.session)
        self.trouble = "rank 0 has left" if latest == LEFT else ""
        if latest != self._seen:
            self._seen = latest
            self.bell.ring()
            member.hear(latest)
